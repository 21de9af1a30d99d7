"""`unified-clip record --watch` shows the numbers of all processes. The output of the command is unchanged."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import threading
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from unified_clip import cli
from unified_clip.recording import runs
from unified_clip.recording.launch import watch

ENVIRONMENT = {
    **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1", "TERM": "xterm"
}  # fmt: skip

TRAIN = """
    import sys, time
    import numpy as np
    import unified_clip

    print(f"terminal: {sys.stdout.isatty()}", flush=True)
    for step in range(60):
        unified_clip.clip_by_global_norm([np.array([3.0, 4.0 + step])], 1.0)
        print(f"output of step {step}", flush=True)
        time.sleep(0.03)
    sys.exit(5)
"""

ROWS, WIDTH = 12, 100


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
    assert watcher.read()[0].cells() == ["0", "1", "2", "1", "100% of 1", "100%", "-", "-"]
    with path.open("a") as file:
        file.write(json.dumps(clip_line(2, 0.5, False))[20:] + "\n")
        file.write(json.dumps({"step": 2, "logged": {"loss": 1.25, "accuracy": 0.5}}) + "\n")
        file.write(
            json.dumps({"step": 2, "optimizer": "SGD", "settings": {"lr": [0.1, 0.01]}, "losses": [3.0, 2.5]}) + "\n"
        )
    assert watcher.read()[0].cells() == ["0", "1", "0.5", "1", "50% of 2", "50%", "2.5", "0.1 (largest of 2)"]


def test_the_recent_share_counts_only_the_last_calls_with_a_known_result(tmp_path: Path) -> None:
    lines = [clip_line(step, 2.0, step <= 100) for step in range(1, 201)] + [clip_line(201, None, None)]
    write_part(tmp_path, "a", None, [*lines, clip_line(202, ["nan", 3.0, 1.0]), {"step": 203, "error": "no gradient"}])
    (process,) = watch.Watcher(tmp_path).read()
    assert process.cells()[1:6] == ["202", "3 (largest of 3)", "1", "50% of 201", "1%"]


def test_a_clip_by_value_has_two_bounds_and_no_norm(tmp_path: Path) -> None:
    write_part(tmp_path, "a", 0, [{**clip_line(1, None), "rule": "value", "threshold": [-0.5, 1.0]}])
    assert watch.Watcher(tmp_path).read()[0].cells()[2:4] == ["-", "-0.5 to 1"]


def test_each_rank_has_a_row_up_to_a_limit(tmp_path: Path) -> None:
    for rank in range(10):
        write_part(tmp_path, f"{9 - rank}", rank, [clip_line(1, float(rank + 1))])
    processes = watch.Watcher(tmp_path).read()
    assert [process.rank for process in processes] == list(range(10))
    assert watch.plain_lines(processes)[-1] == "unified-clip: 2 more processes"


@pytest.mark.parametrize(
    ("processes", "height", "rows", "last"),
    [
        (10, 60, 8, "2 more processes"),
        (8, 27, 8, ""),
        (8, 26, 6, "2 more processes"),
        (8, 24, 6, "2 more processes"),
        (7, 24, 7, ""),
        (9, 27, 7, "2 more processes"),
        (9, 30, 8, "1 more process"),
        (1, 6, 1, ""),
        (2, 9, 2, ""),
        (3, 9, 1, "2 more processes"),
        (0, 6, 1, "waiting for the first clip call"),
    ],
)
def test_the_table_takes_up_to_a_third_of_the_terminal(
    tmp_path: Path, processes: int, height: int, rows: int, last: str
) -> None:
    for rank in range(processes):
        write_part(tmp_path, str(rank), rank, [clip_line(1, 2.0)])
    lines = watch.table_lines(watch.Watcher(tmp_path).read(), os.terminal_size((120, height)))
    assert len(lines) == 1 + rows + (" more process" in last)
    assert 3 * len(lines) <= height
    assert lines[-1].strip() == last or not last


@pytest.mark.parametrize(("processes", "height"), [(0, 5), (1, 5), (2, 8)])
def test_there_is_no_table_if_no_process_fits(tmp_path: Path, processes: int, height: int) -> None:
    for rank in range(processes):
        write_part(tmp_path, str(rank), rank, [clip_line(1, 2.0)])
    assert watch.table_lines(watch.Watcher(tmp_path).read(), os.terminal_size((120, height))) == []


@pytest.mark.parametrize("lines", [[], ["many"] * 9])
def test_a_table_that_does_not_fit_replaces_the_old_one(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((120, 24)))
    with TemporaryFile("w+") as stream:
        terminal = watch.Terminal(stream)
        terminal.draw(["old"])
        drawn = os.fstat(stream.fileno()).st_size
        terminal.draw(lines)
        stream.seek(drawn)
        assert stream.read() == "\x1b7\x1b[r\x1b[24;1H\x1b[J\x1b8"


def test_plain_lines_are_printed_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "PLAIN_INTERVAL", 0.01)
    write_part(tmp_path, "a", 0, [clip_line(1, 2.0)])
    with watch.watching(tmp_path):
        threading.Event().wait(0.3)
    printed = capsys.readouterr()
    assert printed.out == ""
    line = "unified-clip: rank 0, step 1, norm 2, threshold 1, clipped 100% of 1, last 100 100%"
    assert printed.err.splitlines() == [line, line], "once while it runs, and once at the end"


# -- the command


@pytest.mark.nightly
def test_stdout_is_unchanged_if_it_is_no_terminal(folder: Path) -> None:
    alone = subprocess.run(
        [sys.executable, str(folder / "train.py")], env=ENVIRONMENT, capture_output=True, check=False
    )
    watched = subprocess.run(command(folder, "--watch"), env=ENVIRONMENT, capture_output=True, check=False, timeout=60)
    assert (watched.returncode, watched.stdout) == (5, alone.stdout)
    expected = "unified-clip: step 60, norm 63.07, threshold 1, clipped 100% of 60, last 100 100%\n"
    assert watched.stderr.decode() == expected


ROW = r"-\s+\d+\s+[\d.]+\s+1\s+100% of \d+\s+100%\s+-\s+-\s*"


@pytest.mark.nightly
@pytest.mark.parametrize("ends", ["by itself", "by Ctrl-C"])
def test_on_a_terminal_every_line_of_the_command_stays_above_the_view(folder: Path, ends: str) -> None:
    output = run_in_terminal(
        command(folder, "--watch"), interrupt_at=b"output of step 30" if ends == "by Ctrl-C" else None
    )
    screen = Screen(output)
    steps = [line for line in screen.lines() if line.startswith("output of step")]
    count = 60 if ends == "by itself" else 30
    assert steps[:count] == [f"output of step {step}" for step in range(count)]
    assert "terminal: True" in screen.lines()
    assert screen.region == (0, ROWS - 1), "the whole terminal scrolls again"
    assert not any("learning rate" in line and "unified-clip" not in line for line in screen.lines())
    assert sum(line.startswith("unified-clip: step") for line in screen.lines()) == 1
    rows = [frame[-1] for frame in screen.frames if "norm" in frame[-2]]
    with_numbers = [row for row in rows if re.search(r"\d", row)]
    assert with_numbers
    assert rows[-len(with_numbers) :] == with_numbers, "rows are empty before the first call only"
    assert not [row for row in with_numbers if not re.fullmatch(ROW, row)]
    assert [line.step for line in runs.read(folder / "run.jsonl").lines][:count] == list(range(1, count + 1))


def test_a_terminal_without_rich_is_an_error_before_the_command_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "has_live_view", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main(["record", "--watch", str(folder / "run.jsonl"), "--", "false"]) == 2
    assert "--watch needs rich, which is not installed. Install the extra `cli`: pip install" in capsys.readouterr().err
    assert not (folder / "run.jsonl").exists()


def run_in_terminal(arguments: list[str], interrupt_at: bytes | None) -> str:
    process, terminal = pty.fork()
    if process == 0:
        os.write(1, b"full screen\n" * ROWS)
        os.execve(arguments[0], arguments, ENVIRONMENT)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, WIDTH, 0, 0))
    data = b""
    while True:
        try:
            data += os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
        if interrupt_at and interrupt_at in data:
            os.write(terminal, b"\x03")
            interrupt_at = None
    os.waitpid(process, 0)
    os.close(terminal)
    return data.decode()


class Screen:
    def __init__(self, text: str) -> None:
        self.rows = [""] * ROWS
        self.history: list[str] = []
        self.frames: list[list[str]] = []
        self.region = (0, ROWS - 1)
        self.row = self.column = 0
        saved = (0, 0)
        for control, character in re.findall(r"(\x1b(?:[78]|\[[\d;]*[A-Za-z]))|([^\x1b])", text):
            if control == "\x1b7":
                saved = (self.row, self.column)
            elif control == "\x1b8":
                self.row, self.column = saved
                self.frames.append([*self.rows])
            elif control:
                self.control(control[-1], [int(number) for number in control[2:-1].split(";") if number])
            else:
                self.put(character)

    def control(self, kind: str, numbers: list[int]) -> None:
        if kind == "r":
            self.region = (numbers[0] - 1, numbers[1] - 1) if numbers else (0, ROWS - 1)
            self.row = self.column = 0
        elif kind == "H":
            self.row, self.column = numbers[0] - 1, numbers[1] - 1
        elif kind == "A":
            self.row = max(self.region[0], self.row - numbers[0])
        elif kind == "K":
            self.rows[self.row] = ""
        elif kind == "J":
            self.rows[self.row :] = [""] * (ROWS - self.row)
        else:
            assert kind == "m"

    def put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n" and self.row == self.region[1]:
            self.history.append(self.rows.pop(self.region[0]))
            self.rows.insert(self.region[1], "")
        elif character == "\n":
            self.row += 1
        else:
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def lines(self) -> list[str]:
        return [*self.history, *self.rows]
