"""Run two training steps on the same weights and batches, each in its own process."""

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
from .worker import ENDED, PARTS_GIVEN

TOGETHER = ("tensorflow", "paddle")
"""Packages that must not be imported into one process."""

Arrays = Mapping[str, npt.NDArray[Any]]


class VerifyError(Exception):
    """A file, a function or the command is invalid."""


class WorkerError(Exception):
    """A process crashed or hung."""


@dataclass(frozen=True)
class Script:
    """A training step: a function in a file, and the interpreter that runs it."""

    side: str
    """"old" or "new"."""

    file: Path
    name: str
    text: str
    """File and function as the user passed them."""

    python: str = sys.executable

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class StepOutput:
    """The tensors that a training step yields after a step; None for those that it does not."""

    parameters: Mapping[str, Dense]
    gradients: Mapping[str, Dense] | None
    unclipped: Mapping[str, Dense] | None


@dataclass(frozen=True)
class ScriptRun:
    """A finished training step: its outputs and its recording."""

    script: Script
    given: Sequence[StepOutput]
    """One for each step, or a single one after the last step."""

    directory: Path
    """The directory of the recording and its gradients."""

    yields: bool
    """Whether it yields after each step, or returns once after the last."""


def output_at(ran: ScriptRun, step: int, steps: int) -> StepOutput | None:
    """Return the output after a step; None if there is none."""
    index = step - 1 if ran.yields else step - steps
    return ran.given[index] if 0 <= index < len(ran.given) else None


def parse_script(side: str, text: str, python: str | None) -> Script:
    """Return the training step that `old.py:step` names on the command line.

    Raises:
        VerifyError: The text is invalid, or the file does not exist or cannot run.
    """
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise VerifyError(f"{text!r} names no file and function. Type it as {side}.py:step.")
    if not Path(file).is_file():
        raise VerifyError(f"{file} does not exist. Pass a file and a function in it, as in {side}.py:step.")
    if set(TOGETHER) <= _imports(Path(file)):
        raise VerifyError(
            f"{file} imports {' and '.join(TOGETHER)}, which crash in one process. Move each step into its own file, "
            "or import them inside the functions."
        )
    return Script(side, Path(file).absolute(), name, text, python or sys.executable)


def _imports(file: Path) -> set[str]:
    """Return the packages that a file imports at its top level; none if it cannot be read."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return set()
    plain = {alias.name for each in body if isinstance(each, ast.Import) for alias in each.names}
    others = {each.module or "" for each in body if isinstance(each, ast.ImportFrom) and not each.level}
    return {name.partition(".")[0] for name in plain | others}


def read_weights(path: Path, scratch: Path) -> Arrays:
    """Read weights from any file of `docs/gradient_files.md`."""
    try:
        return {name: _array(name, each) for name, each in files.read(path, scratch).items()}
    except UnreadableError as error:
        raise VerifyError(f"--weights {error}") from None


def _array(name: str, weight: Gradient) -> npt.NDArray[Any]:
    dense = densify(weight)
    assert dense is not None
    if dense.dtype == "bfloat16":
        raise VerifyError(f"--weights has {name!r} in bfloat16, which NumPy does not support. Save it as float32.")
    return np.ascontiguousarray(dense.array).view(dense.dtype)[..., 0] if dense.dtype in PARTS else dense.array


def read_batches(path: Path, steps: int | None) -> Arrays:
    """Read arrays whose first axis is the step. Keep the first `steps` steps."""
    try:
        stored = np.load(path, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise VerifyError(f"--batches {path} is one array without a name. Save arrays by name with np.savez.")
        with stored:
            batches = dict(stored)
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as error:
        raise VerifyError(f"--batches {path} cannot be read: {error}. Save arrays with np.savez.") from None
    lengths = {name: each.shape[0] if each.ndim else 0 for name, each in batches.items()}
    if not lengths or len(set(lengths.values())) > 1 or not min(lengths.values()):
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items()) or "it has no array"
        raise VerifyError(f"--batches {path}: the first axis of every array must have one entry per step; {found}")
    count = min(lengths.values())
    if steps is not None and not 1 <= steps <= count:
        raise VerifyError(f"--steps is {steps}; {path} has batches for {count} steps. Pass 1 to {count}.")
    return {name: each[:steps] for name, each in batches.items()}


def run(scripts: Sequence[Script], weights: Arrays, batches: Arrays, out: Path, timeout: float) -> list[ScriptRun]:
    """Run both in parallel. The files of each go into the directory of `out` that is named like its side.

    Raises:
        VerifyError: A function or its output is invalid.
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
                raise WorkerError(f"{each} has not ended after {timeout:g} seconds; {end}. Pass a higher --timeout.")
            if end.code:
                raise WorkerError(f"{each} ended with {end}{_not_installed(each, end)}")
    return [_read(each, out / each.side, len(next(iter(batches.values())))) for each in scripts]


def _start(script: Script, scratch: Scratch, out: Path) -> _workers.Worker:
    arguments = [script.python, "-X", "faulthandler", "-m", "unified_clip.verify.worker", str(script.file), script.name]
    try:
        return _workers.Worker([*arguments, str(scratch.path), str(out)], scratch)
    except OSError as error:
        raise VerifyError(
            f"{script.python} cannot be started: {error.strerror}. Pass an interpreter to --python-{script.side}."
        ) from None


def _not_installed(script: Script, end: _workers.Exit) -> str:
    """Return the command that installs what another interpreter lacks; '' if it lacks nothing."""
    if script.python == sys.executable or not end.stderr or not end.stderr[-1].startswith("ModuleNotFoundError"):
        return ""
    return f". Install what the file imports for that interpreter: {script.python} -m {_install.command('cli')}"


def _read(script: Script, out: Path, steps: int) -> ScriptRun:
    try:
        ended = json.loads((out / ENDED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise WorkerError(f"{script} ended its process before its last step. Let the function return.") from None
    if "invalid" in ended:
        raise VerifyError(f"{script}: {ended['invalid']}")
    count = ended["given"]
    if ended["yields"] and count != steps:
        raise VerifyError(
            f"{script} yielded {count} time{'s' * (count != 1)} for {steps} batches. Yield once after each batch."
        )
    return ScriptRun(
        script, [_step_output(out / f"{each}.safetensors") for each in range(1, count + 1)], out, ended["yields"]
    )


def _step_output(path: Path) -> StepOutput:
    stored = safetensors.load(path)
    parts: dict[str, dict[str, Dense]] = {}
    for key, tensor in stored.items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    parameters, gradients, unclipped = (parts.get(part) for part in PARTS_GIVEN)
    return StepOutput(parameters or {}, gradients, unclipped)
