"""A run check says "as in the configuration" only if it has compared something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.recordings import write_recording

from unified_clip import ClipConfig
from unified_clip.check import run_check
from unified_clip.recording import runs
from unified_clip.recording.lines import NOT_REPORTED

STEP = {"step": 1, "optimizer": "torch.optim.SGD", "settings": {"lr": 0.1}}
IN_A_GRAPH = {"step": 1, "warning": f"a clip call inside a graph of torch {NOT_REPORTED}"}


@pytest.mark.parametrize(
    ("lines", "on", "off"),
    [
        ([], ["unknown"], ["unknown"]),
        ([STEP], ["missing"], []),
        ([IN_A_GRAPH, STEP], ["unknown"], []),
    ],
)
def test_a_run_without_recorded_clips(tmp_path: Path, lines: list[Any], on: list[str], off: list[str]) -> None:
    run = runs.read(write_recording(tmp_path / "run.jsonl", lines))
    for settings, kinds in (({"rule": "global_norm", "threshold": 1.0}, on), ({"rule": "none"}, off)):
        report = run_check.check(run, ClipConfig(**settings), Path("clip.toml"))
        assert [each.kind for each in report.findings] == kinds
