"""The names of optimizers and of their settings in recordings, and what the classes do with weight decay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # hooks import this module, and `.runs` needs pydantic
    from .runs import OptimizerStep

LIBRARIES = ("torch.optim.", "paddle.optimizer.", "keras.optimizers.", "optax.", "tf.compat.v1.train.")
"""The modules of the frameworks' own optimizers. Any other class counts as the user's own. It is compared with a
framework's class if its name contains the name of that class: MyAdam with Adam, and MyAdamW with AdamW.
"""

ADAMW = re.compile(r"(?<=Adam)W(?![a-z])|(?<=\.adam)w$|(?<=\.nadam)w$|(?<=\.adamax)w$")
"""Matches the W in the name of a class such as AdamW, MyAdamW or optax.adamw."""

SETTINGS = (
    "lr", "momentum", "dampening", "nesterov", "weight_decay", "betas", "alpha", "eps", "eps_in_sqrt", "amsgrad",
    "maximize",
)  # fmt: skip
"""The settings that are recorded, by PyTorch's names. Two recordings are compared by these names."""


ADDED = frozenset({"adadelta", "adagrad", "adam", "adamax", "rmsprop", "sgd", "momentum"})
"""The optimizers of PyTorch and Paddle, in lower case, that add weight decay to the gradients."""

CLAUSES: Mapping[bool | None, str] = {
    True: ", which subtracts weight decay from the weights",
    False: ", which adds weight decay to the gradients",
    None: "",
}


def check_names(optimizer: str, settings: frozenset[str], *, is_users: bool) -> None:
    """Check the names of an optimizer's class and settings before a hook records them.

    is_users: Whether the class may be the user's own.

    ValueError: a setting is not in SETTINGS. Or, without `is_users`, the class is in none of LIBRARIES.
    """
    if unknown := sorted(settings - {*SETTINGS}):
        raise ValueError(
            f"{optimizer} has settings with unknown names: {', '.join(unknown)}. Use PyTorch's name of the setting, or "
            "add the name to SETTINGS in recording/optimizer_names.py."
        )
    if not is_users and not optimizer.startswith(LIBRARIES):
        raise ValueError(
            f"{optimizer} is in no known module. Add its module to LIBRARIES in recording/optimizer_names.py."
        )


def _is_subtracted(step: OptimizerStep) -> bool | None:
    """Return whether an optimizer subtracts weight decay from the weights, or None if that is unknown."""
    if ADAMW.search(step.optimizer) or step.optimizer.startswith("keras.optimizers."):
        return True
    is_known = step.optimizer.startswith(("torch.optim.", "paddle.optimizer."))
    return False if is_known and step.optimizer.rpartition(".")[2].lower() in ADDED else None


def decay_clauses(left: OptimizerStep, right: OptimizerStep) -> tuple[str, str] | None:
    """Return a clause for each optimizer, about what it does with weight decay. Return None if both do the same.

    A clause is "" if this is unknown. Return None, too, if the weight decay of a step is 0. Otherwise, return the
    clauses only if one of the two classes is an AdamW, or if both clauses and both weight decays are known.
    """
    ways = _is_subtracted(left), _is_subtracted(right)
    decays = [step.settings.get("weight_decay") for step in (left, right)]
    if ways[0] == ways[1] or any(decay in (0, (0.0,)) for decay in decays):
        return None
    is_shown = None not in ways and None not in decays
    is_named = bool(ADAMW.search(left.optimizer)) != bool(ADAMW.search(right.optimizer))
    return (CLAUSES[ways[0]], CLAUSES[ways[1]]) if is_shown or is_named else None
