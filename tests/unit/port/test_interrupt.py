"""`unified-clip port` on many files ends at Ctrl-C: no worker, no traceback and no half-written file is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unified_clip import cli
from unified_clip.port import port_files
from unified_clip.port.ported_clip import PortedFile

CLIP = "import torch\n\ntorch.nn.utils.clip_grad_norm_(parameters, 1.0)\n"
SLOW = CLIP + "".join(f"def f{number}(a, b):\n    return [a + b * {number} for c in a]\n\n\n" for number in range(1500))
MANY = 60
SECONDS = 30


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    for number in range(MANY):
        (tmp_path / "src" / f"{number:03}.py").write_text(SLOW)
    return tmp_path / "src"


def workers(group: int) -> set[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return {int(pid) for pid, its_group, stat in rows if int(its_group) == group != int(pid) and stat[0] != "Z"}


@pytest.mark.nightly
@pytest.mark.skipif(os.name != "posix", reason="process groups of POSIX")
@pytest.mark.parametrize("whole_group", [True, False], ids=["the terminal's Ctrl-C", "a signal to the command alone"])
@pytest.mark.usefixtures("heeds_ctrl_c")
def test_an_interrupt_ends_the_command_and_its_workers(project: Path, whole_group: bool) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in project.iterdir()}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "unified_clip", "port", str(project), "--write", "--force"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + SECONDS
        while len(workers(process.pid)) < 2 and time.monotonic() < deadline:  # the resource tracker and a worker
            time.sleep(0.05)
        time.sleep(1)
        assert process.poll() is None, process.communicate()
        sent = time.monotonic()
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        took = time.monotonic() - sent
    finally:
        deadline = time.monotonic() + 5  # the resource tracker ends after the command
        while (left := workers(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is None or left:
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out, err) == (130, "", "unified-clip: interrupted. No file was changed.\n")
    assert took < 5
    assert left == set()
    assert {path.name: path.stat().st_mtime_ns for path in project.iterdir()} == before


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "No file was changed"),
        (["--write", "--force"], "Files changed: 2"),
    ],
)
def test_an_interrupt_while_the_report_is_printed_reports_what_was_written(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(CLIP)
    monkeypatch.setattr("unified_clip.port.cli._print", interrupt)
    assert cli.main(["port", str(tmp_path), *options]) == 130
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1]) == ("", f"unified-clip: interrupted. {message}.")
    assert ("unified_clip" in (tmp_path / "a.py").read_text()) == ("--write" in options)


def test_a_file_that_did_not_change_does_not_count_as_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(CLIP)
    assert not port_files.is_written(PortedFile(path, b"", b""))
    assert not port_files.is_written(PortedFile(path, CLIP.encode(), b"new"))
    assert port_files.is_written(PortedFile(path, b"old", CLIP.encode()))


def test_an_interrupt_of_any_command_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unified_clip.ClipConfig.import_from", interrupt)
    assert cli.main(["explain", str(tmp_path / "clip.toml")]) == 130
    assert capsys.readouterr() == ("", "unified-clip: interrupted\n")
