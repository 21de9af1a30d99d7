"""Read the files of `--weights` and `--batches`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._kit import atomic_files
from ..._kit.atomic_files import FileError
from ...tensors import files
from ...tensors.types import Gradient, UnreadableError, densify, to_numpy
from ..errors import VerifyError

Arrays = Mapping[str, npt.NDArray[Any]]

Batches = Sequence[Arrays]
"""{name: array} for each step."""

STEP_AND_NAME = re.compile(r"([1-9]\d{0,8})/(.+)", re.DOTALL)
"""For example, "1/x"."""

UNEVEN = (
    "If batches differ in size, save an array for each step, named by the step: "
    'np.savez("batches.npz", **{"1/x": x1, "2/x": x2}).'
)


def read_weights(path: Path, scratch: Path) -> Arrays:
    try:
        return {name: _array(path, name, weight) for name, weight in files.read(path, scratch).items()}
    except UnreadableError as error:
        raise VerifyError(f"--weights {error}.", error.code) from None


def _array(path: Path, name: str, weight: Gradient) -> npt.NDArray[Any]:
    dense = densify(weight)
    assert dense is not None
    if dense.dtype == "bfloat16":
        raise VerifyError(
            f"--weights {path} has {name!r} in bfloat16, which NumPy does not support. Save {name!r} as float32.",
            "UC602",
        )
    return to_numpy(dense)


def read_batches(path: Path, steps: int | None) -> Batches:
    arrays = _load(path)
    batches = _numbered_batches(path, arrays) or _stacked_batches(path, arrays)
    count = len(batches)
    if steps is not None and not 1 <= steps <= count:
        raise VerifyError(f"--steps is {steps}, and {path} has batches for {count} steps. Pass 1 to {count}.", "UC203")
    return batches[:steps]


def _load(path: Path) -> Arrays:
    try:
        with atomic_files.reading(path) as file:  # NumPy would not close a damaged file
            stored = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise VerifyError(
                    f"--batches {path} is one array without a name. Save arrays by name with np.savez.", "UC602"
                )
            return dict(stored)
    except (FileError, VerifyError):
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
        problem = f"{without_step[0]!r} has no step number" if without_step else f"{first_missing!r} is missing"
        numbered = next(name for name in arrays if name not in without_step)
        raise VerifyError(
            f"--batches {path} has arrays that are named by step, such as {numbered!r}, but {problem}. Save every "
            'array once for each step, under the name "STEP/NAME": np.savez("batches.npz", **{"1/x": x1, "2/x": x2}).',
            "UC602",
        )
    return [batches[step] for step in sorted(batches)]
