"""Read gradients from files and functions."""

from __future__ import annotations

import atexit
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from ..._kit import atomic_files, workers
from ..._kit.atomic_files import FileError
from ..._kit.scratch import Scratch
from ..types import Gradient, UnreadableError
from . import memmap
from .entries import Item, describe_failure, select
from .formats import npz_items, safetensors_items
from .limits import MAX_SECONDS, LimitError, seconds

READ_HERE: Mapping[str, Callable[[Path, ExitStack], Iterator[Item]]] = {
    ".safetensors": safetensors_items,
    ".npz": npz_items,
}

READ_BY_TORCH = (".pt", ".pth", ".bin")

NEEDED = {
    "torch": "PyTorch is needed to read the file",
    "function": "A module that your function needs is missing",
}

CONVERT = "unified_clip.tensors.files.convert_worker"


SETTING = "Or set `python` under [frameworks.{}] of the suite to another interpreter"


@cache
def scratch() -> Path:
    directory = Scratch("gradients")
    atexit.register(directory.remove)
    return directory.path


def read(
    path: Path,
    scratch: Path,
    *,
    only: Sequence[str] = (),
    pythons: Mapping[str, str] | None = None,
) -> dict[str, Gradient]:
    """Return {name: gradient} for a file.

    Booleans, integers and text are left out. An int64 tensor is included if `only` contains its full name. The arrays
    are read-only memory maps, which can be unaligned. Keep `scratch` as long as you use the arrays.
    """
    try:
        suffix = _suffix(path)
        if suffix in READ_BY_TORCH:
            python = (pythons or {}).get("torch", sys.executable)
            alternative = "" if pythons is None else SETTING.format("torch")
            gradients = _convert("torch", str(path), scratch, python, alternative, only)
        else:
            directory = Path(tempfile.mkdtemp(dir=scratch))
            with ExitStack() as opened:
                items = READ_HERE[suffix](path, opened)
                gradients = memmap.keep(select(items, only, path.stat().st_size), directory)
        if not gradients:
            if only:
                problem = "no tensor that matches `only` has a floating-point dtype"
                raise UnreadableError(f"{problem}. Save float32 tensors, or correct `only`")
            raise UnreadableError("no tensor has a floating-point dtype. Save float32 tensors")
        return gradients
    except (UnreadableError, LimitError) as error:
        raise UnreadableError(f"{path}: {error}", error.code) from None
    except FileError as error:
        raise UnreadableError(str(error).removesuffix("."), error.code) from None
    except Exception as error:  # NumPy, zipfile and pickle raise almost anything for damaged bytes
        raise UnreadableError(f"{path}: {describe_failure(error)}") from None


def call(
    spec: str, directory: Path, scratch: Path, *, python: str = sys.executable, framework: str | None = None
) -> dict[str, Gradient]:
    """Run a function such as `grads.py:gradients` in another process, and return {name: tensor}."""
    file, _, name = spec.rpartition(":")
    path = (directory / file).absolute()
    if not name.isidentifier():
        raise UnreadableError(
            f"{spec!r} does not end with the name of a function. Add the name, as in grads.py:gradients"
        )
    if path.suffix != ".py":
        raise UnreadableError(
            f"{spec!r} does not begin with the path of a .py file. Begin with the path, as in grads.py:gradients"
        )
    if not path.is_file():
        raise UnreadableError(f"{spec!r}: there is no file {path}. Correct the path")
    try:
        if framework is None:
            setting = SETTING.format("NAME").removeprefix("Or ")
            alternative = f'Or add framework = "NAME" below the key `function`, and {setting}'
        else:
            alternative = SETTING.format(framework)
        gradients = _convert("function", f"{path}:{name}", scratch, python, alternative)
        if not gradients:
            problem = f"the function {name!r} returns no tensor with a floating-point dtype"
            raise UnreadableError(f"{problem}. Return the gradients as float32 tensors or arrays")
        return gradients
    except (UnreadableError, LimitError) as error:
        raise UnreadableError(f"{path}: {error}", error.code) from None


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*READ_HERE, *READ_BY_TORCH):
        known = ", ".join([*READ_HERE, *READ_BY_TORCH])
        remedy = "Save the tensors in one of these formats. A suite can also get them from a function"
        raise UnreadableError(f"the suffix of the file is not one of {known}. {remedy}")
    if not path.is_file():
        raise UnreadableError("the file does not exist. Correct the path")
    if not path.stat().st_size:
        raise UnreadableError("the file is empty. Save the gradients again")
    return suffix


def _convert(
    kind: str, source: str, scratch: Path, python: str, alternative: str, only: Sequence[str] = ()
) -> dict[str, Gradient]:
    """Read a file or call a function in another process."""
    is_function = kind == "function"
    timeout = seconds(None if is_function else Path(source).stat().st_size)
    out = Path(tempfile.mkdtemp(dir=scratch))
    reader = "the process that runs the function" if is_function else "the process that reads the file"
    command = [python, "-X", "faulthandler", "-m", CONVERT, "--", kind, source, str(out), *only]
    try:
        with Scratch("convert") as directory, workers.Worker(command, directory) as worker:
            end = worker.wait(timeout)
    except OSError as error:
        problem = f"the interpreter {python} cannot be started: {error.strerror}"
        advice = _with_alternative("Install a Python interpreter at this path", alternative)
        raise UnreadableError(f"{problem}. {advice}", "UC703") from None
    if end.code is None:
        remedy = f"Set the environment variable {MAX_SECONDS} to a higher number of seconds"
        remedy = _with_alternative(remedy, "If the function hangs, correct the function" if is_function else "")
        raise UnreadableError(f"{reader} gave no result after {timeout:g} seconds: {end}. {remedy}", "UC702")
    if end.code and end.stderr and end.stderr[-1].startswith("ModuleNotFoundError"):  # unified_clip itself needs it
        advice = _with_alternative(f"Install the package for {python}", alternative)
        raise UnreadableError(f"{reader} ended: {end.stderr[-1]}. {advice}", "UC703")
    if end.code < 0:
        remedy = "correct the function" if is_function else "save the file again"
        raise UnreadableError(f"{reader} ended with {end}. Give the process more memory, or {remedy}")
    if end.code:
        remedy = "Correct the error in these lines" if end.stderr else f"Check that {python} is a Python interpreter"
        if is_function:
            remedy = f"{remedy if end.stderr else 'Correct the function'}. The function must return, not exit"
        raise UnreadableError(f"{reader} ended with {end}. {remedy}")
    if (out / memmap.FAILED).exists():
        failed = json.loads(atomic_files.read_text(out / memmap.FAILED))
        if "missing" in failed:
            install = "Correct the name of the module, or install its package" if is_function else "Install the package"
            advice = _with_alternative(f"{install} for {python}", alternative)
            raise UnreadableError(f"{NEEDED[kind]}: {failed['missing']}. {advice}", "UC703")
        raise UnreadableError(failed["error"])
    if not (out / memmap.INDEX).exists():
        again = "Correct the function. The function must return, not exit" if is_function else "Save the file again"
        raise UnreadableError(f"{reader} ended without a result ({end.last_lines}). {again}")
    return memmap.load(out)


def _with_alternative(advice: str, alternative: str) -> str:
    return f"{advice}. {alternative}" if alternative else advice
