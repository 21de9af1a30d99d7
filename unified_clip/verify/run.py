"""Run two training steps on the same weights and batches, each in its own process."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import _install, _workers
from .._coded_error import CodedError
from .._progress import Advance, unseen
from .._scratch import Scratch
from ..tensors import files
from ..tensors.files import safetensors
from ..tensors.types import Dense, Gradient, UnreadableError, densify, to_numpy
from .worker import ENDED, NAMES, OUTPUT, OUTPUT_PARTS, RESYNCED

TOGETHER = ("tensorflow", "paddle")
"""Packages that crash if one process imports both of them."""

Arrays = Mapping[str, npt.NDArray[Any]]

Batches = Sequence[Arrays]
"""For each step, {name: array}."""

STEP_AND_NAME = re.compile(r"([1-9]\d{0,8})/(.+)", re.DOTALL)
"""Matches a name that begins with the number of a step, such as "1/x"."""

UNEVEN = (
    "If batches differ in size, save an array for each step, named by the step: "
    'np.savez("batches.npz", **{"1/x": x1, "2/x": x2}).'
)


class VerifyError(CodedError, code="UC601"):
    """A file, function or option is invalid. The message explains the remedy."""


class WorkerError(CodedError, code="UC605", exit_status=3):
    """The process of a training step crashed, or did not end in time. The message contains the reason."""


@dataclass(frozen=True)
class Script:
    """A training step: a function in a file, and the interpreter that runs it."""

    side: Literal["old", "new"]
    file: Path
    name: str
    text: str
    """The argument with the file and the function, as the user typed it."""

    python: str = sys.executable

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class StepOutput:
    """The field `gradients` is None if the training step yields only parameters."""

    parameters: Mapping[str, Dense]
    gradients: Mapping[str, Dense] | None
    unclipped: Mapping[str, Dense] | None
    resynced: Mapping[str, Dense] | None = None
    """The parameters after --resync has copied the old weights. The value is None without --resync."""

    @property
    def next_parameters(self) -> Mapping[str, Dense]:
        """The parameters at the beginning of the next step.

        With --resync, these are the weights that were copied from the old training step.
        """
        return self.parameters if self.resynced is None else self.resynced


@dataclass(frozen=True)
class ScriptRun:
    script: Script
    outputs: Sequence[StepOutput]
    """One output for each step. If `yields` is false, the only output is the output after the last step."""

    directory: Path
    yields: bool
    """Whether the function yields after each step, or returns once after the last step."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.outputs[0].parameters.items()}

    def output_at(self, step: int, steps: int) -> StepOutput | None:
        """Return the output of a step, or None if the step has no output."""
        index = step - 1 if self.yields else step - steps
        return self.outputs[index] if 0 <= index < len(self.outputs) else None


def parse_script(side: Literal["old", "new"], text: str, python: str | None) -> Script:
    """Parse an argument such as `old.py:step`, which names a training step."""
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise VerifyError(f"{text!r} does not name a file and a function. Type both, as in {side}.py:step.")
    if not Path(file).is_file():
        raise VerifyError(f"There is no file {file}. Pass an existing file and a function in it, as in {side}.py:step.")
    if Path(file).suffix != ".py":
        raise VerifyError(f"{file} is not a .py file. Pass a Python file and a function in it, as in {side}.py:step.")
    if set(TOGETHER) <= _imports(Path(file)):
        raise VerifyError(
            f"{file} imports {' and '.join(TOGETHER)}, and one process cannot import both. Move each step "
            "into its own file, or import the packages inside the functions."
        )
    return Script(side, Path(file).absolute(), name, text, python or sys.executable)


def _imports(file: Path) -> set[str]:
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return set()
    names = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in body if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


def read_weights(path: Path, scratch: Path) -> Arrays:
    """Return the arrays of a weights file by name, in any format of `docs/gradient_files.md`."""
    try:
        return {name: _array(path, name, weight) for name, weight in files.read(path, scratch).items()}
    except UnreadableError as error:
        raise VerifyError(f"--weights {error}.", error.code) from None


def _array(path: Path, name: str, weight: Gradient) -> npt.NDArray[Any]:
    dense = densify(weight)
    assert dense is not None
    if dense.dtype == "bfloat16":
        raise VerifyError(
            f"--weights {path} has {name!r} in bfloat16, which NumPy does not support. Save it as float32.", "UC602"
        )
    return to_numpy(dense)


def read_batches(path: Path, steps: int | None) -> Batches:
    """Return {name: array} for each of the first `steps` steps.

    The first axis of an array in the file is the step. If names begin with the number of a step, as in "1/x", each
    array belongs to one step, and steps can have arrays of different shapes.
    """
    arrays = _load(path)
    batches = _numbered_batches(path, arrays) or _stacked_batches(path, arrays)
    count = len(batches)
    if steps is not None and not 1 <= steps <= count:
        raise VerifyError(f"--steps is {steps}, and {path} has batches for {count} steps. Pass 1 to {count}.", "UC203")
    return batches[:steps]


def _load(path: Path) -> Arrays:
    try:
        with path.open("rb") as file:  # NumPy would not close a damaged file
            stored = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise VerifyError(
                    f"--batches {path} is one array without a name. Save arrays by name with np.savez.", "UC602"
                )
            return dict(stored)
    except OSError as error:
        remedy = "Correct the path or its permissions."
        raise VerifyError(f"--batches {path} cannot be read: {error.strerror}. {remedy}", "UC602") from None
    except VerifyError:
        raise
    except Exception as error:  # NumPy and zipfile raise almost anything for damaged bytes
        if "Object arrays" in str(error):
            raise VerifyError(f"--batches {path} has an array of Python objects. {UNEVEN}", "UC602") from None
        raise VerifyError(f"--batches {path} cannot be read: {error}. Save arrays with np.savez.", "UC602") from None


def _stacked_batches(path: Path, arrays: Arrays) -> Batches:
    lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
    if not lengths:
        raise VerifyError(f"--batches {path} has no array. Save arrays by name with np.savez.", "UC602")
    rule = "the first axis of every array must have one entry for each step"
    if empty := [name for name, length in lengths.items() if not length]:
        raise VerifyError(f"--batches {path}: {rule}, but {empty[0]} has no entry. Save at least one step.", "UC602")
    if len(set(lengths.values())) > 1:
        entries = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise VerifyError(f"--batches {path}: {rule}: {entries}. Save arrays of equal length. {UNEVEN}", "UC602")
    return [{name: array[index] for name, array in arrays.items()} for index in range(min(lengths.values()))]


def _numbered_batches(path: Path, arrays: Arrays) -> Batches:
    """Return the batches from arrays with names such as "1/x", or [] if no name begins with the number of a step."""
    batches: dict[int, dict[str, npt.NDArray[Any]]] = {}
    for name, array in arrays.items():
        if match := STEP_AND_NAME.fullmatch(name):
            batches.setdefault(int(match[1]), {})[match[2]] = array
    names = sorted({name for batch in batches.values() for name in batch})
    without_step = [name for name in arrays if not STEP_AND_NAME.fullmatch(name)]
    missing = (f"{step}/{name}" for step in range(1, len(batches) + 1) for name in names
               if name not in batches.get(step, {}))  # fmt: skip
    first_missing = next(missing, None)
    if batches and (without_step or first_missing):
        problem = f"{without_step[0]} has no step" if without_step else f"{first_missing} is missing"
        numbered = next(name for name in arrays if name not in without_step)
        raise VerifyError(
            f"--batches {path}: {numbered} is the array of a single step, but {problem}. Save every array of every "
            'step, under the step and the name of the array, as in np.savez("batches.npz", **{"1/x": x1, "2/x": x2}).',
            "UC602",
        )
    return [batches[step] for step in sorted(batches)]


def make_directory(path: Path) -> Path:
    """Create the directory of --out. Raise an error if the directory contains files of an earlier run."""
    names = ("old", "new", "old.jsonl", "new.jsonl")
    if present := [name for name in names if os.path.lexists(path / name)]:  # also links to missing files
        remedy = "Pass another directory to --out. If an earlier run wrote them, you can also remove them."
        raise VerifyError(f"--out {path} contains {', '.join(present)} already. {remedy}", "UC206")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VerifyError(
            f"{path} cannot be written: {error.strerror}. Pass another directory to --out.", "UC205"
        ) from None
    return path


def run(
    scripts: Sequence[Script],
    weights: Arrays,
    batches: Batches,
    out: Path,
    timeout: float,
    *,
    resync: Mapping[str, str] | None = None,
    advance: Advance = unseen,
) -> list[ScriptRun]:
    """Run both training steps in parallel, each in its own process, and return the runs.

    timeout: The number of seconds after which both processes are ended.
    resync: The names of --map. If None, the old weights are not copied into the new training step.
    advance: A function that shows progress. Its arguments are the side ("old" or "new") and the number of finished
        steps.
    """
    with ExitStack() as stack:
        scratch = stack.enter_context(Scratch("verify"))
        np.savez(scratch.path / "weights.npz", **weights)  # type: ignore[arg-type]  # names are any strings
        by_step = {f"{step}/{name}": each for step, batch in enumerate(batches, 1) for name, each in batch.items()}
        np.savez(scratch.path / "batches.npz", **by_step)  # type: ignore[arg-type]
        if resync is not None:
            (scratch.path / NAMES).write_text(json.dumps(resync), encoding="utf-8")
        for script in scripts:
            (out / script.side).mkdir()
        workers = [stack.enter_context(_start(script, scratch, out / script.side)) for script in scripts]
        until = time.monotonic() + timeout
        done = Counter[str]()

        def poll() -> bool:
            for side in (script.side for script in scripts):
                while (out / side / OUTPUT.format(done[side] + 1)).exists():
                    done[side] += 1
                    advance(side, 1)
            return False

        for script, worker in zip(scripts, workers, strict=True):
            end = worker.wait(max(0.0, until - time.monotonic()), poll)
            if end.code is None:
                remedy = "Pass a higher --timeout, or correct the step if it hangs."
                raise WorkerError(f"{script} has not ended after {timeout:g} seconds: {end}. {remedy}")
            if end.code:
                repeat = f"To repeat the error, call {script.name}(weights, batches) in Python. Then correct it."
                remedy = _not_installed(script, end) or repeat
                raise WorkerError(f"{script} failed: {end}. {remedy}")
    runs = []
    for script in scripts:
        runs.append(_read(script, out / script.side, len(batches)))
        if resync is not None and not runs[-1].yields:
            raise VerifyError(
                f"--resync copies weights after each step, but {script} returns only after the last step. Yield "
                "(parameters, gradients) after each step, or remove --resync."
            )
    return runs


def _start(script: Script, scratch: Scratch, out: Path) -> _workers.Worker:
    arguments = [script.python, "-X", "faulthandler", "-m", "unified_clip.verify.worker", str(script.file), script.name]
    try:
        return _workers.Worker([*arguments, str(scratch.path), str(out)], scratch)
    except OSError as error:
        raise VerifyError(
            f"{script.python} cannot be started: {error.strerror}. Pass another --python-{script.side}.", "UC203"
        ) from None


def _not_installed(script: Script, end: _workers.Exit) -> str:
    """Return a command that installs the missing module for the script's interpreter.

    If no module is missing, return ''.
    """
    if script.python == sys.executable or not end.stderr or not end.stderr[-1].startswith("ModuleNotFoundError"):
        return ""
    pip = f"{script.python} -m pip install PACKAGE"
    own = f"{script.python} -m {_install.command('cli')}"
    return f"Install the package of this module: {pip}. If unified_clip itself lacks the module: {own}"


def _read(script: Script, out: Path, steps: int) -> ScriptRun:
    try:
        ended = json.loads((out / ENDED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise WorkerError(
            f"{script} ended its process before its last step. Remove the call that ends the process, such as "
            "sys.exit() or os._exit()."
        ) from None
    if "invalid" in ended:
        raise VerifyError(f"{script}: {ended['invalid']}")
    count = ended["given"]
    if ended["yields"] and count != steps:
        raise VerifyError(
            f"{script} yielded {count} time{'s' * (count != 1)} for {steps} batches. Yield once for each batch."
        )
    outputs = [_step_output(out, number) for number in range(1, count + 1)]
    return ScriptRun(script, outputs, out, ended["yields"])


def _step_output(out: Path, number: int) -> StepOutput:
    parts: dict[str, dict[str, Dense]] = {}
    for key, tensor in safetensors.load(out / OUTPUT.format(number)).items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    parameters, gradients, unclipped = (parts.get(part) for part in OUTPUT_PARTS)
    resynced = out / RESYNCED.format(number)
    return StepOutput(parameters or {}, gradients, unclipped, safetensors.load(resynced) if resynced.exists() else None)
