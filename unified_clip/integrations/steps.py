"""What happened at the last step, for the integrations that keep it in the state of an optimizer, graphs included."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .._core.ops import Ops
from .._core.shards import HERE_OR_TOLD, Across
from ..config import outcome
from ..config.clipper import Clipper, Traced
from ..config.schema import Settings

Array = Any
"""Of whichever framework."""


class LastStep(NamedTuple):
    """The last step of an optimizer that clips, as far as a graph can keep it."""

    step: int
    """On which the threshold depended, counted from 0."""

    norm: float
    """The total norm before clipping, over all gradients that take part; of order 2 but for one global norm."""

    norm_clipped: float | None
    """The total norm after it; None where it follows from no number that was measured, and where it was skipped."""

    coef: float | None
    """The smallest coefficient that gradients were multiplied by; 1 where none was, None where it was skipped."""

    clipped: bool | None
    """Whether any gradient was changed; None where it was skipped."""

    skipped: bool

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """What is logged: `grad_norm` (before clipping), `grad_norm_clipped`, `clip_coef`."""
        return outcome.metrics(self.norm, self.norm_clipped, self.coef, prefix)


class Kept(NamedTuple):
    """The same as arrays of the framework."""

    norm: Array
    norm_clipped: Array
    """-1 for None."""

    coef: Array
    clipped: Array
    """1, 0, or -1 for None."""

    skipped: Array


UNKNOWN = -1
"""What stands for None in `clipped`, and for a step that is not yet made."""


def clipper(settings: Settings, ops: Ops, across: Across = HERE_OR_TOLD) -> Clipper:
    """What clips; where steps are skipped, whoever knows the optimizer does that."""
    skips = settings.nonfinite == "skip"
    return Clipper(
        settings.model_copy(update={"nonfinite": "family"}) if skips else settings,
        across=across,
        resolve=lambda given: (ops, given),
    )


Anywhere = Callable[[Sequence[Array], Sequence[Array]], Array]
"""Of arrays, and of what was found in the part of each that is here: whether it was found anywhere."""


def kept(
    settings: Settings,
    np: Any,
    found: Traced,
    gradients: Iterable[tuple[Any, Any]],
    anywhere: Anywhere | None = None,
) -> Kept:
    """What happened, from what was found and, where it takes them, the gradients before and after.

    `np`: the functions of the framework, with the names that they have in NumPy. `anywhere`: where gradients may be in
    parts.
    """
    _, norm, coef, finite = found
    finite, unknown = finite > 0.0, np.full_like(norm, -1.0)
    clipped = np.logical_or(coef < 1.0, np.isnan(coef))  # TensorFlow takes the opposite of >= for <, with NaN too
    if any(part.rule == "value" for part in settings.parts):  # which has no coefficient
        pairs = [(_dense(old), _dense(new)) for old, new in gradients]
        changes = [np.any((new < old) | (new > old)) for old, new in pairs]
        if anywhere is not None and changes:
            changes = [anywhere([old for old, _ in pairs], changes)]
        clipped = functools.reduce(np.logical_or, changes, clipped)
    one_norm = not settings.groups and settings.rule in ("none", "global_norm")
    norm_clipped = norm * coef if one_norm else unknown
    if settings.nonfinite == "zero":
        norm_clipped = np.where(finite, norm_clipped, np.zeros_like(norm))
        coef, clipped = np.where(finite, coef, np.zeros_like(coef)), np.logical_or(clipped, np.logical_not(finite))
    skipped, known = np.zeros_like(finite), np.where(clipped, 1, 0)
    if settings.nonfinite == "skip":
        skipped, norm_clipped = np.logical_not(finite), np.where(finite, norm_clipped, unknown)
        known = np.where(skipped, UNKNOWN, known)
    return Kept(norm, norm_clipped, coef, known, skipped)


def last_step(made: int, step: int, numbers: Iterable[Any]) -> LastStep:
    """What is `kept`, read. `made`: how many steps were made; `step`: the last."""
    if made == 0:
        raise RuntimeError("nothing has been clipped yet; make a step first, then ask for what happened")
    norm, after, coef, clipped, skipped = map(float, numbers)
    if skipped:
        return LastStep(step, norm, None, None, None, True)
    return LastStep(step, norm, None if after < 0 else after, coef, bool(clipped), False)


def rate_of(recent: Iterable[Any]) -> float | None:
    """The share that changed a gradient of the last steps of which that is known, None where it is of none.

    `recent` holds `clipped` of each in turn.
    """
    known = [int(each) for each in recent if each != UNKNOWN]
    return sum(known) / len(known) if known else None


def _dense(gradient: Any) -> Array:
    if callable(getattr(gradient, "todense", None)):  # JAX's BCOO
        return gradient.todense()
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    import tensorflow  # only where it is the backend

    return tensorflow.convert_to_tensor(gradient)
