"""`test_torch_*.py` is collected for `--framework torch` only: no other process may import it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not collection_path.name.startswith("test_"):
        return None
    framework = config.getoption("--framework").removesuffix("-x64")
    return None if collection_path.name.startswith(f"test_{framework}_") else True


@pytest.fixture
def eager() -> list[Any]:
    """Paddle's eager tensors, made before `static`: in static mode that would end the process."""
    import paddle
    from paddle_programs import tensor

    return [tensor([3.0, 4.0]), paddle.sparse.sparse_coo_tensor([[1, 1, 2]], tensor([3.0, 4.0, 24.0]), [4])]


@pytest.fixture
def static(eager: list[Any]) -> Iterator[None]:
    import paddle

    paddle.enable_static()
    try:
        yield
    finally:
        paddle.disable_static()
