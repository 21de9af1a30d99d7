"""Run cases on one framework: `python -X faulthandler -m unified_clip.parity.worker FRAMEWORK JOB OUT`.

JOB is a directory with `job.json` and `gradients.safetensors`; into the directory OUT go `worker.json` as soon as
the framework is there, and, for case number N, `N.safetensors` and then `N.json`. So what was done remains when a
case takes the whole process down, and the first case without a result is the one that did.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core.ops import Ops
from . import tensors
from .adapter import Adapter
from .calls import CALLS
from .launch import DEVICE, HOST, NATIVE
from .tensors import Dense, Gradient, encode

Outcome = tuple[Any, Sequence[Any] | None]
"""A norm or None, and gradients or None."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run parity cases on one framework.")
    parser.add_argument("framework")
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        adapter: Adapter = importlib.import_module(f"unified_clip.parity.adapter_{options.framework}").Framework()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("unified_clip"):
            raise
        write_json(options.out / "worker.json", {"missing": str(error)})
        return
    namespace = importlib.import_module(f"unified_clip.{options.framework}")
    job = json.loads((options.job / "job.json").read_text(encoding="utf-8"))
    check_path(adapter, importlib.import_module(f"unified_clip._ops.{options.framework}_ops").OPS, job["mode"])
    write_json(options.out / "worker.json", {"versions": dict(versions(adapter.packages))})
    run(adapter, namespace, job, tensors.load(options.job / "gradients.safetensors"), options.out)


def check_path(adapter: Adapter, ops: Ops, mode: str) -> None:
    """Refuse to run where a plain tensor does not take the path to be tested: a comparison would prove nothing."""
    path = ops.path([adapter.dense(encode(np.ones(1), "float32"))], differentiable=False)
    if mode in (HOST, DEVICE) and path.on_host != (mode == HOST):
        raise RuntimeError(f"the {mode} path was to be run, and a plain tensor takes the other one")


def versions(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The versions of those packages that are installed."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield package, importlib.metadata.version(package)


def run(adapter: Adapter, namespace: Any, job: Mapping[str, Any], stored: Mapping[str, Dense], out: Path) -> None:
    """Run every case of a job, in order."""
    for case in job["cases"]:
        gradients = tensors.unpack(case["gradients"], stored, job["gradients"][case["gradients"]])
        with adapter.scope({gradient.dtype for gradient in gradients if gradient is not None}):
            try:
                result, found = run_case(adapter, namespace, case, gradients, job["mode"] == NATIVE)
            except Exception as error:
                result, found = {"error": first_line(error)}, {}
                traceback.print_exc()
        tensors.save(out / f"{case['number']}.safetensors", found)
        write_json(out / f"{case['number']}.json", result)


def run_case(
    adapter: Adapter, namespace: Any, case: Mapping[str, Any], gradients: Sequence[Gradient], native: bool
) -> tuple[dict[str, Any], dict[str, Dense]]:
    """One case by our function, or by the framework's own: what came out, and the tensors of it."""
    call, made = CALLS[case["call"]], [adapter.make(gradient) for gradient in gradients]
    if not native:
        function = getattr(namespace, case["call"].removesuffix(".clip_"))
        return pack(adapter, *STYLES[call.style](adapter, function, case["arguments"], made))
    theirs = adapter.native(call, case["arguments"], made)
    if theirs is None:
        return {}, {}
    result, found = pack(adapter, theirs.norm, theirs.tensors)
    return {"name": theirs.name, **result}, found


def pack(adapter: Adapter, norm: Any, gradients: Sequence[Any] | None) -> tuple[dict[str, Any], dict[str, Dense]]:
    """An outcome as JSON and tensors."""
    result: dict[str, Any] = {}
    found: dict[str, Dense] = {}
    for part, values in (("norm", None if norm is None else [norm]), ("gradients", gradients)):
        if values is not None:
            read = [None if value is None else adapter.read(value) for value in values]
            refuse_other_dtypes(read)
            packed, result[part] = tensors.pack(part, read)
            found |= packed
    return result, found


def first_line(error: Exception) -> str:
    """What was wrong, without the C++ traces that some frameworks add."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def refuse_other_dtypes(gradients: Sequence[Gradient]) -> None:
    dtypes = {gradient.dtype for gradient in gradients if gradient is not None}
    if dtypes - tensors.CODES.keys():
        raise TypeError(f"the result holds {', '.join(dtypes)}")


def write_json(path: Path, data: Any) -> None:
    """Write a file that is there whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data), encoding="utf-8")
    partial.replace(path)


# -- how the names are called


def _in_place(adapter: Adapter, function: Callable[..., Any], arguments: dict[str, Any], made: list[Any]) -> Outcome:
    container = adapter.container(made)
    norm = function(container, **arguments)
    return norm, adapter.contents(container)


def _list(adapter: Adapter, function: Callable[..., Any], arguments: dict[str, Any], made: list[Any]) -> Outcome:
    clipped, norm = function(made, **arguments)
    return norm, clipped


def _each(adapter: Adapter, function: Callable[..., Any], arguments: dict[str, Any], made: list[Any]) -> Outcome:
    return None, [None if tensor is None else function(tensor, **arguments) for tensor in made]


def _measure(adapter: Adapter, function: Callable[..., Any], arguments: dict[str, Any], made: list[Any]) -> Outcome:
    return function(made, **arguments), None


def _class(adapter: Adapter, function: Callable[..., Any], arguments: dict[str, Any], made: list[Any]) -> Outcome:
    pairs = function(**arguments)(list(zip(adapter.parameters(made), made, strict=True)))
    return None, [gradient for _, gradient in pairs]


def _class_in_place(
    adapter: Adapter, function: Callable[..., Any], arguments: dict[str, Any], made: list[Any]
) -> Outcome:
    return _in_place(adapter, function(**arguments).clip_, {}, made)


STYLES: dict[str, Callable[[Adapter, Callable[..., Any], dict[str, Any], list[Any]], Outcome]] = {
    "in place": _in_place,
    "list": _list,
    "each": _each,
    "measure": _measure,
    "class": _class,
    "class in place": _class_in_place,
}


if __name__ == "__main__":
    main()
