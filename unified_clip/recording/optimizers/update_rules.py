"""Compare how two optimizers use weight decay, momentum and sparse gradients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ...causes.cause import Cause, joined, names_text
from ..recorded_run import OptimizerStep
from .names import ADAMW, LIBRARIES

VARIANT = re.compile(r"NAdam|RAdam|Adamax|^(?:nadam|radam|adamax)$")

SUM_FIRST = frozenset({"sgd", "lion"})
"""Keras' optimizers that sum the repeated rows of a sparse gradient before the update."""

ADDS_WEIGHT_DECAY = frozenset({"adadelta", "adagrad", "adam", "adamax", "rmsprop", "sgd", "momentum"})
"""PyTorch's and Paddle's optimizers that add weight decay to the gradients."""

DECAY_RULES: Mapping[bool, str] = {
    True: "subtracts weight decay from the weights",
    False: "adds weight decay to the gradients",
}


def are_one_kind(left: OptimizerStep, right: OptimizerStep) -> bool:
    """AdamW and a user's class MyAdam count as Adam. MyNAdam does not."""
    steps = sorted((left, right), key=lambda step: len(_kind(step)))
    short, long = map(_kind, steps)
    is_own = not all(step.optimizer.startswith(LIBRARIES) for step in steps)
    variant = VARIANT.search(ADAMW.sub("", steps[1].optimizer).rpartition(".")[2])
    return short == long or (is_own and short in long and (variant is None or variant[0].lower() in short))


def _kind(step: OptimizerStep) -> str:
    kind = ADAMW.sub("", step.optimizer).rpartition(".")[2].lower()
    return {"momentum": "sgd"}.get(kind, kind)


def _is_subtracted(step: OptimizerStep) -> bool | None:
    if ADAMW.search(step.optimizer) or step.optimizer.startswith("keras.optimizers."):
        return True
    is_known = step.optimizer.startswith(("torch.optim.", "paddle.optimizer."))
    return False if is_known and step.optimizer.rpartition(".")[2].lower() in ADDS_WEIGHT_DECAY else None


def decay_rules(left: OptimizerStep, right: OptimizerStep) -> str:
    ways = _is_subtracted(left), _is_subtracted(right)
    decays = [step.settings.get("weight_decay") for step in (left, right)]
    is_unknown = any(
        way is None and not step.optimizer.startswith(LIBRARIES) for way, step in zip(ways, (left, right), strict=True)
    )
    if ways[0] == ways[1] or is_unknown or any(decay in (0, (0.0,)) for decay in decays):
        return ""
    is_shown = None not in ways and None not in decays
    is_named = bool(ADAMW.search(left.optimizer)) != bool(ADAMW.search(right.optimizer))
    rules = zip((left, right), ways, strict=True)
    known = [f"{step.optimizer} {DECAY_RULES[way]}" for step, way in rules if way is not None]
    return joined(*known) if is_shown or is_named else ""


def undecayed_text(left: OptimizerStep, right: OptimizerStep, names: Mapping[str, str]) -> str:
    name_in_left = {other: name for name, other in names.items()}
    of_left, of_right = _undecayed(left), [name_in_left.get(name, "") for name in _undecayed(right)]
    if not all(name in names for name in (*of_left, *of_right)):
        return ""
    sentences = []
    for step, own, others in ((left, of_left, of_right), (right, of_right, of_left)):
        if only := [name if names[name].isdecimal() else names[name] for name in own if name not in others]:
            sentences.append(f"Unlike the other run, {step.run} has no weight decay for {names_text(only)}")
    return joined(*sentences)


def _undecayed(step: OptimizerStep) -> Sequence[str]:
    decay = step.settings.get("weight_decay")
    # "" stands for unknown names
    return step.undecayed or ([] if step.decayed is None and decay and not isinstance(decay, tuple) else [""])


def compare_rows(left: OptimizerStep, right: OptimizerStep) -> tuple[str, str, Cause] | None:
    squares = [bool(step.repeated_rows) and _kind(step) not in SUM_FIRST for step in (left, right)]
    if squares[0] == squares[1] or not all(step.optimizer.startswith(LIBRARIES) for step in (left, right)):
        return None
    step, other = (left, right) if squares[0] else (right, left)
    count = step.repeated_rows or 0
    sentence = (
        f"{step.optimizer} of {step.run} gets {count} gradient{'s' * (count != 1)} as IndexedSlices with repeated "
        f"rows, and squares each row separately. {other.run} squares the sum of the repeated rows. To also sum the "
        "rows in Keras, call tf.convert_to_tensor(gradient) before apply_gradients"
    )
    old, new = ("the square of each row" if each else "the square of the sum" for each in squares)
    return old, new, Cause("squared rows", sentence)


def compare_momentum(left: OptimizerStep, right: OptimizerStep) -> tuple[str, str, Cause] | None:
    contain = [step.optimizer == "keras.optimizers.SGD" for step in (left, right)]
    is_known = all(step.optimizer.startswith(LIBRARIES) and _kind(step) == "sgd" for step in (left, right))
    if contain[0] == contain[1] or not is_known or not all(step.settings.get("momentum") for step in (left, right)):
        return None
    step, other = (left, right) if contain[0] else (right, left)
    sentence = (
        f"the learning rate changes at step {step.step}. {step.optimizer} of {step.run} adds learning rate times "
        f"gradient to the momentum. {other.optimizer} of {other.run} adds the gradient, and multiplies the momentum by "
        "the current learning rate. If the learning rate changes from last_lr to new_lr, multiply the momentum by "
        "last_lr / new_lr before the step. In PyTorch, insert `for state in "
        'optimizer.state.values(): state["momentum_buffer"] *= last_lr / new_lr`. If new_lr is 0, train with 1e-20 '
        "instead"
    )
    old, new = ("the sum of learning rate times gradient" if each else "the sum of gradients" for each in contain)
    return old, new, Cause("another optimizer", sentence)
