"""Run a training step and record it: `python -X faulthandler -m unified_clip.verify.launch.worker FILE NAME JOB OUT`.

JOB has `weights.npz` and `batches.npz`. The worker writes these files to OUT:

- `recording.jsonl` and the files of the recorded gradients
- `N.safetensors`: the output after step N
- `ended.json`: the number of outputs, or an error message
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import unified_clip

from ..._dispatch import adapter_of
from ..._kit import atomic_files, workers
from ...recorder.hooks import HOOKS
from ...recording.recorder import Recording
from ...tensors.files.convert_worker import function_in, read_tensor
from ...tensors.types import densify
from ..errors import InvalidStepError
from .outputs import ENDED, store_output

RECORDING = "recording.jsonl"

Arrays = dict[str, np.ndarray[Any, Any]]


def main() -> None:
    file, name, job, out = sys.argv[1:]
    sys.argv = [file]  # the user's file must not see the arguments of this worker
    try:
        ended = run(Path(file), name, Path(job), Path(out))
    except InvalidStepError as error:
        ended = {"invalid": str(error)}
    atomic_files.write(Path(out, ENDED), json.dumps(ended))


def run(file: Path, name: str, job: Path, out: Path) -> dict[str, Any]:
    weights, batches = read_job(job)
    recording = unified_clip.record(out / RECORDING, norms=True, gradients_every=1)
    recording.stores_results = True
    HOOKS.switch(True)  # before the file imports a framework
    function = _function(file, name)
    count = 0
    with warnings.catch_warnings(), recording:
        warnings.filterwarnings("ignore", ".*No clip calls were recorded", unified_clip.ClipWarning)
        result = function(weights, batches)
        yields = inspect.isgenerator(result)
        for count, output in enumerate(_yielded(result, recording) if yields else [result], start=1):
            recording.wait()
            tensors, loss = _split_loss(output)
            store_output(out, count, tensors)
            if loss is not None:
                recording.log(loss=loss)
        recording.wait()
    return {"given": count, "yields": yields}


def read_job(job: Path) -> tuple[Arrays, list[Arrays]]:
    batches: dict[int, Arrays] = {}
    with np.load(job / "weights.npz") as weights, np.load(job / "batches.npz") as stored:
        for key in stored:
            step, _, name = key.partition("/")
            batches.setdefault(int(step), {})[name] = stored[key][()]  # an array without axes becomes a number
        return dict(weights), [batches[step] for step in sorted(batches)]


def _function(file: Path, name: str) -> Callable[..., Any]:
    try:
        function = function_in(file, name)
    except SyntaxError as error:
        if error.filename != str(file):
            raise
        raise InvalidStepError(
            f"the file is not valid Python: line {error.lineno}: {error.msg}. Correct the file."
        ) from None
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise InvalidStepError(
            f"a relative import fails ({error}), since the file runs by itself, not as part of a package. Import the "
            "module by its full name, and add the parent directory of its package to PYTHONPATH."
        ) from None
    except AttributeError as error:
        if error.name != name:
            raise
        raise InvalidStepError(
            f"the file has no function {name!r}. Pass {file.name}:NAME, where NAME is a function of the file."
        ) from None
    if not callable(function):
        raise InvalidStepError(
            f"{name!r} is of type {type(function).__name__}, not a function. Pass {file.name}:NAME, where NAME is a "
            "function of the file."
        )
    try:
        inspect.signature(function).bind({}, [])
    except TypeError as error:
        raise InvalidStepError(
            f"the function {name!r} must accept two arguments, weights and batches: {error}. Write def "
            f"{name}(weights, batches):"
        ) from None
    return function


def _yielded(generator: Generator[Any, Any, Any], recording: Recording) -> Iterator[Any]:
    while True:
        recording.next_step()
        try:
            output = next(generator)
        except StopIteration:
            return
        yield output


def _split_loss(output: Any) -> tuple[Any, float | None]:
    """Return (output without the loss, loss). The loss is None if the last value of the output is not a number."""
    if not isinstance(output, tuple | list) or len(output) < 2:
        return output, None
    *tensors, last = output
    is_tensor = adapter_of(type(last)) is not None
    if not is_tensor and (isinstance(last, bool) or not isinstance(last, int | float)):
        return output, None
    loss = densify(read_tensor("loss", np.asarray(last) if not is_tensor else last))
    return (
        (tuple(tensors), float(loss.values().item())) if loss is not None and loss.array.size == 1 else (output, None)
    )


if __name__ == "__main__":
    workers.prepare()
    main()
