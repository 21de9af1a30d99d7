"""Run two training steps, each in a process of its own, on the same weights and batches."""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _install, _workers
from .._scratch import Scratch
from ..tensors import files
from ..tensors.files import safetensors
from ..tensors.types import PARTS, Dense, Gradient, UnreadableError, densify
from .worker import ENDED, PARTS_GIVEN, RECORDING

WORKER = "unified_clip.verify.worker"

TOGETHER = ("tensorflow", "paddle")
"""Packages of which a process may import one."""

Arrays = Mapping[str, npt.NDArray[Any]]


class VerifyError(Exception):
    """A file or the command is wrong: what, where, and what to do instead."""


class WorkerError(Exception):
    """A process crashed or hung: the signal, and its last lines."""


@dataclass(frozen=True)
class Script:
    """A function of a file, and the interpreter that runs it."""

    side: str
    """"old" or "new"."""

    file: Path
    name: str
    text: str
    """Both, as they were given."""

    python: str = sys.executable

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Given:
    """What a function gave after a step; None for what it did not give."""

    parameters: Mapping[str, Dense]
    gradients: Mapping[str, Dense] | None
    unclipped: Mapping[str, Dense] | None


@dataclass(frozen=True)
class Ran:
    """A function that has run: what it gave after each step, or once, and what was recorded."""

    script: Script
    given: Sequence[Given]
    directory: Path
    """Where the recording is, and its gradients."""

    yields: bool
    """Whether it gave something after each step; what returns once gives it after the last."""

    @property
    def recording(self) -> Path:
        return self.directory / RECORDING


def at_step(ran: Ran, step: int, steps: int) -> Given | None:
    """What a function gave after a step."""
    index = step - 1 if ran.yields else step - steps
    return ran.given[index] if 0 <= index < len(ran.given) else None


def script(side: str, text: str, python: str | None) -> Script:
    """`old.py:step`, as the command line has it."""
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise VerifyError(f"{text!r} names no file and a function in it; write {side}.py:step")
    if not Path(file).is_file():
        raise VerifyError(f"{file} is no file; name one and a function in it, as in {side}.py:step")
    if set(TOGETHER) <= _imports(Path(file)):
        raise VerifyError(
            f"{file} imports {' and '.join(TOGETHER)}, which crash in one process; put the two steps into files of "
            "their own, or import them inside the functions"
        )
    return Script(side, Path(file).absolute(), name, text, python or sys.executable)


def _imports(file: Path) -> set[str]:
    """The packages that a file imports when it is imported itself; none of one that cannot be read."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return set()
    plain = {alias.name for each in body if isinstance(each, ast.Import) for alias in each.names}
    others = {each.module or "" for each in body if isinstance(each, ast.ImportFrom) and not each.level}
    return {name.partition(".")[0] for name in plain | others}


def read_weights(path: Path, scratch: Path) -> Arrays:
    """Of any file that holds gradients: see `docs/gradient_files.md`."""
    try:
        return {name: _array(name, each) for name, each in files.read(path, scratch).items()}
    except UnreadableError as error:
        raise VerifyError(f"--weights {error}") from None


def _array(name: str, weight: Gradient) -> npt.NDArray[Any]:
    dense = densify(weight)
    assert dense is not None
    if dense.dtype == "bfloat16":
        raise VerifyError(f"--weights has {name!r} in bfloat16, which NumPy has not; save it as float32")
    return np.ascontiguousarray(dense.array).view(dense.dtype)[..., 0] if dense.dtype in PARTS else dense.array


def read_batches(path: Path, steps: int | None) -> Arrays:
    """Arrays whose first axis is the step, the first so many steps of them."""
    try:
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise VerifyError(f"--batches {path} is one array without a name; save it by name, with np.savez")
        with stored:
            batches = dict(stored)
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise VerifyError(f"--batches {path} cannot be read: {error}; save one with np.savez") from None
    lengths = {name: each.shape[0] if each.ndim else 0 for name, each in batches.items()}
    if not lengths or len(set(lengths.values())) > 1 or not min(lengths.values()):
        told = ", ".join(f"{name} has {length}" for name, length in lengths.items()) or "it holds no array"
        raise VerifyError(f"--batches {path}: the first axis of each array is the step, and all have as many; {told}")
    count = min(lengths.values())
    if steps is not None and not 1 <= steps <= count:
        raise VerifyError(f"--steps is {steps}, and {path} has batches for {count}")
    return {name: each[:steps] for name, each in batches.items()}


def run(scripts: Sequence[Script], weights: Arrays, batches: Arrays, out: Path, timeout: float) -> list[Ran]:
    """Run them side by side; what each leaves goes into a directory of `out` that is called like its side.

    Raises:
        VerifyError: A function, or what it gave, is not as it should be.
        WorkerError: A process crashed, or took longer than `timeout` seconds.
    """
    with ExitStack() as stack:
        scratch = stack.enter_context(Scratch("verify"))
        np.savez(scratch.path / "weights.npz", **weights)  # type: ignore[arg-type]  # names are any strings
        np.savez(scratch.path / "batches.npz", **batches)  # type: ignore[arg-type]
        workers = []
        for each in scripts:
            (out / each.side).mkdir()
            workers.append(stack.enter_context(_start(each, scratch, out / each.side)))
        until = time.monotonic() + timeout
        for each, worker in zip(scripts, workers, strict=True):
            end = worker.wait(max(0.0, until - time.monotonic()))
            if end.code is None:
                raise WorkerError(f"{each} has not ended after {timeout:g} seconds; {end}; see --timeout")
            if end.code:
                raise WorkerError(f"{each} ended with {end}{_not_installed(each, end)}")
    return [_read(each, out / each.side, len(next(iter(batches.values())))) for each in scripts]


def _start(script: Script, scratch: Scratch, out: Path) -> _workers.Worker:
    arguments = [script.python, "-X", "faulthandler", "-m", WORKER, str(script.file), script.name]
    try:
        return _workers.Worker([*arguments, str(scratch.path), str(out)], scratch)
    except OSError as error:
        raise VerifyError(
            f"{script.python} cannot be started: {error.strerror}; name an interpreter with --python-{script.side}"
        ) from None


def _not_installed(script: Script, end: _workers.Exit) -> str:
    """Return the command that installs what another interpreter lacks; '' if it lacks nothing."""
    if script.python == sys.executable or not end.stderr or not end.stderr[-1].startswith("ModuleNotFoundError"):
        return ""
    return f". Install what the file imports for that interpreter: {script.python} -m {_install.command('cli')}"


def _read(script: Script, out: Path, steps: int) -> Ran:
    try:
        ended = json.loads((out / ENDED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise WorkerError(f"{script} ended its process before it had done its steps; let it return") from None
    if "refused" in ended:
        raise VerifyError(f"{script}: {ended['refused']}")
    count = ended["given"]
    if ended["yields"] and count != steps:
        raise VerifyError(
            f"{script} yielded {count} time{'s' * (count != 1)}, and there are {steps} batches; yield once after each"
        )
    return Ran(script, [_given(out / f"{each}.safetensors") for each in range(1, count + 1)], out, ended["yields"])


def _given(path: Path) -> Given:
    stored = safetensors.load(path)
    parts: dict[str, dict[str, Dense]] = {}
    for key, tensor in stored.items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    parameters, gradients, unclipped = (parts.get(part) for part in PARTS_GIVEN)
    return Given(parameters or {}, gradients, unclipped)
