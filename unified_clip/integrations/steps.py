"""Store the outcome of a step in arrays, so that compiled graphs and optimizer states can contain the outcome."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .._core.backend import Backend
from .._core.distributed import INFERRED, DistributedSpec
from .._core.types import with_article
from ..config import outcome
from ..config.clipper import Clipper
from ..config.outcome import Traced
from ..config.schema import Settings
from ..errors import NothingClippedError

NO_STATE = (
    "The checkpoint has no state of the adaptive threshold, so the warm-up of the threshold starts again. To continue "
    "from a saved state, call load_state_dict()."
)

Array = Any  # an array of any framework


class LastStep(NamedTuple):
    """The outcome of an optimizer's last step."""

    step: int
    """The number of the step, counted from 0."""

    norm: float
    norm_clipped: float | None
    coef: float | None
    clipped: bool | None
    """Whether a gradient changed. None if the step was skipped, or if the answer is unknown."""

    skipped: bool

    def __str__(self) -> str:
        words = outcome.in_words(self.norm, self.norm_clipped, self.coef, self.clipped, self.skipped)
        return f"step {self.step}: {words}"

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Return `grad_norm` (before clipping), `grad_norm_clipped` and `clip_coef`. Leave out unknown numbers."""
        return outcome.metrics(self.norm, self.norm_clipped, self.coef, prefix)


class OutcomeArrays(NamedTuple):
    norm: Array
    norm_clipped: Array
    """The total norm after the clip, or -1 if it is unknown."""

    coef: Array
    clipped: Array
    """1 if a gradient changed, 0 if none changed, and -1 if unknown."""

    skipped: Array


UNKNOWN = -1
"""The value of `OutcomeArrays.clipped` if it is unknown whether a gradient changed."""


def clipper(settings: Settings, ops: Backend, spec: DistributedSpec = INFERRED) -> Clipper:
    """Return a clipper that never skips a step, because integrations skip steps themselves."""
    if not isinstance(settings, Settings):
        raise TypeError(
            f"settings is {with_article(type(settings).__name__)}. Pass the ClipConfig on which you called as_optax()."
        )
    if settings.nonfinite == "skip":
        settings = settings.model_copy(update={"nonfinite": "family"})
    return Clipper(settings, spec=spec, resolve=lambda grads: (ops, grads))


Anywhere = Callable[[Sequence[Array], Sequence[Array]], Array]
"""Takes tensors and a boolean for each tensor. Returns whether at least one boolean is true on at least one device."""


def outcome_arrays(
    settings: Settings,
    np: Any,
    traced: Traced,
    gradients: Iterable[tuple[Any, Any]],
    anywhere: Anywhere | None = None,
) -> OutcomeArrays:
    """`np` is a module such as `jax.numpy`. For sharded gradients, `anywhere` combines the results of all devices."""
    _, norm, coef, finite, _ = traced
    finite, unknown = finite > 0.0, np.full_like(norm, -1.0)
    # isnan: TensorFlow computes a < b as not (a >= b), which is true for NaN
    clipped = np.logical_or(coef < 1.0, np.isnan(coef))
    if any(part.rule == "value" for part in settings.parts):  # the rule `value` has no coefficient
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
    if steps == 0:
        raise NothingClippedError("nothing has been clipped yet. Make a step first.")
    norm, norm_clipped, coef, clipped, skipped = map(float, numbers)
    if skipped:
        return LastStep(step, norm, None, None, None, True)
    return LastStep(step, norm, None if norm_clipped < 0 else norm_clipped, coef, bool(clipped), False)


def rate_of(recent: Iterable[Any]) -> float | None:
    known = [int(clipped) for clipped in recent if clipped != UNKNOWN]
    return sum(known) / len(known) if known else None


def _dense(gradient: Any) -> Array:
    if callable(getattr(gradient, "todense", None)):  # JAX's BCOO
        return gradient.todense()
    if type(gradient).__name__ != "IndexedSlices":
        return gradient
    import tensorflow  # Keras's backend

    return tensorflow.convert_to_tensor(gradient)
