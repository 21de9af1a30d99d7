"""Reading and writing files: errors have a code, nothing blocks, and an error leaves the old content."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.full_disk import full_disk

from unified_clip import ClipConfig, record
from unified_clip._kit import atomic_files
from unified_clip._kit.atomic_files import FileError
from unified_clip.bench import report


def special(kind: str, directory: Path) -> Path:
    path = directory / f"{kind}.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.touch()
        os.truncate(path, atomic_files.LARGEST + 1)
    elif kind == "binary":
        path.write_bytes(b"a\xff")
    return {"zero": Path("/dev/zero"), "memory": Path("/proc/self/mem")}.get(kind, path)


KINDS = {
    "pipe": errno.EINVAL, "zero": errno.EINVAL, "loop": errno.ELOOP, "directory": errno.EISDIR, "large": errno.EFBIG,
    "memory": errno.EIO, "binary": errno.EILSEQ, "missing": errno.ENOENT,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_readable_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = special(kind, tmp_path)
    if kind in ("zero", "memory") and not path.exists():
        pytest.skip(f"there is no {path} here")
    with pytest.raises(FileError, match=f"^{path} cannot be read: ") as failure:
        atomic_files.read_text(path)
    assert failure.value.code == "UC207"
    assert failure.value.errno == KINDS[kind]


def test_text_is_read_without_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\xff")
    assert atomic_files.read_text(path, errors="replace") == "a\nb\ufffd"


def test_the_path_has_the_new_content_and_no_other_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    atomic_files.write(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_remains_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    atomic_files.write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_the_name_of_the_file_can_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    atomic_files.write(path, b"new")
    assert path.read_text() == "new"


def test_a_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received: list[str] = []
    reader = threading.Thread(target=lambda: received.append(path.read_text()))
    reader.start()
    atomic_files.write(path, "new")
    reader.join()
    assert received == ["new"]
    assert path.is_fifo()


def test_several_files_are_all_written_or_none(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("old")
    with full_disk(), pytest.raises(FileError, match=f"^{b} cannot be written: ") as failure:
        atomic_files.write_all({a: "new", b: "much too long"})
    assert failure.value.code == "UC205"
    assert a.read_text() == "old"
    assert list(tmp_path.iterdir()) == [a]
    atomic_files.write_all({a: "new", b: "short"})
    assert [path.read_text() for path in (a, b)] == ["new", "short"]


WRITERS: dict[str, Callable[[Path], object]] = {
    "clip.toml": lambda path: ClipConfig(rule="global_norm", threshold=1.0).save(path),
    "bench.json": lambda path: report.write({"results": [], "growth": []}, path.parent),
}


@pytest.mark.parametrize("name", WRITERS)
def test_on_a_full_disk_the_old_file_stays(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("old")
    with full_disk(), pytest.raises(FileError):
        WRITERS[name](path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_recording_on_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="part of a line"), record(tmp_path / "run.jsonl"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["directory", "missing/file", "file"])
def test_a_path_is_checked_before_the_work(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "directory":
        path.mkdir()
    if kind == "file":
        atomic_files.check_writable(path)
    else:
        with pytest.raises(FileError) as failure:
            atomic_files.check_writable(path)
        assert failure.value.code == "UC205"
    assert not path.is_file()
