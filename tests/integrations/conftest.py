"""Keras' backend, and fixtures that reset what trainers store in a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

BACKENDS = ("torch", "tensorflow", "jax")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect the tests of Keras for frameworks that Keras has a backend for."""
    backend = config.getoption("--framework").partition("-")[0]
    if backend in BACKENDS:
        os.environ["KERAS_BACKEND"] = backend
    return True if collection_path.name.startswith("test_each_keras") and backend not in BACKENDS else None


@pytest.fixture
def accelerate_state() -> Iterator[None]:
    """Reset Accelerate's state, which belongs to the process."""
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
