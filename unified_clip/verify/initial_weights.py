"""Find weights that a script changes before its first step, or does not load from --weights.

The first update is measured from --weights. If a rule explains all later updates of a weight, but not its first one,
the weight did not begin with the values of --weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..recipes.optimizers.updates import RATE, Recipe, Step, Tensors, differences, recipes

MOST_TENSORS = 48


def not_loaded(steps: Sequence[Step]) -> list[str]:
    """steps: All steps of a script. The weights before the first one are those of --weights."""
    if len(steps) < 2:
        return []
    return _contradicting(steps, [*steps[0].gradients][:MOST_TENSORS])


def _contradicting(steps: Sequence[Step], names: Sequence[str]) -> list[str]:
    own = [_only(step, names) for step in steps]
    # before an unknown first update, the weights are about those after it
    later = recipes([Step(own[0].gradients, own[1].weights, None), *own[1:]])
    if not names or (later and _agree(recipes(own), later)):
        return []
    if len(names) == 1:
        return list(names) if later else []
    half = len(names) // 2
    return _contradicting(steps, names[:half]) + _contradicting(steps, names[half:])


def _only(step: Step, names: Sequence[str]) -> Step:
    def part(tensors: Tensors) -> Tensors:
        return {name: tensors[name] for name in names}

    return Step(part(step.gradients), part(step.weights), None if step.updates is None else part(step.updates))


def _agree(every: Sequence[Recipe], later: Sequence[Recipe]) -> bool:
    """A weight decay of only the first step is no decay."""
    pairs = itertools.product(every, later)  # hundreds of rules explain updates of zero
    return any(all(each.setting == RATE for each in differences(a, b)) for a, b in pairs)
