"""Run cases on one framework: `python -X faulthandler -m unified_clip.parity.workers.worker FRAMEWORK JOB OUT`.

`run_worker.write_job` has written the work items into the directory JOB. The worker imports the framework, and writes
its versions to `worker.json` in the directory OUT. Before it runs work items, it appends a line with their numbers to
`current.jsonl`. For work item N, it writes the files `N.tensors` and then `N.json`. So results remain if an item
crashes the process, and the last line of `current.jsonl` has the item that crashed it.

If a mode has several ranks, this process is rank 0. It starts the other ranks with `--mode` and `--rank`. The other
ranks write nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ... import _workers
from ..._core.backend import Backend
from ..._core.distributed import INFERRED
from ..._core.types import Leaf
from ..._display import describe_exception
from ...tensors.files import memmap
from ...tensors.types import STORAGE, Dense, Gradient, Sparse, encode
from ..adapters.base import Adapter, FunctionsMissingError
from ..modes import DEVICE, EXACT, HOST, IN_GRAPHS, KERNELS_IN_GRAPHS, NATIVE, PROCESSES, TITLES
from ..suite import own_functions
from . import invoke, ranks
from .invoke import CallResult
from .user_function import UserFunction, UserFunctionError

PATHS = {DEVICE: "framework"}
"""The value of the environment variable UNIFIED_CLIP_PATH in each mode that needs one."""

MOST_GRAPHS = 20
"""The largest number of graphs for one mode of a framework. Compiling takes seconds, so cases share graphs."""

MOST_WAITING = 1 << 30
"""The worker waits while the results that the parent process has not read yet have more bytes than this in total."""

WIDE = {"float64", "complex128", "int64"}
"""The dtypes with 64-bit numbers. JAX supports them only in its 64-bit mode."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run parity cases on one framework.")
    parser.add_argument("framework")
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mode", help="run this mode only, as a rank other than 0")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--functions", type=json.loads, default={}, help="FILE.py:FUNCTION of the user by public name")
    parser.add_argument(
        "--returns", type=json.loads, default={}, help='"gradients" or "nothing" for functions without a norm'
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the directory to which these files are relative")
    options = parser.parse_args()
    _workers.prepare()
    warnings.simplefilter("ignore")
    try:
        if options.framework == "tensorflow":
            _workers.import_tensorflow()
        adapter: Adapter = importlib.import_module(f"unified_clip.parity.adapters.{options.framework}").Framework()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("unified_clip"):
            raise
        write_json(options.out / "worker.json", {"missing": str(error)})
        return
    namespace = importlib.import_module(f"unified_clip.{options.framework}")
    backend = importlib.import_module(f"unified_clip._backends.{options.framework}").BACKEND
    if options.rank == 0:
        write_json(options.out / "worker.json", {"versions": dict(versions(adapter.packages))})
    run(options, adapter, namespace, backend)


def check_path(adapter: Adapter, backend: Backend, mode: str) -> None:
    """Check, with a tensor of one element, that the backend takes the path that the mode tests: host or device.

    In the mode `native` there is no path to check.

    RuntimeError: the mode is unknown. Or the backend computes on the other path, or treats a distributed tensor as a
        plain tensor. The mode would then test the wrong code.
    """
    (plain,), on_host = adapter.make_all([encode(np.ones(1), "float32")]), []

    def look(tensors: Sequence[Any]) -> Sequence[Any]:
        on_host.append(backend.path(tensors, differentiable=False).on_host)
        return tensors

    if mode in IN_GRAPHS:
        adapter.run_in_graph(mode, look, [plain])
    elif mode in (HOST, DEVICE):
        look([plain])
    elif mode in PROCESSES:
        leaves = [Leaf(plain, 0)]
        if backend.distributed is not None:
            shards = backend.distributed.shards(leaves, leaves, INFERRED, differentiable=False)
            if shards is not None:
                look(shards.values)
    elif mode != NATIVE:
        raise RuntimeError(unknown_mode("check_path", mode))
    if mode != NATIVE and set(on_host) != {mode in EXACT}:
        problem = (
            "the backend used another path" if on_host else "the backend treated a distributed tensor as a plain one"
        )
        remedy = f"Check how the adapter makes its tensors, and {'Backend.path' if on_host else 'Backend.distributed'}."
        raise RuntimeError(f"mode {mode!r} ({TITLES[mode]}): {problem}. {remedy}")


def unknown_mode(function: str, mode: str) -> str:
    """Return the message of an error: a function of this module has no branch for a mode."""
    return f"mode {mode!r}: {function} in parity/workers/worker.py has no branch for this mode. Add one."


def versions(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (package, version) for each of these packages that is installed, for NumPy, and for Python.

    Python's version has two numbers, because a third one changes no results.
    """
    yield "python", ".".join(platform.python_version_tuple()[:2])
    for package in dict.fromkeys([*packages, "numpy"]):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield package, importlib.metadata.version(package)


def run(options: argparse.Namespace, adapter: Adapter, namespace: Any, backend: Backend) -> None:
    """Run the work items in the directory JOB, and write the results into the directory OUT.

    With `--mode`, run only the items of that mode. A rank other than 0 runs its items, but writes nothing.

    namespace: The module with the public functions, such as `unified_clip.torch`.
    """
    out, rank = options.out, options.rank
    job = json.loads((options.job / "job.json").read_text(encoding="utf-8"))
    stored = memmap.open_map(options.job / memmap.TENSORS)
    items = [item for item in job["runs"] if options.mode in (None, item["mode"])]
    results_out = ResultsOut(out)

    def gradients(item: Item) -> list[Gradient]:
        return [memmap.at(stored, entry) for entry in job["gradients"][job["cases"][item["case"]]["gradients"]]]

    def is_alone(item: Item) -> bool:
        return item["mode"] not in IN_GRAPHS or job["cases"][item["case"]]["raises"]

    for mode, runs in groupby(items, lambda item: item["mode"]):
        os.environ["UNIFIED_CLIP_PATH"] = PATHS.get(mode, "")
        with ranks.process_group(options.framework, adapter, mode, rank, out / f"{mode}.meeting") as holding:
            check_path(holding, backend, mode)
            for batch in batches(list(runs), is_alone, lambda item: bool(dtypes(gradients(item)) & WIDE)):
                cases = [(with_function(job["cases"][item["case"]], options), gradients(item)) for item in batch]
                if rank == 0:
                    results_out.start([item["number"] for item in batch])
                started = time.perf_counter()
                results = run_cases(holding, namespace, mode, cases)
                seconds = (time.perf_counter() - started) / len(batch)
                for item, case, (result, tensors) in zip(batch, cases, results if rank == 0 else (), strict=rank == 0):
                    exact_norm = by_kernels_in_graph(backend, mode, *case)
                    fields = {**result, "seconds": seconds, "exact_norm": exact_norm}
                    results_out.write(item["number"], fields, tensors)


def with_function(case: Mapping[str, Any], options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the case with the key `user_function`: the user's function for its public name, or None."""
    name = case["call"]
    function = None
    if text := options.functions.get(name):
        place = f"{options.framework}.{name}"
        file, function_name = own_functions.split(text, options.root)
        function = UserFunction(text, file, function_name, place, options.returns.get(name, ""))
    return {**case, "user_function": function}


Item = Mapping[str, Any]
"""A work item in job.json, with the keys `number`, `mode` and `case` (its name)."""

Job = tuple[Mapping[str, Any], Sequence[Gradient]]
"""A case to run: (the case as job.json describes it, its gradients)."""

Packed = tuple[dict[str, Any], dict[str, list[Gradient]]]
"""A result as (fields for `N.json`, its lists of tensors by name, for `N.tensors`)."""


def run_cases(adapter: Adapter, namespace: Any, mode: str, cases: Sequence[Job]) -> list[Packed]:
    """Run these cases, and return their results in order.

    If the cases share a graph and the graph fails, run them one by one. The result of a case that fails alone is
    {"unreadable": the error}. If the package with the framework's own functions cannot be imported, the result is
    {"missing": the error}. If no case fails alone, the first case gets the error of the shared graph.
    """
    try:
        with adapter.scope({dtype for _, gradients in cases for dtype in dtypes(gradients)}):
            return list(_run_cases(adapter, namespace, mode, cases))
    except FunctionsMissingError as error:  # in the mode `native`, in which each case runs alone
        return [({"missing": str(error)}, {})]
    except Exception as error:
        message = str(error) if isinstance(error, UserFunctionError) else describe_exception(error)
        ranks.gather_in_step(adapter, "an unreadable result")
    if len(cases) == 1:
        return [({"unreadable": message}, {})]
    results = [result for case in cases for result in run_cases(adapter, namespace, mode, [case])]
    if not any("unreadable" in result for result, _ in results):  # each case runs alone: only their shared graph fails
        results[0] = (
            {"unreadable": f"fails in a graph with other cases ({len(cases) - 1}), but not alone: {message}"},
            {},
        )
    return results


def _run_cases(adapter: Adapter, namespace: Any, mode: str, cases: Sequence[Job]) -> Iterator[Packed]:
    """Run the cases, and yield the result of each, as `pack` returns it.

    In the mode `native`, call the framework's functions. In the other modes, call unified_clip. If results differ
    between ranks, the field `fault` of the result names the ranks.

    cases: The cases of one batch, as the function `batches` yields it. In a graph, a case that should raise an error
        is the only one.

    RuntimeError: the mode is unknown.
    """
    calls = [
        (invoke.make(adapter, case, gradients), invoke.function_of(namespace, case["call"]))
        for case, gradients in cases
    ]
    if mode in IN_GRAPHS and cases[0][0]["raises"]:
        results = [invoke.observe(lambda: invoke.call_in_graph(mode, calls, namespace)[0])]
    elif mode in IN_GRAPHS:
        results = invoke.call_in_graph(mode, calls, namespace)
    elif mode == NATIVE:
        functions = [case["user_function"] for case, _ in cases]
        results = [invoke.call_native(call, function) for (call, _), function in zip(calls, functions, strict=True)]
    elif mode in (HOST, DEVICE, *PROCESSES):
        results = [invoke.observe(invoke.call_public_name, *call, namespace) for call in calls]
    else:
        raise RuntimeError(unknown_mode("_run_cases", mode))
    for (invocation, _), (case, gradients), result in zip(calls, cases, results, strict=True):
        invoke.read_steps(invocation, result)
        ranks.gather_in_step(adapter, "".join(result.raised[:1]) or "the end of a call")
        if mode != NATIVE:
            invoke.record_effects(invocation, result, gradients)
        elif case["user_function"]:
            result.changed_inputs = invoke.changes_inputs(invocation, result, gradients)
        if case["update"] and result.gradients is not None:
            result.update = adapter.sgd(result.gradients)
        packed, tensors = pack(adapter, result)
        packed["fault"] = packed["fault"] or ranks.compare_ranks(adapter, packed, tensors)
        yield packed, tensors


def by_kernels_in_graph(backend: Backend, mode: str, case: Mapping[str, Any], gradients: Sequence[Gradient]) -> bool:
    """Return whether the compiled kernels compute the norm of a case in a graph of this mode."""
    arguments = case["arguments"]
    return (
        mode in KERNELS_IN_GRAPHS.get(backend.name, ())
        and backend.kernels_in_graphs()
        and arguments.get("norm_type", 2) in (1, 2)
        and arguments.get("axes") is None
        and not any(isinstance(gradient, Sparse) for gradient in gradients)
        and not any(dtype.startswith("complex") for dtype in dtypes(gradients))
    )


def dtypes(gradients: Sequence[Gradient]) -> set[str]:
    return {gradient.dtype for gradient in gradients if gradient is not None}


def batches(
    runs: Sequence[Item], is_alone: Callable[[Item], bool], is_wide: Callable[[Item], bool]
) -> Iterator[list[Item]]:
    """Yield batches: lists of the work items of a mode. The items of a batch share a graph.

    At most MOST_GRAPHS batches have several items.

    is_alone: A function that returns whether an item needs a batch for itself.
    is_wide: A function that returns whether an item has 64-bit numbers. Such items share no batch with other items.
    """
    yield from ([item] for item in runs if is_alone(item))
    shared = [item for item in runs if not is_alone(item)]
    size = max(1, -(-len(shared) // (MOST_GRAPHS - 1)))
    for wide in (False, True):
        chosen = [item for item in shared if is_wide(item) == wide]
        yield from (chosen[start : start + size] for start in range(0, len(chosen), size))


def pack(adapter: Adapter, result: CallResult) -> Packed:
    """Split a result into (fields for JSON, lists of tensors by name). The tensors are converted to NumPy.

    TypeError: a tensor of the result has a dtype that unified_clip does not support.
    """
    keys = ("name", "structure", "warned", "raised", "message", "fault", "changed_inputs", "same_objects")
    norm = None if result.norm is None else [result.norm]
    lists = {"norm": norm, "gradients": result.gradients, "update": result.update}
    tensors = {
        name: [value if value is None or isinstance(value, Dense) else adapter.read(value) for value in values]
        for name, values in lists.items()
        if values is not None
    }
    if unknown := {dtype for gradients in tensors.values() for dtype in dtypes(gradients)} - STORAGE.keys():
        raise TypeError(
            f"the result has dtype {min(unknown)}, which is not supported. Convert it to one of {', '.join(STORAGE)}"
        )
    return {key: getattr(result, key) for key in keys}, tensors


class ResultsOut:
    """The directory of the results. The parent process reads the results while this process runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._room = 0
        """The bytes to write before the size of the directory is computed again: the parent only deletes files."""

    def start(self, numbers: Sequence[int]) -> None:
        """Store the numbers of the work items that run next. To append is faster than to replace a file."""
        with (self._directory / "current.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(numbers)}\n")

    def write(self, number: int, result: Mapping[str, Any], tensors: Mapping[str, Sequence[Gradient]]) -> None:
        """Write the result of a work item. If MOST_WAITING bytes of results are unread, first wait for the parent."""
        while self._room <= 0:
            self._room = MOST_WAITING - sum(map(_size, os.scandir(self._directory)))
            if self._room <= 0:
                time.sleep(0.05)
        with (self._directory / f"{number}.{memmap.TENSORS}").open("wb") as file:
            entries = {name: [memmap.append(file, each) for each in gradients] for name, gradients in tensors.items()}
            self._room -= file.tell()
        write_json(self._directory / f"{number}.json", {**result, **entries})


def _size(entry: os.DirEntry[str]) -> int:
    with contextlib.suppress(FileNotFoundError):  # the parent has read it in between
        return entry.stat().st_size
    return 0


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file, and rename it when it is complete. So the parent process never reads half a file."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data), encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
