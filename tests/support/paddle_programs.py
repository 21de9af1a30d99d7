"""Paddle: the tensors and programs that its tests share."""

from __future__ import annotations

import numpy as np
import paddle


def tensor(values: object, dtype: str = "float32", stop_gradient: bool = True) -> paddle.Tensor:
    return paddle.to_tensor(np.array(values), dtype=dtype, stop_gradient=stop_gradient)


def program() -> paddle.static.Program:
    return paddle.static.program_guard(paddle.static.Program(), paddle.static.Program())
