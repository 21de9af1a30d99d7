"""A fixture that compares two runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from support.recordings import write_and_compare

from unified_clip.compare.recordings import RecordingComparison


@pytest.fixture
def compare_runs(tmp_path: Path) -> Callable[..., RecordingComparison]:
    return functools.partial(write_and_compare, tmp_path)
