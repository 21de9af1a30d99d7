"""What tests of static programs of Paddle start from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def eager() -> list[Any]:
    """Paddle's eager tensors, made before `static`: in static mode that would end the process."""
    import paddle
    from support.paddle_programs import tensor

    return [tensor([3.0, 4.0]), paddle.sparse.sparse_coo_tensor([[1, 1, 2]], tensor([3.0, 4.0, 24.0]), [4])]


@pytest.fixture
def static(eager: list[Any]) -> Iterator[None]:
    import paddle

    paddle.enable_static()
    try:
        yield
    finally:
        paddle.disable_static()
