"""Fixtures of the tests of single frameworks: users' settings, programs of Paddle, and graphs of PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _settings_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIED_CLIP_PATH", raising=False)
    monkeypatch.delenv("UNIFIED_CLIP_GRAPH", raising=False)


@pytest.fixture
def eager() -> list[Any]:
    """Paddle's eager tensors. They are created before the fixture `static`, because creating them in static mode would
    end the process."""
    import paddle
    from support.paddle_programs import tensor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle 3.2 warns about its own max
        sparse = paddle.sparse.sparse_coo_tensor([[1, 1, 2]], tensor([3.0, 4.0, 24.0]), [4])
    return [tensor([3.0, 4.0]), sparse]


@pytest.fixture
def static(eager: list[Any]) -> Iterator[None]:
    import paddle

    paddle.enable_static()
    try:
        yield
    finally:
        paddle.disable_static()


@pytest.fixture
def kernels_in_new_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let new graphs of `torch.compile` call the kernels, and forget compiled graphs."""
    import torch

    from unified_clip._backends.torch import kernel_operators
    from unified_clip._native import KERNELS

    if KERNELS is not None and not KERNELS.register_torch():
        pytest.skip("this release of PyTorch has no C interface for operators")
    monkeypatch.setattr(kernel_operators, "ENABLED", True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
