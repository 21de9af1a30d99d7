"""Read and write files. tests/meta/test_file_access.py checks that no other module opens a file without a reason."""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from .coded_error import CodedError

LARGEST = 64 << 20
"""In bytes. Larger files are no configurations, scripts or notebooks."""

LARGEST_REPORT = 4 << 30
"""In bytes, for recordings and reports."""

NUMBERS = itertools.count()

PERMISSIONS = "Pass another path, or change the permissions"
REMEDIES = {
    errno.EACCES: PERMISSIONS,
    errno.EPERM: PERMISSIONS,
    errno.ENAMETOOLONG: "Pass a path with shorter names",
    errno.ENOSPC: "Free disk space, or pass another path",
    errno.EDQUOT: "Free disk space, or pass another path",
    errno.EINVAL: "Save the data in a file, and pass this file",
    errno.EFBIG: "Pass a smaller file",
    errno.EILSEQ: "Save the file as UTF-8",
}


class FileError(CodedError, OSError, code="UC207"):
    """A file cannot be read or written."""

    __str__ = Exception.__str__  # OSError would print its number


def failure(error: OSError, path: object, problem: str, code: str = "") -> FileError:
    if isinstance(error, FileError):
        return error
    remedy = REMEDIES.get(error.errno or 0, "Correct the path, or pass another path")
    failed = FileError(f"{path} {problem}: {error.strerror or error}. {remedy}.", code)
    failed.errno, failed.strerror = error.errno, error.strerror
    return failed


@contextmanager
def reading(path: Path, limit: int | None = None) -> Iterator[IO[bytes]]:
    """Open a file. Refuse what could block or never end, such as a named pipe or /dev/zero."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            if limit is not None and os.fstat(file.fileno()).st_size > limit:
                raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB")
            yield file
    except OSError as error:
        raise failure(error, path, "cannot be read") from None


def check_regular(path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()  # whether it can be read at all
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a regular file")
    except OSError as error:
        raise failure(error, path, "cannot be read") from None


def read_bytes(path: Path, limit: int | None = LARGEST) -> bytes:
    with reading(path, limit) as file:
        return file.read()


def read_text(path: Path, limit: int | None = LARGEST, errors: str = "strict") -> str:
    with reading(path, limit) as file:
        try:
            with io.TextIOWrapper(file, "utf-8-sig", errors) as text:
                return text.read()
        except UnicodeDecodeError as error:
            problem = f"byte {error.start} is not UTF-8"
            raise OSError(errno.EILSEQ, problem) from None


def write(path: Path, content: str | bytes) -> None:
    """Write a file completely. After an error, the file has its old content."""
    write_all({path: content})


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Write several files. After an error or Ctrl-C, every existing file has its old content."""
    new: dict[Path, Path] = {}
    old: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            if path.exists() and not (path.is_file() or path.is_dir()):  # such as /dev/stdout
                path.write_bytes(_encoded(content))
            else:
                new[path] = write_beside(path, content)
        for path in new if len(new) > 1 else ():
            if path.exists():
                old[path] = write_beside(path, path.read_bytes())
        for path in new:
            new[path].replace(Path(os.path.realpath(path)))
    except BaseException as error:
        for each, copy in old.items():
            copy.replace(Path(os.path.realpath(each)))
        if isinstance(error, OSError):
            raise unwritable(path, error) from None
        raise
    finally:
        for each in (*new.values(), *old.values()):
            with suppress(OSError):
                each.unlink()


def write_beside(path: Path, content: str | bytes) -> Path:
    """Write a new file next to `path`, with the mode and owner of `path`. Return the path of the new file."""
    target = Path(os.path.realpath(path))
    # Not made from the name of `path`: a longer name might exceed a limit of the file system.
    new = target.with_name(f".unified-clip.{os.getpid()}.{next(NUMBERS)}")
    try:
        new.write_bytes(_encoded(content))
        if target.exists():
            if hasattr(os, "chown"):
                with suppress(PermissionError):
                    os.chown(new, target.stat().st_uid, target.stat().st_gid)
            shutil.copymode(target, new)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    return new


def check_writable(path: Path) -> None:
    """Raise FileError if `path` cannot be written. Make no file."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if path.is_file() or not path.exists():
            write_beside(path, b"").unlink()
    except OSError as error:
        raise unwritable(path, error) from None


def make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: object, error: OSError) -> FileError:
    return failure(error, path, "cannot be written", "UC205")


def _encoded(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
