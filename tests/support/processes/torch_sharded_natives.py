"""Run functions of `tools/sharded_natives.py` in tests and in the processes of a `World`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

NATIVES = Path(__file__).parents[3] / "tools/sharded_natives.py"


def script() -> Any:
    if "sharded_natives" not in sys.modules:
        spec = importlib.util.spec_from_file_location("sharded_natives", NATIVES)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["sharded_natives"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["sharded_natives"]


def measure(scenarios: list[tuple[Any, ...]]) -> dict[tuple[str, str], str]:
    module = script()
    results: dict[tuple[str, str], str] = module.measure([module.Scenario(*scenario) for scenario in scenarios])
    return results
