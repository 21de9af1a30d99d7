"""What differs between releases of Paddle. Each line names the release that made it unnecessary."""

from __future__ import annotations

import re
from typing import Any

import paddle

RELEASE = tuple(map(int, re.findall(r"\d+", paddle.__version__)[:2]))
"""A build from source can have the version 0.0. It counts as new."""

REJECTS_NONE = (0, 0) < RELEASE < (3, 3)  # until Paddle 3.3
"""Whether `parameter.grad = None` raises an error."""


def remove_gradient(parameter: Any) -> None:
    if REJECTS_NONE:
        empty = paddle.empty([1], "float32")
        empty._clear_data()  # Paddle reads a gradient without memory as None
        parameter.grad_ = empty
    else:
        parameter.grad = None
