"""Find the recorded clips that belong to each step of an optimizer."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

from ..recording.recorded_run import OptimizerStep, RecordedCall, RecordedRun


def calls_before_steps(run: RecordedRun) -> list[list[RecordedCall]]:
    """Return the calls before each step of an optimizer, and the calls after the last step."""
    ends = [step.calls for step in run.optimizer_steps]
    return [run.lines[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]


def earlier_steps(steps: Sequence[OptimizerStep]) -> list[int]:
    """Return the number of earlier steps of its optimizer for each step, and for the calls after the last step."""
    optimizers = [(step.optimizer, step.place) for step in steps]
    earlier = Counter[tuple[str, str | None]]()
    numbers = []
    for optimizer in [*optimizers, *optimizers[:1]]:
        numbers.append(earlier[optimizer])
        earlier[optimizer] += 1
    return numbers or [0]


def in_rounds(
    windows: Sequence[Sequence[RecordedCall]], steps: Sequence[OptimizerStep], has_exclusions: bool
) -> list[tuple[list[RecordedCall], OptimizerStep]]:
    """Return the clips and the step of each round in which all optimizers of optax step once, or nothing if there are
    no such rounds. In a graph of JAX, steps and clips that do not need each other report in any order."""
    of_instance: dict[int | None, list[OptimizerStep]] = {}
    for step in steps:
        of_instance.setdefault(step.instance, []).append(step)
    rounds = [*zip(*of_instance.values(), strict=False)]
    lines = [line for each in windows for line in each if is_clip(line)]
    are_whole = len(rounds) * len(of_instance) == len(steps) and not len(lines) % len(rounds)
    if len(of_instance) < 2 or not are_whole or not all(step.optimizer.startswith("optax.") for step in steps):
        return []
    found, count = [], len(lines) // len(rounds)
    for number, each in enumerate(rounds):
        own = lines[number * count : (number + 1) * count]
        total = sum(step.gradients or 0 for step in each)
        clipped = sum(line.count or 0 for line in own)
        if has_exclusions or total <= clipped:
            found.append((own, each[0].model_copy(update={"gradients": total})))
            continue
        unclipped = [step for step in each if step.gradients == total - clipped]
        if len(unclipped) != 1:  # only the order of the lines can tell
            return []
        found.append(([], unclipped[0]))
    return found


def with_shared(windows: Sequence[Sequence[RecordedCall]], steps: Sequence[OptimizerStep]) -> list[list[RecordedCall]]:
    """Divide each call that clipped the gradients of several consecutive steps among these steps."""
    divided = [[line for line in lines if is_clip(line)] for lines in windows]
    for index, (step, after) in enumerate(itertools.pairwise(steps)):
        lines, wanted, rest = divided[index], step.gradients or 0, after.gradients or 0
        if len(lines) == 1 and not divided[index + 1] and 0 < rest <= (lines[0].count or 0) - wanted:
            divided[index + 1] = [lines[0].model_copy(update={"count": (lines[0].count or 0) - wanted})]
            divided[index] = [lines[0].model_copy(update={"count": wanted})]
    return divided


def are_paired(windows: Sequence[Sequence[RecordedCall]], steps: Sequence[OptimizerStep]) -> bool:
    """Return whether the clips between two steps belong to the second of these steps.

    With several optimizers, a script can also make all clips before all steps.
    """
    clips = [sum(map(is_clip, lines)) for lines in windows]
    return len({(step.optimizer, step.place) for step in steps}) == 1 or all(clips[:-1]) or sum(clips) < len(steps)


def is_clip(line: RecordedCall) -> bool:
    """Return False for a call that raised, got no gradients, came after the step, or only measured the norm."""
    return not line.late and line.rule is not None and line.is_gradient is not False and line.threshold != math.inf
