"""`unified-clip record --watch` shows the numbers of all processes. The output of the command is unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from unified_clip.recording.launch import watch

ENVIRONMENT = {
    **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1", "TERM": "xterm"
}  # fmt: skip

TRAIN = """
    import sys, time
    import numpy as np
    import unified_clip

    for step in range(60):
        unified_clip.clip_by_global_norm([np.array([3.0, 4.0 + step])], 1.0)
        print(f"output of step {step}", flush=True)
        time.sleep(0.03)
    sys.exit(5)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN), encoding="utf-8")
    return tmp_path


def command(folder: Path, *options: str) -> list[str]:
    own = [sys.executable, "-m", "unified_clip", "record", *options, str(folder / "run.jsonl"), "--"]
    return [*own, sys.executable, str(folder / "train.py")]


def clip_line(step: int, norm: Any, clipped: bool | None = True, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "call": "clip_grad_norm_",
        "rule": "global",
        "norm": norm,
        "threshold": 1.0,
        "clipped": clipped,
        **more,
    }


def write_part(folder: Path, name: str, rank: int | None, lines: list[dict[str, Any]]) -> Path:
    path = folder / f"{name}.part"
    header = {"unified_clip": "0.1.0", "process": {"rank": rank, "ranks": 2}}
    path.write_text("".join(json.dumps(each) + "\n" for each in (header, *lines)), encoding="utf-8")
    return path


# -- the numbers


def test_incomplete_lines_are_read_once_they_are_complete(tmp_path: Path) -> None:
    path, watcher = write_part(tmp_path, "a", 0, [clip_line(1, 2.0)]), watch.Watcher(tmp_path)
    with path.open("a") as file:
        file.write(json.dumps(clip_line(2, 0.5, False))[:20])
    assert watcher.read()[0].values() == ["0", "1", "2", "1", "100% of 1", "100%", "-", "-"]
    with path.open("a") as file:
        file.write(json.dumps(clip_line(2, 0.5, False))[20:] + "\n")
        file.write(json.dumps({"step": 2, "logged": {"loss": 1.25, "accuracy": 0.5}}) + "\n")
        file.write(
            json.dumps({"step": 2, "optimizer": "SGD", "settings": {"lr": [0.1, 0.01]}, "losses": [3.0, 2.5]}) + "\n"
        )
    assert watcher.read()[0].values() == ["0", "1", "0.5", "1", "50% of 2", "50%", "2.5", "0.1 (largest of 2)"]


def test_the_recent_share_counts_only_the_last_calls_with_a_known_result(tmp_path: Path) -> None:
    lines = [clip_line(step, 2.0, step <= 100) for step in range(1, 201)] + [clip_line(201, None, None)]
    write_part(tmp_path, "a", None, [*lines, clip_line(202, ["nan", 3.0, 1.0]), {"step": 203, "error": "no gradient"}])
    (process,) = watch.Watcher(tmp_path).read()
    assert process.values()[1:6] == ["202", "3 (largest of 3)", "1", "50% of 201", "1%"]


def test_a_clip_by_value_has_two_bounds_and_no_norm(tmp_path: Path) -> None:
    write_part(tmp_path, "a", 0, [{**clip_line(1, None), "rule": "value", "threshold": [-0.5, 1.0]}])
    assert watch.Watcher(tmp_path).read()[0].values()[2:4] == ["-", "-0.5 to 1"]


def test_each_rank_has_a_line_up_to_a_limit(tmp_path: Path) -> None:
    for rank in range(10):
        write_part(tmp_path, f"{9 - rank}", rank, [clip_line(1, float(rank + 1))])
    processes = watch.Watcher(tmp_path).read()
    assert [process.rank for process in processes] == list(range(10))
    assert len(watch.lines_of(processes)) == 9
    assert watch.lines_of(processes)[-1] == "unified-clip: 2 more processes"


def test_lines_are_printed_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "INTERVAL", 0.01)
    write_part(tmp_path, "a", 0, [clip_line(1, 2.0)])
    with watch.watching(tmp_path):
        threading.Event().wait(0.3)
    printed = capsys.readouterr()
    assert printed.out == ""
    line = "unified-clip: rank 0, step 1, norm 2, threshold 1, clipped 100% of 1, last 100 100%"
    assert printed.err.splitlines() == [line, line], "once while it runs, and once at the end"


# -- the command


@pytest.mark.nightly
def test_stdout_is_unchanged(folder: Path) -> None:
    alone = subprocess.run(
        [sys.executable, str(folder / "train.py")], env=ENVIRONMENT, capture_output=True, check=False
    )
    watched = subprocess.run(command(folder, "--watch"), env=ENVIRONMENT, capture_output=True, check=False, timeout=60)
    assert (watched.returncode, watched.stdout) == (5, alone.stdout)
    expected = "unified-clip: step 60, norm 63.07, threshold 1, clipped 100% of 60, last 100 100%\n"
    assert watched.stderr.decode() == expected
