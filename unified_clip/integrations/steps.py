"""The outcome of a step as arrays, which integrations keep in an optimizer's state, also in graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .._core.backend import Backend
from .._core.distributed import INFERRED, DistributedSpec
from ..config import outcome
from ..config.clipper import Clipper, Traced
from ..config.schema import Settings

Array = Any  # of any framework


class LastStep(NamedTuple):
    """The outcome of an optimizer's last step, with the numbers of `ClipOutcome` that a graph can keep."""

    step: int
    """The step for a schedule, counted from 0."""

    norm: float
    norm_clipped: float | None
    coef: float | None
    clipped: bool | None
    """None if the step was skipped."""

    skipped: bool

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Return `grad_norm` (before clipping), `grad_norm_clipped` and `clip_coef`, for logs."""
        return outcome.metrics(self.norm, self.norm_clipped, self.coef, prefix)


class OutcomeArrays(NamedTuple):
    """The outcome of a step as arrays of a framework, which its graphs can compute."""

    norm: Array
    norm_clipped: Array
    """-1 for None."""

    coef: Array
    clipped: Array
    """1, 0, or -1 for None."""

    skipped: Array


UNKNOWN = -1
"""Stands for None in `clipped`, and for a step that is not yet made."""


def clipper(settings: Settings, ops: Backend, spec: DistributedSpec = INFERRED) -> Clipper:
    """Return a clipper that never skips a step: the integration does, as it has the optimizer's state."""
    if settings.nonfinite == "skip":
        settings = settings.model_copy(update={"nonfinite": "family"})
    return Clipper(settings, spec=spec, resolve=lambda grads: (ops, grads))


Anywhere = Callable[[Sequence[Array], Sequence[Array]], Array]
"""Takes arrays, and a flag for the local shard of each. Returns whether any flag of any rank is set."""


def outcome_arrays(
    settings: Settings,
    np: Any,
    traced: Traced,
    gradients: Iterable[tuple[Any, Any]],
    anywhere: Anywhere | None = None,
) -> OutcomeArrays:
    """Return the outcome of a step as arrays. `np`: the framework's module with NumPy's functions.

    `gradients`: before and after clipping, for rules by value. `anywhere`: required if gradients may be sharded.
    """
    _, norm, coef, finite = traced
    finite, unknown = finite > 0.0, np.full_like(norm, -1.0)
    clipped = np.logical_or(coef < 1.0, np.isnan(coef))  # TensorFlow takes the opposite of >= for <, with NaN too
    if any(part.rule == "value" for part in settings.parts):  # which has no coefficient
        pairs = [(_dense(old), _dense(new)) for old, new in gradients]
        changes = [np.any((new < old) | (new > old)) for old, new in pairs]
        if anywhere is not None and changes:
            changes = [anywhere([old for old, _ in pairs], changes)]
        clipped = functools.reduce(np.logical_or, changes, clipped)
    is_global = not settings.groups and settings.rule in ("none", "global_norm")
    norm_clipped = norm * coef if is_global else unknown
    if settings.nonfinite == "zero":
        norm_clipped = np.where(finite, norm_clipped, np.zeros_like(norm))
        coef, clipped = np.where(finite, coef, np.zeros_like(coef)), np.logical_or(clipped, np.logical_not(finite))
    skipped, clipped = np.zeros_like(finite), np.where(clipped, 1, 0)
    if settings.nonfinite == "skip":
        skipped, norm_clipped = np.logical_not(finite), np.where(finite, norm_clipped, unknown)
        clipped = np.where(skipped, UNKNOWN, clipped)
    return OutcomeArrays(norm, norm_clipped, coef, clipped, skipped)


def last_step(steps: int, step: int, numbers: Iterable[Any]) -> LastStep:
    """Return the outcome of a step from the numbers of `OutcomeArrays`. `steps`: the number of steps so far."""
    if steps == 0:
        raise RuntimeError("nothing has been clipped yet. Make a step first.")
    norm, norm_clipped, coef, clipped, skipped = map(float, numbers)
    if skipped:
        return LastStep(step, norm, None, None, None, True)
    return LastStep(step, norm, None if norm_clipped < 0 else norm_clipped, coef, bool(clipped), False)


def rate_of(recent: Iterable[Any]) -> float | None:
    """Return the share of steps that changed a gradient; None if unknown for all. `recent`: their `clipped`."""
    known = [int(clipped) for clipped in recent if clipped != UNKNOWN]
    return sum(known) / len(known) if known else None


def _dense(gradient: Any) -> Array:
    if callable(getattr(gradient, "todense", None)):  # JAX's BCOO
        return gradient.todense()
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    import tensorflow  # Keras's backend

    return tensorflow.convert_to_tensor(gradient)
