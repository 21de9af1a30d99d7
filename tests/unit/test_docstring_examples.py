"""Examples in docstrings of public modules that need no framework: they print what the docstrings show."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = (
    "adaptive.functions",
    "adaptive.number",
    "adaptive.rules",
    "config.clip_config",
    "monitor",
    "recording.runs",
    "suggest",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"unified_clip.{name}"))
    assert result.attempted >= 3
    assert result.failed == 0
