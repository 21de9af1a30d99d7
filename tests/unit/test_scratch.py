"""Temporary directories are removed with their process, even after SIGKILL, and never while a process uses them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unified_clip._kit import scratch
from unified_clip._kit.workers import Worker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock")

PARENT = """
import sys, time
from unified_clip._kit.scratch import Scratch
from unified_clip._kit.workers import Worker
scratch = Scratch("test")
(scratch.path / "data").write_text("x")
if sys.argv[1:]:
    Worker([sys.executable, "-c", "import time; time.sleep(600)"], scratch)
print(scratch.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    scratch._remove_abandoned_once.cache_clear()
    return tmp_path


def started(*arguments: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


@pytest.fixture
def living(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    process, path = started()
    with process:
        yield process, path
        process.kill()


def test_a_directory_is_removed_with_its_block(directory: Path) -> None:
    with scratch.Scratch("test") as own:
        assert own.path.is_dir()
        assert own.path.parent == directory
    assert not list(directory.iterdir())


def test_the_directory_of_a_killed_process_is_removed_by_the_next_one(
    living: tuple[subprocess.Popen[str], Path],
) -> None:
    process, path = living
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (path / "data").exists()
    with scratch.Scratch("test") as own:
        assert not path.exists()
        assert own.path.is_dir()


def test_the_directory_of_a_living_process_is_kept(living: tuple[subprocess.Popen[str], Path]) -> None:
    _, path = living
    with scratch.Scratch("test"), scratch.Scratch("test"):
        assert (path / "data").exists()


def test_other_directories_are_kept(directory: Path) -> None:
    """A directory without a lock may be in use. A link leads elsewhere. A lock may belong to another program."""
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / scratch.LOCK).touch()
    (directory / "unified_clip_verify_without").mkdir()
    (directory / "unified_clip_verify_link").symlink_to(elsewhere)
    linked = directory / "unified_clip_verify_linked"
    linked.mkdir()
    (linked / scratch.LOCK).symlink_to(elsewhere / scratch.LOCK)
    before = sorted(directory.iterdir())
    scratch.remove_abandoned(str(directory))
    assert sorted(directory.iterdir()) == before


def test_a_file_system_without_locks_is_used_without(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError("No locks available")

    monkeypatch.setattr(scratch.fcntl, "flock", unsupported)
    with scratch.Scratch("test") as own:
        assert own.lock is None
        scratch.remove_abandoned(str(directory))
        with Worker([sys.executable, "-c", "pass"], own) as worker:
            assert worker.wait(60).code == 0
    assert not list(directory.iterdir())


ORPHANED = """
import sys, time
from pathlib import Path
from unified_clip._kit import workers
workers.prepare()
Path(sys.argv[1]).touch()
time.sleep(600)
"""

STARTS = """
import sys
from unified_clip._kit.scratch import Scratch
from unified_clip._kit.workers import Worker
scratch = Scratch("test")
with Worker([sys.executable, "-c", sys.argv[1], sys.argv[2]], scratch) as worker:
    worker.wait(600)
"""


def test_a_prepared_worker_ends_after_its_killed_parent_and_its_directory_goes(directory: Path) -> None:
    started = directory / "started"
    with subprocess.Popen([sys.executable, "-c", STARTS, ORPHANED, str(started)]) as process:
        while process.poll() is None and not started.exists():
            time.sleep(0.05)
        process.kill()
    until = time.monotonic() + 20
    while list(directory.glob("unified_clip_*")) and time.monotonic() < until:
        scratch.remove_abandoned(str(directory))
        time.sleep(0.05)
    assert not list(directory.glob("unified_clip_*"))
