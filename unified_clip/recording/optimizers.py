"""Compare the steps of optimizers in two recordings: the settings of each step, and what ran between steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..causes.observation import Cause
from .divergence import Divergence, Stage
from .runs import OptimizerStep, RecordedRun, Setting

STAGES: tuple[Stage, ...] = ("gradients cleared", "backward passes", "clips", "learning rate", "optimizer")
"""The stages that this module compares. The first two come before the clip of their step, the others after it."""

EQUAL = 1e-6
"""Settings that differ by at most this, relatively, count as equal: some frameworks store them as float32."""


class StepDifference(NamedTuple):
    """A difference between the steps of two optimizers, and its cause."""

    divergence: Divergence
    cause: Cause

    @property
    def acts_before_the_clip(self) -> bool:
        return self.divergence.stage in STAGES[:2]


def number_calls(a: RecordedRun, b: RecordedRun) -> tuple[RecordedRun, RecordedRun]:
    """Number the calls of two runs by the steps of their optimizers. Both runs must have recorded these steps, and must
    not have set `step`.
    """
    if not all(run.optimizer_steps and _counts_calls(run) for run in (a, b)):
        return a, b
    return _numbered(a), _numbered(b)


def _counts_calls(run: RecordedRun) -> bool:
    """Return whether the recorder counted each call as a step. A call may have several lines."""
    steps = [line.step for line in run.lines]
    return all(later - step in (0, 1) for step, later in zip([0, *steps], steps, strict=False))


def _numbered(run: RecordedRun) -> RecordedRun:
    """Return the run with its calls numbered by the optimizer's step after them; if the run clips late, by the step
    before them.
    """
    offset, done, lines = 0 if _is_late(run) else 1, 0, []
    for index, line in enumerate(run.lines):
        while done < len(run.optimizer_steps) and run.optimizer_steps[done].calls <= index:
            done += 1
        lines.append(line.model_copy(update={"step": done + offset}))
    steps = [each.model_copy(update={"step": number}) for number, each in enumerate(run.optimizer_steps, start=1)]
    return run.model_copy(update={"lines": lines, "optimizer_steps": tuple(steps)})


def _is_late(run: RecordedRun) -> bool:
    """Return whether every clip follows the optimizer's step that should use it."""
    steps = run.optimizer_steps
    return len(run.lines) >= len(steps) and all(step.calls == number for number, step in enumerate(steps))


def step_differences(a: RecordedRun, b: RecordedRun) -> list[StepDifference]:
    """Return the first difference of each kind between the steps of two runs."""
    found: dict[tuple[str, str], StepDifference] = {}
    if a.optimizer_steps and b.optimizer_steps and _is_late(a) != _is_late(b):
        late, early = (a, b) if _is_late(a) else (b, a)
        sentence = f"{late.name} clips after its optimizer has stepped, and {early.name} before"
        counts = (0, 1) if late is a else (1, 0)
        found["", ""] = StepDifference(Divergence(1, "clips", *counts), Cause("clipping after the step", sentence))
    clips = [{line.step for line in run.lines} for run in (a, b)]
    for left, right in zip(a.optimizer_steps, b.optimizer_steps, strict=False):
        for each in (*_between(a, b, left, right), *_left_out(a, b, left.step, clips), *_settings(a, b, left, right)):
            found.setdefault((each.cause.kind, each.divergence.parameter or ""), each)
    return list(found.values())


def _between(a: RecordedRun, b: RecordedRun, left: OptimizerStep, right: OptimizerStep) -> Iterator[StepDifference]:
    """Yield differences of what ran since the previous step."""
    if None not in (left.cleared, right.cleared) and left.cleared != right.cleared:
        run, other = (a, b) if not left.cleared else (b, a)
        sentence = (
            f"the gradients of {run.name} still include those of step {left.step - 1} when its backward pass of step "
            f"{left.step} begins. {other.name} clears them, as optimizer.zero_grad() does"
        )
        cause = Cause("gradients are not cleared", sentence)
        yield _difference(left, "gradients cleared", left.cleared, right.cleared, cause)
    passes = (left.backward_calls, right.backward_calls)
    if None not in passes and 0 not in passes and passes[0] != passes[1]:
        sentence = f"{a.name} runs {_passes(passes[0])} before the step, {b.name} {_passes(passes[1])}"
        yield _difference(left, "backward passes", *passes, Cause("gradient accumulation", sentence))


def _passes(count: int | None) -> str:
    return f"{count} backward pass{'es' * (count != 1)}"


def _left_out(a: RecordedRun, b: RecordedRun, step: int, clips: Sequence[set[int]]) -> Iterator[StepDifference]:
    """Yield a difference if one run steps without a clip, and the other run clips in this step."""
    has_clip = [step in steps for steps in clips]
    if has_clip[0] != has_clip[1]:
        run, other = (b, a) if has_clip[0] else (a, b)
        sentence = f"the optimizer of {run.name} makes step {step} without a clip call; {other.name} clips there"
        old, new = (sum(line.step == step for line in each.lines) for each in (a, b))
        yield StepDifference(Divergence(step, "clips", old, new), Cause("left-out clip", sentence))


def _settings(a: RecordedRun, b: RecordedRun, left: OptimizerStep, right: OptimizerStep) -> Iterator[StepDifference]:
    """Yield differences between learning rates, between the classes of the optimizers, and, if the class is the same,
    between their other settings.
    """
    for name in left.settings:
        old, new = left.settings[name], right.settings.get(name)
        if new is None or _same_setting(old, new):
            continue
        if name == "lr":
            sentence = f"{b.name} differs from {a.name} as with a learning rate of {_text(new)} instead of {_text(old)}"
            yield _difference(left, "learning rate", old, new, Cause("another learning rate", sentence))
        elif _kind(left) == _kind(right):
            sentence = f"{b.name} differs from {a.name} as with {name} {_text(new)} instead of {_text(old)}"
            yield _difference(left, "optimizer", old, new, Cause("another optimizer", sentence), name)
    if _kind(left) != _kind(right):
        sentence = f"{a.name} steps by {left.optimizer}, {b.name} by {right.optimizer}"
        yield _difference(left, "optimizer", left.optimizer, right.optimizer, Cause("another optimizer", sentence))


def _kind(step: OptimizerStep) -> str:
    """Return the class of the optimizer without its framework. Paddle's Momentum counts as SGD."""
    kind = step.optimizer.rpartition(".")[2].lower()
    return {"momentum": "sgd"}.get(kind, kind)


def _difference(
    step: OptimizerStep, stage: Stage, a: object, b: object, cause: Cause, setting: str | None = None
) -> StepDifference:
    return StepDifference(Divergence(step.step, stage, a, b, setting), cause)


def _same_setting(a: Setting, b: Setting) -> bool:
    left, right = ([*each] if isinstance(each, tuple) else [each] for each in (a, b))
    if len({*left}) == 1 == len({*right}):  # one number for all groups
        left, right = left[:1], right[:1]
    return len(left) == len(right) and all(math.isclose(x, y, rel_tol=EQUAL) for x, y in zip(left, right, strict=True))


def _text(value: Setting) -> str:
    return " and ".join(f"{each:.6g}" for each in (value if isinstance(value, tuple) else [value]))
