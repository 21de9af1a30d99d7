"""Port files, many of them in parallel. If one file cannot be written, no file is changed."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path

from .._kit import atomic_files, workers
from .._kit.atomic_files import FileError
from .._kit.coded_error import CodedError
from .._kit.parse import TOO_DEEP, UnreadableSourceError
from ..source import local_imports
from ..source.directories import files_below
from ..source.module import Module
from ..source.project import Project
from . import suggested_code, verdicts
from .catalog import clip_pattern, may_clip
from .file_rewrite import FileRewrite
from .find import find, identifiers
from .ported_clip import UNUSED, PortedFile, Target, UnreadableFile

FORCE = "To change the files anyway, add --force."
PYTHON = ("", ".py", ".pyi", ".pyw")
"""A file without a suffix can be a script. If it is not Python, the report names it as not read."""

FEW_FILES = 20
"""With this number of files or fewer, one process is faster than several."""

Advance = Callable[[int], None]
Read = Callable[[Path], bytes]
Result = PortedFile | UnreadableFile
Work = Callable[[Path], Result]


class PortError(CodedError, code="UC401"):
    """Files cannot be ported or written."""


def sources(*paths: Path) -> list[Path]:
    files: dict[str, Path] = {}
    for file in chain.from_iterable(map(_below, paths)):
        files.setdefault(os.path.realpath(file), file)
    return list(files.values())


def _below(path: Path) -> list[Path]:
    if not path.is_dir():
        atomic_files.check_regular(path)
        if path.suffix.lower() not in PYTHON:
            remedy = "Pass Python files, or directories. Convert a notebook with `jupyter nbconvert --to script FILE`."
            raise PortError(f"{path}: this is not a Python file. {remedy}")
        return [path]
    files = files_below(path, (".py",))
    if not files:
        skipped = "Hidden directories, virtual environments and installed packages are skipped"
        remedy = "Pass another path. To port a skipped directory, pass the path of that directory."
        raise PortError(f"{path}: there are no Python files in this directory. {skipped}. {remedy}")
    return files


def port(
    path: Path, content: bytes, target: Target = "torch", *, edit: bool = True, module: Module | None = None
) -> PortedFile:
    """Port the clips of one file. With `edit=False`, only report them, which takes less time.

    module: The parsed file, if it is parsed already.
    """
    module = module or Module(content, path)
    if not clip_pattern().search(content) or not may_clip(identifiers(module)):
        return PortedFile(path, content, content)
    clips = find(module)
    file = FileRewrite(module, clips, target)
    verdicts.decide(file)
    # Calls that clamp something other than gradients are not reported.
    reported = [clip for clip in clips if not (clip.function.quiet and file.sites[clip].verdict == "left")]
    for clip in reported:
        site = file.sites[clip]
        if site.verdict == "flagged" and site.rule != UNUSED:
            site.suggestion = suggested_code.suggested_lines(module, clip, target, file.gradients)
    sites = sorted((file.sites[clip] for clip in reported), key=lambda site: (site.line, site.column))
    if not edit:
        return PortedFile(path, content, content, sites)
    file.renames.apply()
    return PortedFile(path, content, file.edits.to_bytes(), sites)


def port_all(
    paths: Sequence[Path],
    target: Target = "torch",
    advance: Advance = lambda count: None,
    edit: bool = True,
    project: Project | None = None,
) -> tuple[list[PortedFile], list[UnreadableFile]]:
    """Port files, without writing them. With `edit=False`, a file that names no clip is not parsed.

    project: Take the files from this project, which parses each file once, in this process.
    """
    read = project.read if project is not None else atomic_files.read_bytes
    results = {path: None if edit else _without_clip(path, read) for path in paths}
    candidates = [path for path, result in results.items() if result is None]
    advance(len(paths) - len(candidates))
    work = partial(_port_one, target=target, edit=edit, project=project)
    with closing(_results(work, candidates, in_one=project is not None)) as ported:
        for path, result in zip(candidates, ported, strict=True):
            results[path] = result
            advance(1)
    return (
        [result for result in results.values() if isinstance(result, PortedFile)],
        [result for result in results.values() if isinstance(result, UnreadableFile)],
    )


def imported_clips(paths: Sequence[Path]) -> list[UnreadableFile]:
    """Return the files with possible clips that `paths` import, also through other files, but that are not passed.

    In the `__init__.py` of an imported package, only follow the imports of the names that the importing file uses.
    """
    local_imports.searched_folders.cache_clear()
    passed = set(map(os.path.realpath, paths))
    importers: dict[Path, Path] = {}
    seen: set[tuple[str, str | None]] = set()
    waiting: list[tuple[Path, str | None]] = [(path, None) for path in paths]
    while waiting:
        importer, object_name = waiting.pop()
        with suppress(OSError):
            for file, name in local_imports.imported_files(importer, atomic_files.read_bytes(importer), object_name):
                path = file if importer.is_absolute() else Path(os.path.relpath(file))
                real, follow = os.path.realpath(file), name if file.name == "__init__.py" else None
                if (real, follow) not in seen:
                    seen.add((real, follow))
                    waiting.append((path, follow))
                    if real not in passed:
                        importers.setdefault(path, importer)
    ported, unread = port_all(sorted(importers), edit=False)
    for result in ported:
        if lines := [str(site.line) for site in result.sites if site.verdict != "left"]:
            place = f"line{'s' * (len(lines) > 1)} {', '.join(lines)}"
            reason = f"{importers[result.path]} imports this file, which may clip in {place}. Pass this file, too."
            unread.append(UnreadableFile(result.path, reason))
    return sorted(unread, key=lambda each: each.path)


def _without_clip(path: Path, read: Read) -> Result | None:
    with suppress(OSError):  # `_port_one` reports the error
        return None if clip_pattern().search(read(path)) else PortedFile(path, b"", b"")
    return None


def _results(work: Work, paths: Sequence[Path], *, in_one: bool = False) -> Generator[Result, None, None]:
    if in_one or len(paths) <= FEW_FILES:
        yield from map(work, paths)
        return
    try:
        with _processes() as pool:
            with _without_interrupts():
                futures = [pool.submit(work, path) for path in paths]
            for future in futures:
                yield future.result()
    except BrokenProcessPool:
        remedy = "To find the file, run the command again with fewer files or directories."
        raise PortError(f"A process crashed or ran out of memory while it read a file. {remedy}") from None


@contextmanager
def _processes() -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes. If an error occurs, stop the processes immediately."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        mp_context=multiprocessing.get_context("spawn"), initializer=workers.prepare, initargs=(os.getpid(),)
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        pool.shutdown()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Delay Ctrl-C, except on Windows. Processes that start in this block ignore Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _port_one(path: Path, target: Target, edit: bool, project: Project | None) -> Result:
    try:
        module = project.module(path) if project is not None else None
        content = project.read(path) if project is not None else atomic_files.read_bytes(path)
        ported = port(path, content, target, edit=edit, module=module)
        return ported if ported.sites else PortedFile(path, b"", b"")
    except UnreadableSourceError as error:
        return UnreadableFile(path, str(error))
    except FileError as error:
        return UnreadableFile(path, f"{error}")
    except RecursionError:
        return UnreadableFile(path, TOO_DEEP)


def check_clean(changed: Sequence[Path]) -> None:
    git = shutil.which("git")
    if git is None:
        raise PortError(f"git is not installed, so you could not undo the changes. Install git. {FORCE}", "UC402")
    by_folder: dict[Path, list[Path]] = {}
    for path in changed:
        by_folder.setdefault(path.resolve().parent, []).append(path)
    others = [path for folder, paths in by_folder.items() for path in _uncommitted(git, folder, paths)]
    if others:
        problem = f"{others[0]} has code that is not committed, so you could not undo the changes."
        raise PortError(f"{problem} {_commit_files(git, others)}", "UC402")


def _uncommitted(git: str, folder: Path, paths: Sequence[Path]) -> list[Path]:
    names = [path.resolve().name for path in paths]
    options = ["--porcelain", "--no-renames", "--untracked-files=all", "--ignored", "-z"]
    status = _run(git, folder, "--literal-pathspecs", "status", *options, "--", *names)
    if status.returncode:
        reason = " ".join(status.stderr.decode(errors="replace").split())
        if "not a git repository (or any" in reason:
            raise PortError(
                f"{paths[0]} is not in a git repository, so you could not undo the changes. Run `git init` in the top "
                f"directory of your project, and commit your files. {FORCE}",
                "UC402",
            )
        raise PortError(f"git cannot read the repository of {paths[0]}: {reason}. Repair it. {FORCE}", "UC402")
    changed = {os.fsdecode(entry)[len("XY ") :].rpartition("/")[2] for entry in status.stdout.split(b"\0")}
    return [path for path, name in zip(paths, names, strict=True) if name in changed]


def _run(git: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [git, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})


def _commit_files(git: str, paths: Sequence[Path]) -> str:
    tops = [_run(git, path.resolve().parent, "rev-parse", "--show-toplevel").stdout for path in paths]
    files = [path.resolve() for path, top in zip(paths, tops, strict=True) if top == tops[0]]
    folder = Path(os.path.commonpath([file.parent for file in files]))
    names = [file.relative_to(folder).as_posix() for file in files]
    is_ignored = _run(git, folder, "check-ignore", "--", *names).returncode == 0
    add = shlex.join(["add", *["-f"] * is_ignored, *names])
    command = "git" if folder == Path.cwd() else f"git -C {shlex.quote(str(folder))}"
    return f"Commit your files: `{command} {add} && {command} commit -m 'Before porting'`. {FORCE}"


def write(ported: Sequence[PortedFile]) -> list[Path]:
    """Write the changed files. After an error or Ctrl-C, every file has its old content."""
    changed = {file.path: file for file in ported if file.is_changed}
    for path, file in changed.items():
        if atomic_files.read_bytes(path) != file.before:
            problem = f"{path}: another program changed this file, so the command changed no file."
            raise PortError(f"{problem} Run the command again.", "UC403")
    try:
        atomic_files.write_all({path: file.after for path, file in changed.items()})
    except FileError as error:
        raise PortError(f"{error} No file was changed.", "UC403") from None
    return [*changed]


def is_written(ported: PortedFile) -> bool:
    return ported.is_changed and atomic_files.read_bytes(ported.path) == ported.after
