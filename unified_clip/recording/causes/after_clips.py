"""Find code that changes gradients between a clip and the step of the optimizer."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..._kit.display import counted
from ...causes.cause import Cause, joined
from ...causes.scaling import combined_norm
from ..divergence import DivergencePoint
from ..optimizers.names import LIBRARIES
from ..pairs.calls import CallPair
from ..recorded_run import OptimizerStep, RecordedCall, RecordedRun
from ..rounding import PRODUCT, same

ROUNDED_COPY = 2.0**-8
"""Total norms of gradients and of their copies in another dtype, such as bfloat16, differ by less than this factor."""


class ChangeAfterClip(NamedTuple):
    changed: int
    """The number of changed gradients."""

    factor: float | None
    """The total norm at the step, divided by the total norm after the clip. None if one of them is unknown."""

    @property
    def may_be_copy(self) -> bool:
        """Whether the code possibly only copies gradients, for example to float32 copies of the weights."""
        return self.factor is not None and math.isclose(self.factor, 1, rel_tol=ROUNDED_COPY)

    @property
    def text(self) -> str:
        sizes = "" if self.factor is None else f". At the step, their total norm is {1 / self.factor:.6g} times smaller"
        if self.factor is not None and self.factor > 1:
            sizes = f". At the step, their total norm is {self.factor:.6g} times larger"
        return f"changes {counted(self.changed, 'gradient')} between the clip and the step{sizes}"


def change_after_clip(run: RecordedRun, line: RecordedCall) -> ChangeAfterClip | None:
    """Return None if the recording does not show whether a gradient changed."""
    step = _step_at(run, line.step)
    if step is None or step.changed_after_clip is None:
        return None
    coefs, norm = line.known_coefs(), step.norm_at_step
    is_only_clip = sum(each.step == line.step for each in run.lines) == 1 and line.rule == "global" and line.order == 2
    clipped = line.norms()[0] * coefs[0] if is_only_clip and coefs else 0.0
    is_known = norm and 0 < clipped < math.inf
    return ChangeAfterClip(step.changed_after_clip, norm / clipped if norm and is_known else None)


def _step_at(run: RecordedRun, step: int) -> OptimizerStep | None:
    steps = [each for each in run.optimizer_steps if each.step == step]
    return steps[0] if len(steps) == 1 else None


def unscaled_after_clip(cause: Cause, point: DivergencePoint, pair: CallPair) -> Cause:
    """Find out whether a script divides scaled gradients after the clip instead of before it."""
    norms = [combined_norm(line.known_norms(), 2) for line in (pair.a, pair.b)]
    if not all(norms) or not all(map(math.isfinite, norms)):
        return cause
    run, line, other = (point.a, pair.a, point.b) if norms[0] > norms[1] else (point.b, pair.b, point.a)
    scale = max(norms) / min(norms)
    change = change_after_clip(run, line)
    if change and change.factor and math.isclose(scale * change.factor, 1, rel_tol=PRODUCT):
        return Cause(
            "clipping before unscaling",
            f"{run.name} clips gradients that are {scale:.6g} times as large as the gradients of {other.name}, and "
            f"divides the gradients by {scale:.6g} after the clip. Divide the gradients before the clip",
        )
    if change and not change.changed:
        return cause
    fact = f"{run.name} {change.text}" if change else ""
    advice = f"If {run.name} divides the gradients by {scale:.6g} after the clip, divide them before the clip instead"
    return cause._replace(sentence=joined(cause.sentence, fact, advice))


def one_changes_after_clip(point: DivergencePoint, pair: CallPair, place: str) -> Cause | None:
    changes = _changes(point, pair)
    changed = [bool(change and change.changed and not change.may_be_copy) for change in changes]
    if changed[0] == changed[1]:
        return None
    run, change = (point.a, changes[0]) if changed[0] else (point.b, changes[1])
    assert change is not None
    sentence = f"{place}. Other code of {run.name} {change.text}. Remove this code, or run it before the clip"
    return Cause("the clip does not reach the step", sentence)


def hint_at_changes(point: DivergencePoint, pair: CallPair) -> str:
    may_change = any(change is None or change.changed for change in _changes(point, pair))
    return "Also look for code that changes gradients between the clip and the step" if may_change else ""


def _changes(point: DivergencePoint, pair: CallPair) -> list[ChangeAfterClip | None]:
    return [change_after_clip(run, line) for run, line in ((point.a, pair.a), (point.b, pair.b))]


def have_same_optimizers(point: DivergencePoint, pair: CallPair) -> bool:
    """Return whether both runs use the same optimizer of a framework, with the same recorded settings."""
    steps = [_step_at(run, pair.a.step) for run in (point.a, point.b)]
    if not (steps[0] and steps[1]):
        return False
    are_known = steps[0].optimizer == steps[1].optimizer and steps[0].optimizer.startswith(LIBRARIES)
    return are_known and same(steps[0].settings, steps[1].settings)
