"""The names of optimizers and of their settings in recordings."""

from __future__ import annotations

import re

LIBRARIES = ("torch.optim.", "paddle.optimizer.", "keras.optimizers.", "optax.", "tf.compat.v1.train.")
"""The names of the frameworks' optimizers begin with one of these prefixes."""

ADAMW = re.compile(r"(?<=Adam)W(?![a-z])|(?<=\.adam)w$|(?<=\.nadam)w$|(?<=\.adamax)w$")

SETTINGS = (
    "lr", "momentum", "dampening", "nesterov", "weight_decay", "betas", "alpha", "centered", "eps", "eps_in_sqrt",
    "amsgrad", "maximize", "initial_accumulator_value",
)  # fmt: skip
