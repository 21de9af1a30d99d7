"""Progress bars appear only on a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.parity.cases import ONE_CASE, suite
from support.terminal import on_a_terminal
from support.tiers import nightly

import unified_clip
from unified_clip.compare import recordings as compare
from unified_clip.recording import runs

COMMAND = [sys.executable, "-P", "-m", "unified_clip"]
STEP = """
import unified_clip.numpy

def step(weights, batches):
    for x in batches["x"] if isinstance(batches, dict) else batches:
        unified_clip.numpy.clip_grad_norm_([weights["weight"]], 1.0)
        yield weights, weights
"""
COMMANDS = {
    "compare run.jsonl run.jsonl": ("read", "compare"),
    "verify step.py:step step.py:step --weights init.npz --batches batches.npz": ("old", "new"),
    "port step.py": ("files",),
    "config check clip.toml .": ("files",),
    "parity --suite . --case nothing": ("reading the suite",),
    "parity init --suite new init.npz": ("reading the gradients",),
}

QUICK = ["config check clip.toml ."]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with unified_clip.record(tmp_path / "run.jsonl"):
        unified_clip.clip_grad_norm_([np.array([3.0, 4.0])], 1.0)
    (tmp_path / "step.py").write_text(STEP)
    np.savez(tmp_path / "init.npz", weight=np.ones(3, np.float32))
    np.savez(tmp_path / "batches.npz", x=np.ones((2, 1), np.float32))
    (tmp_path / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0\n')
    return suite(tmp_path, ONE_CASE)


@pytest.mark.parametrize("command", [*QUICK, *nightly(*sorted(COMMANDS.keys() - QUICK))])
def test_a_terminal_shows_the_progress_of_long_work(command: str, directory: Path) -> None:
    _, printed = on_a_terminal([*COMMAND, *command.split()], directory, COLUMNS="100")
    assert "\x1b[?25l" in printed  # hides the cursor while bars are drawn
    for name in COMMANDS[command]:
        assert name in printed
    assert printed.rindex("\x1b[?25h") > printed.index("\x1b[?25l")  # and shows it again


def test_a_comparison_reports_its_progress(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "CHUNK", 50)
    moved = Counter[str]()
    path = directory / "run.jsonl"
    compare.compare(path, path, advance=lambda name, count: moved.update({name: count}))
    assert moved == {"read": moved["read"], "compare": compare.PHASES}
    assert moved["read"] > 0
