"""Paddle: the tensors and programs that its tests share."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

BACKWARD_WARNS = pytest.mark.filterwarnings("ignore:(Tensor|Value) do not have 'place' interface:UserWarning")
"""Paddle's own derivatives of a program warn so: `append_backward`, `gradients` and `paddle.grad`."""


def tensor(values: object, dtype: str = "float32", stop_gradient: bool = True) -> paddle.Tensor:
    return paddle.to_tensor(np.array(values), dtype=dtype, stop_gradient=stop_gradient)


def program() -> paddle.static.Program:
    return paddle.static.program_guard(paddle.static.Program(), paddle.static.Program())
