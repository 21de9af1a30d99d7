"""Run a training step and record it: `python -X faulthandler -m unified_clip.verify.worker FILE NAME JOB OUT`.

JOB is a directory with `weights.npz` and `batches.npz`. Into the directory OUT go `recording.jsonl` with the gradients
beside it, `N.safetensors` with what the function gave the Nth time, and at the end `ended.json`: how often it did, and
whether it yields, or why it is refused. What the function raises ends the process with its traceback.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import unified_clip

from .. import _safetensors, _workers
from .._dispatch import adapter_of
from ..recording.recorder import Recording
from ..tensors.files.convert_worker import function_in, read_tensor
from ..tensors.types import PARTS, UnreadableError, densify
from .watch.base import Observer
from .watch.import_hook import AfterImport

RECORDING, ENDED = "recording.jsonl", "ended.json"

PARTS_GIVEN = ("parameters", "gradients", "unclipped")
"""What the function gives after a step; the last two may be missing."""

WATCHED = {
    "torch": ("torch", "install"),
    "tensorflow": ("tensorflow", "install"),
    "keras": ("keras", "install"),
    "paddle": ("paddle", "install"),
    "unified_clip.paddle": ("paddle", "install_ours"),
    "optax": ("optax", "install"),
}
"""From a module to what has its functions watched: a module of `watch`, and a function of it."""

Arrays = dict[str, np.ndarray[Any, Any]]


class RefusedError(Exception):
    """The function, or what it gives, does not have the form that `docs/verify.md` says: what, and what to do."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Run a training step and record it.")
    parser.add_argument("file", type=Path)
    parser.add_argument("name")
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    _workers.report_calls_on_signal()
    sys.argv = [str(options.file)]  # what the user's file reads is not ours
    try:
        ended = run(options.file, options.name, options.job, options.out)
    except RefusedError as error:
        ended = {"refused": str(error)}
    (options.out / ENDED).write_text(json.dumps(ended), encoding="utf-8")


def run(file: Path, name: str, job: Path, out: Path) -> dict[str, Any]:
    """How often the function gave its parameters, and whether it yields them."""
    weights, batches = read_job(job)
    recording = unified_clip.record(out / RECORDING, norms=True, gradients_every=1)
    observer = Observer(recording)
    AfterImport({module: partial(_watch, observer, *how) for module, how in WATCHED.items()}).install()
    function = _function(file, name)
    given = 0
    with warnings.catch_warnings(), recording:
        warnings.filterwarnings("ignore", "gradients inside a graph are not stored", unified_clip.ClipWarning)
        warnings.filterwarnings("ignore", ".*No unified_clip calls were recorded", unified_clip.ClipWarning)
        found = function(weights, batches)
        yields = inspect.isgenerator(found)
        for given, values in enumerate(_steps(found, recording) if yields else [found], start=1):
            observer.wait()
            _store(out / f"{given}.safetensors", given, values)
        observer.wait()
    return {"given": given, "yields": yields}


def read_job(job: Path) -> tuple[Arrays, list[Arrays]]:
    """The weights, and a dict for each step."""
    with np.load(job / "weights.npz") as weights, np.load(job / "batches.npz") as batches:
        stacked = dict(batches)
        count = len(next(iter(stacked.values())))
        return dict(weights), [{name: each[index] for name, each in stacked.items()} for index in range(count)]


def _watch(observer: Observer, which: str, install: str) -> None:
    getattr(import_module(f"unified_clip.verify.watch.{which}"), install)(observer)


def _function(file: Path, name: str) -> Callable[..., Any]:
    try:
        function = function_in(file, name)
    except ImportError as error:
        if "relative import" not in str(error):
            raise
        raise RefusedError(
            f"imports from its own package ({error}), and is run as a file of none: import that by its full name, with "
            "the directory that the package lies in on PYTHONPATH"
        ) from None
    except AttributeError as error:
        if error.name != name:
            raise
        raise RefusedError(f"has no function {name}; name one that it has, as in {file.name}:step") from None
    if not callable(function):
        raise RefusedError(f"{name} is no function, but of the type {type(function).__name__}; name one")
    try:
        inspect.signature(function).bind({}, [])
    except TypeError as error:
        raise RefusedError(f"{name} has to take two arguments, weights and batches: {error}") from None
    return function


def _steps(found: Iterator[Any], recording: Recording) -> Iterator[Any]:
    """What a generator yields after each step, each of which is one of the recording."""
    recording.next_step()
    for values in found:
        yield values
        recording.next_step()


def _store(path: Path, step: int, values: Any) -> None:
    if not isinstance(values, tuple | list) or not 1 <= len(values) <= len(PARTS_GIVEN):
        raise RefusedError(
            f"gave what is of the type {type(values).__name__} at step {step}; give (parameters, gradients), two dicts "
            "of tensors by name"
        )
    stored: dict[str, tuple[str, Any]] = {}
    for part, held in zip(PARTS_GIVEN, values, strict=False):
        if held is None and part != "parameters":
            continue
        if not isinstance(held, Mapping):
            raise RefusedError(
                f"gave {part} of the type {type(held).__name__} at step {step}; give a dict of tensors by name"
            )
        if part == "parameters" and not held:
            raise RefusedError(f"gave no parameters at step {step}; give a dict of tensors by name")
        stored |= {f"{part}/{name}": _dense(part, name, step, each) for name, each in held.items() if each is not None}
    _safetensors.write_at_once(path, stored)


def _dense(part: str, name: Any, step: int, tensor: Any) -> tuple[str, Any]:
    """As `_safetensors.write` takes it."""
    try:
        held = densify(read_tensor(str(name), np.asarray(tensor) if adapter_of(type(tensor)) is None else tensor))
    except (UnreadableError, ValueError, TypeError, KeyError) as error:
        raise RefusedError(f"gave {part} with {name!r} at step {step}, which is no tensor: {error}") from None
    assert held is not None
    dtype = PARTS.get(held.dtype, held.dtype)
    if dtype not in _safetensors.CODES:
        raise RefusedError(f"gave {part} with {name!r} of {held.dtype} at step {step}; give only what is trained")
    return dtype, held.array


if __name__ == "__main__":
    main()
