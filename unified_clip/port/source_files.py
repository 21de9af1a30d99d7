"""Port many files in parallel, and write all of them or none."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from .catalog import words
from .clip_site import PortedFile, Target, UnreadableFile
from .rewrite import port
from .source.parse_guard import TOO_DEEP, UnreadableError

SKIPPED = ("__pycache__", "node_modules", "site-packages")
FEW = 20
"""Up to this many files are ported in this process: starting others takes longer."""

KILLER = "Reading it crashes the process."

Advance = Callable[[int], None]


class PortError(Exception):
    """Files cannot be ported or written. The message says why, and what to do."""


def sources(path: Path) -> list[Path]:
    """Return a file, or all Python files below a directory, in order, each once. Virtual environments and hidden
    directories are skipped.

    Raises PortError.
    """
    if path.suffix == ".ipynb" and path.is_file():
        raise PortError(f"{path}: notebooks are not supported. Convert it: jupyter nbconvert --to script {path.name}")
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise PortError(f"{path}: no such file or directory")
    found = {each.resolve(): each for each in sorted(_below(path), key=lambda each: (not each.is_symlink(), each))}
    if not found:
        raise PortError(f"{path}: it contains no Python files")
    return sorted(found.values())


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not _is_skipped(here / name))
        found = (here / name for name in names if name.endswith(".py"))
        yield from (
            path for path in found if path.is_file() or not path.exists()
        )  # pipes are skipped, broken links are not


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in SKIPPED or (folder / "pyvenv.cfg").exists()


def port_all(
    paths: Sequence[Path], target: Target = "torch", native: bool = False, advance: Advance = lambda count: None
) -> tuple[list[PortedFile], list[UnreadableFile]]:
    """Port files, many of them in several processes. Nothing is written.

    Returns:
        The files that were read, and the unreadable ones, in order. Files without a clip come without their content.
    """
    found = {path: _looked_into(path) for path in paths}
    candidates = [path for path, result in found.items() if result is None]
    advance(len(paths) - len(candidates))
    with closing(_mapped(partial(_port_one, target=target, native=native), candidates)) as results:
        for path, result in zip(candidates, results, strict=True):
            found[path] = result
            advance(1)
    ported = [each for each in found.values() if isinstance(each, PortedFile)]
    return ported, [each for each in found.values() if isinstance(each, UnreadableFile)]


def _looked_into(path: Path) -> PortedFile | UnreadableFile | None:
    """Return the result of a file that contains no clip or is unreadable; None for a file to port."""
    try:
        return None if words().search(path.read_bytes()) else PortedFile(path, b"", b"")
    except OSError as error:
        return UnreadableFile(path, f"It cannot be read: {error.strerror}.")


def _mapped(
    work: Callable[[Path], PortedFile | UnreadableFile], paths: Sequence[Path]
) -> Generator[PortedFile | UnreadableFile, None, None]:
    if len(paths) <= FEW:
        yield from map(work, paths)
        return
    with _processes(os.cpu_count()) as pool:
        started = [(path, _started(pool, work, path)) for path in paths]
        results = ((path, _result(future)) for path, future in started)
        yield from _with_lost(work, results)


@contextmanager
def _processes(count: int | None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool. If the block raises, as at Ctrl-C, end its workers at once: no queued file is ported."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
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
    """Hold SIGINT back. Processes started meanwhile ignore it for good: this process ends them, without tracebacks."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _started(
    pool: ProcessPoolExecutor, work: Callable[[Path], PortedFile | UnreadableFile], path: Path
) -> Future[PortedFile | UnreadableFile]:
    try:
        with _without_interrupts():
            return pool.submit(work, path)
    except BrokenProcessPool as error:  # already
        lost: Future[PortedFile | UnreadableFile] = Future()
        lost.set_exception(error)
        return lost


def _result(future: Future[PortedFile | UnreadableFile]) -> PortedFile | UnreadableFile | None:
    """Return the result of a file; None if its process crashed."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None


def _with_lost(
    work: Callable[[Path], PortedFile | UnreadableFile],
    results: Iterator[tuple[Path, PortedFile | UnreadableFile | None]],
) -> Iterator[PortedFile | UnreadableFile]:
    """Yield all results. Port files lost with a process one by one, to find the file that crashes it."""
    with ExitStack() as pools:
        alone = None
        for path, result in results:
            if result is None:
                alone = alone or pools.enter_context(_processes(1))
                result = _result(_started(alone, work, path))
                if result is None:
                    alone, result = None, UnreadableFile(path, KILLER)
            yield result


def _port_one(path: Path, target: Target, native: bool) -> PortedFile | UnreadableFile:
    try:
        ported = port(path, path.read_bytes(), target, native)
        return ported if ported.sites else PortedFile(path, b"", b"")
    except UnreadableError as error:
        return UnreadableFile(path, str(error))
    except OSError as error:
        return UnreadableFile(path, f"It cannot be read: {error.strerror}.")
    except RecursionError:
        return UnreadableFile(path, TOO_DEEP)


# -- writing


def check_clean(changed: Sequence[Path]) -> None:
    """Check that git can restore the files that are about to change: each one matches the last commit.

    Raises PortError.
    """
    git = shutil.which("git")
    if git is None:
        raise PortError("git is not installed, so --write could not be undone. Install git, or add --force.")
    by_folder: dict[Path, list[Path]] = {}
    for path in changed:
        by_folder.setdefault(path.resolve().parent, []).append(path)
    for folder, paths in by_folder.items():
        committed = _committed(git, folder, paths[0])
        if others := [path for path in paths if path.resolve().name not in committed]:
            names = shlex.join(path.resolve().name for path in others)
            raise PortError(
                f"{others[0]} is not committed in git, so --write could not be undone. {_commit(folder, names)}"
            )


def _committed(git: str, folder: Path, path: Path) -> set[str]:
    """Return the names of the files in a directory that match the last commit.

    Raises PortError: there is no repository, or it has no commit. `path`: for the message.
    """

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        english = {**os.environ, "LC_ALL": "C"}
        return subprocess.run([git, "-C", str(folder), *arguments], capture_output=True, check=False, env=english)

    repository = run("rev-parse", "--is-inside-work-tree")
    if repository.returncode or repository.stdout.strip() != b"true":
        reason = " ".join(repository.stderr.decode(errors="replace").split())
        if not reason or "not a git repository (or any" in reason:
            raise PortError(
                f"{path} is not in a git repository, so --write could not be undone. Create one, or add --force: "
                f"{_git(folder)} init"
            )
        raise PortError(f"git cannot read the repository of {path}: {reason}")
    if run("rev-parse", "--quiet", "--verify", "HEAD").returncode:
        raise PortError(
            f"The git repository of {path} has no commit yet, so --write could not be undone. {_commit(folder, '-A')}"
        )
    names = []
    for command in (("ls-tree", "--name-only", "HEAD"), ("diff", "HEAD", "--name-only", "--relative")):
        answer = run(*command, "-z", "--", ".")
        if answer.returncode:
            raise PortError(f"git cannot read {path}: {answer.stderr.decode(errors='replace').strip()}")
        names.append({os.fsdecode(name) for name in answer.stdout.split(b"\0")})
    in_commit, changed = names
    return in_commit - changed


def _commit(folder: Path, names: str) -> str:
    """Return the advice to commit files of a directory."""
    git = _git(folder)
    return f"Commit your files, or add --force: {git} add {names} && {git} commit -m 'Before porting'"


def _git(folder: Path) -> str:
    """Return the beginning of a git command for a directory."""
    return "git" if folder == Path.cwd() else f"git -C {shlex.quote(str(folder))}"


def write(ported: Sequence[PortedFile]) -> list[Path]:
    """Write all changed files, each atomically. If one cannot be written, none is.

    Returns:
        The files that were written.

    Raises PortError: nothing was changed.
    """
    changed = [each for each in ported if each.is_changed]
    made: dict[Path, Path] = {}
    done: list[PortedFile] = []
    try:
        for each in changed:
            path = each.path.resolve()
            if path.read_bytes() != each.before:
                raise PortError(f"{each.path}: another program changed it. Run the command again.")
            made[path] = _beside(path, each.after)
        for each in changed:
            path = each.path.resolve()
            done.append(each)
            made[path].replace(path)
            del made[path]
    except BaseException as error:
        for each in done:
            _put_back(each)
        if isinstance(error, OSError):
            raise PortError(f"{error.filename}: it cannot be written: {error.strerror}. Nothing was changed.") from None
        raise
    finally:
        for left in made.values():
            left.unlink(missing_ok=True)
    return [each.path for each in changed]


def is_written(ported: PortedFile) -> bool:
    """Return whether a file holds its ported content."""
    return ported.is_changed and ported.path.read_bytes() == ported.after


def _put_back(ported: PortedFile) -> None:
    """Restore the content of a file."""
    path = ported.path.resolve()
    if path.read_bytes() != ported.before:
        _beside(path, ported.before).replace(path)


def _beside(path: Path, content: bytes) -> Path:
    """Create a file with this content and the same mode in the same directory."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        made = Path(file.name)
        try:
            file.write(content)
            shutil.copymode(path, made)
        except BaseException:
            made.unlink(missing_ok=True)
            raise
    return made
