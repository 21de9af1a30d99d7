"""Fixtures that reset what trainers store in a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def accelerate_state() -> Iterator[None]:
    """Reset Accelerate's state, which belongs to the process."""
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
