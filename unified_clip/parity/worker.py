"""Run cases on one framework: `python -X faulthandler -m unified_clip.parity.worker FRAMEWORK JOB OUT`.

JOB is a directory with `job.json` and `gradients.safetensors`; into the directory OUT go `worker.json` as soon as
the framework is there, and, for run number N, `N.safetensors` and then `N.json`. So what was done remains when a
run takes the whole process down, and the first one without a result is the one that did.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._core.ops import Ops
from . import invoke, tensors
from .adapter import Adapter
from .invoke import Result
from .launch import DEVICE, HOST, NATIVE
from .tensors import Dense, Gradient, encode

PATHS = {HOST: "", DEVICE: "framework", NATIVE: ""}
"""UNIFIED_CLIP_PATH, by mode."""


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
    ops = importlib.import_module(f"unified_clip._ops.{options.framework}_ops").OPS
    job = json.loads((options.job / "job.json").read_text(encoding="utf-8"))
    write_json(options.out / "worker.json", {"versions": dict(versions(adapter.packages))})
    run(adapter, namespace, ops, job, tensors.load(options.job / "gradients.safetensors"), options.out)


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


def run(
    adapter: Adapter, namespace: Any, ops: Ops, job: Mapping[str, Any], stored: Mapping[str, Dense], out: Path
) -> None:
    """Make every run of a job, in order."""
    mode = None
    for one in job["runs"]:
        if one["mode"] != mode:
            mode = one["mode"]
            os.environ["UNIFIED_CLIP_PATH"] = PATHS[mode]
            check_path(adapter, ops, mode)
        case = job["cases"][one["case"]]
        gradients = tensors.unpack(case["gradients"], stored, job["gradients"][case["gradients"]])
        with adapter.scope({gradient.dtype for gradient in gradients if gradient is not None}):
            try:
                result, found = run_case(adapter, namespace, case, gradients, mode == NATIVE)
            except Exception as error:
                result, found = {"unreadable": f"{type(error).__name__}: {error}"}, {}
        tensors.save(out / f"{one['number']}.safetensors", found)
        write_json(out / f"{one['number']}.json", result)


def run_case(
    adapter: Adapter, namespace: Any, case: Mapping[str, Any], gradients: Sequence[Gradient], native: bool
) -> tuple[dict[str, Any], dict[str, Dense]]:
    """One case by our function, or by the framework's own: what came out, and the tensors of it."""
    invocation = invoke.make(adapter, case, gradients)
    if native:
        result = invoke.native(invocation)
    else:
        function = getattr(namespace, case["call"].removesuffix(".clip_"))
        result = invoke.ours(invocation, function, namespace, gradients)
    if case["update"] and result.gradients is not None:
        result.update = adapter.sgd(result.gradients)
    return pack(adapter, result)


def pack(adapter: Adapter, result: Result) -> tuple[dict[str, Any], dict[str, Dense]]:
    """A result as JSON and tensors."""
    told = ("name", "structure", "warned", "raised", "message", "fault", "same_objects")
    packed: dict[str, Any] = {key: getattr(result, key) for key in told}
    found: dict[str, Dense] = {}
    norm = None if result.norm is None else [result.norm]
    for part, values in (("norm", norm), ("gradients", result.gradients), ("update", result.update)):
        if values is not None:
            read = [None if value is None else adapter.read(value) for value in values]
            refuse_other_dtypes(read)
            held, packed[part] = tensors.pack(part, read)
            found |= held
    return packed, found


def refuse_other_dtypes(gradients: Sequence[Gradient]) -> None:
    dtypes = {gradient.dtype for gradient in gradients if gradient is not None}
    if dtypes - tensors.STORAGE.keys():
        raise TypeError(f"the result holds {', '.join(dtypes)}")


def write_json(path: Path, data: Any) -> None:
    """Write a file that is there whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data), encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
