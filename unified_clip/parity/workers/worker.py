"""Run cases on one framework: `python -X faulthandler -m unified_clip.parity.workers.worker FRAMEWORK JOB OUT`.

The directory JOB contains the work items. The worker writes these files to the directory OUT:

- `worker.json`: the versions of the framework's packages
- `current.jsonl`: before each call, a line with the numbers of the items in the call
- `N.tensors` and `N.json`: the result of work item N

If the process crashes, the last line of `current.jsonl` contains the number of the item that caused the crash.
All items have the same mode. If the mode has several ranks, this process is rank 0, and starts the others with `--rank`
and the number of the rank.
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
from pathlib import Path
from typing import Any

import numpy as np

from ..._core.backend import Backend
from ..._core.distributed import INFERRED
from ..._core.types import Leaf
from ..._kit import atomic_files, workers
from ..._kit.display import counted, describe_exception
from ...tensors.files import memmap
from ...tensors.types import STORAGE, Dense, Gradient, Sparse, encode
from ..adapters.base import Adapter, FunctionsMissingError
from ..modes import DEVICE, EXACT, HOST, IN_GRAPHS, KERNELS_IN_GRAPHS, NATIVE, PROCESSES, TITLES
from ..suite import own_functions
from . import invoke, ranks
from .invoke import CallResult
from .user_function import UserFunction, UserFunctionError

PATHS = {DEVICE: "framework"}
MOST_GRAPHS = 20
"""The largest number of graphs for one mode. Compiling a graph takes seconds, so cases share graphs."""

WIDE = {"float64", "complex128", "int64"}
"""The dtypes with 64-bit numbers. JAX supports these dtypes only in its 64-bit mode."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Run parity cases on one framework.")
    parser.add_argument("framework")
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--functions", type=json.loads, default={}, help="{public function: FILE.py:FUNCTION}")
    parser.add_argument("--returns", type=json.loads, default={}, help='{public function: "gradients" or "nothing"}')
    parser.add_argument("--root", type=Path, default=Path(), help="the directory of the files in --functions")
    parser.add_argument("--table", help="the framework's table in the suite, if `--functions` is used")
    options = parser.parse_args()
    workers.prepare()
    warnings.simplefilter("ignore")
    try:
        if options.framework == "tensorflow":
            workers.import_tensorflow()
        module = importlib.import_module(f"unified_clip.parity.adapters.{options.framework}")
        adapter: Adapter = module.FrameworkAdapter()
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
    (plain,), on_host = adapter.make_all([encode(np.ones(1), "float32")]), []

    def look(tensors: Sequence[Any]) -> Sequence[Any]:
        on_host.append(backend.path(tensors, differentiable=False).on_host)
        return tensors

    if mode in IN_GRAPHS:
        adapter.run_in_graph(mode, look, [plain])
    elif mode in PROCESSES:
        leaves = [Leaf(plain, 0)]
        distributed = backend.distributed
        shards = None if distributed is None else distributed.shards(leaves, leaves, INFERRED, differentiable=False)
        if shards is not None:
            look(shards.values)
    elif mode in (HOST, DEVICE):
        look([plain])
    elif mode != NATIVE:
        raise RuntimeError(f"mode {mode!r}: check_path in parity/workers/worker.py has no branch for this mode")
    if mode != NATIVE and set(on_host) != {mode in EXACT}:
        problem = "the backend did not take this path" if on_host else "a distributed tensor was taken for a plain one"
        raise RuntimeError(f"mode {mode!r} ({TITLES[mode]}): {problem}. Check the tensors of the adapter")


def versions(packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (package, version). Python's version is shortened, as in "3.11", because patch releases do not affect
    results.
    """
    yield "python", ".".join(platform.python_version_tuple()[:2])
    for package in dict.fromkeys([*packages, "numpy"]):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield package, importlib.metadata.version(package)


def run(options: argparse.Namespace, adapter: Adapter, namespace: Any, backend: Backend) -> None:
    out, rank = options.out, options.rank
    job = json.loads(atomic_files.read_text(options.job / "job.json"))
    stored = memmap.open_map(options.job / memmap.TENSORS)
    items: Sequence[Item] = job["runs"]
    mode = items[0]["mode"]

    def gradients(item: Item) -> list[Gradient]:
        return [memmap.at(stored, entry) for entry in job["gradients"][job["cases"][item["case"]]["gradients"]]]

    def is_alone(item: Item) -> bool:
        return mode not in IN_GRAPHS or job["cases"][item["case"]]["raises"]

    os.environ["UNIFIED_CLIP_PATH"] = PATHS.get(mode, "")
    with ranks.process_group(options.framework, adapter, mode, rank, out / "meeting") as holding:
        check_path(holding, backend, mode)
        for batch in batches(items, is_alone, lambda item: bool(dtypes(gradients(item)) & WIDE)):
            cases = [(with_function(job["cases"][item["case"]], options), gradients(item)) for item in batch]
            if rank == 0:
                with (out / "current.jsonl").open("a", encoding="utf-8") as file:
                    file.write(f"{json.dumps([item['number'] for item in batch])}\n")
            started = time.perf_counter()
            results = run_cases(holding, namespace, mode, cases)
            seconds = (time.perf_counter() - started) / len(batch)
            for item, case, (result, tensors) in zip(batch, cases, results if rank == 0 else (), strict=rank == 0):
                exact_norm = by_kernels_in_graph(backend, mode, *case)
                write_result(out, item["number"], {**result, "seconds": seconds, "exact_norm": exact_norm}, tensors)


def with_function(case: Mapping[str, Any], options: argparse.Namespace) -> Mapping[str, Any]:
    name = case["call"]
    function = None
    if text := options.functions.get(name):
        place = f"{options.table}.{name}"
        file, function_name = own_functions.split_name(text, options.root)
        function = UserFunction(text, file, function_name, place, options.returns.get(name, ""))
    return {**case, "user_function": function}


Item = Mapping[str, Any]
Job = tuple[Mapping[str, Any], Sequence[Gradient]]
Packed = tuple[dict[str, Any], dict[str, list[Gradient]]]
"""The result of work item N: (fields of the file `N.json`, {name: tensors} of the file `N.tensors`)."""


def run_cases(adapter: Adapter, namespace: Any, mode: str, cases: Sequence[Job]) -> list[Packed]:
    """Run the cases, and return their results in order.

    If a graph with several cases fails, the cases run one by one. A case that also fails alone gets the result
    {"unreadable": error}. If every case succeeds alone, the first case gets this result, to report the failure of the
    graph.
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
    if not any("unreadable" in result for result, _ in results):  # every case succeeds alone: only the graph fails
        results[0] = (
            {"unreadable": f"fails in a graph with {counted(len(cases) - 1, 'other case')}, but not alone: {message}"},
            {},
        )
    return results


def _run_cases(adapter: Adapter, namespace: Any, mode: str, cases: Sequence[Job]) -> Iterator[Packed]:
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
    else:
        results = [invoke.observe(invoke.call_public_name, *call, namespace) for call in calls]
    for (invocation, _), (case, gradients), result in zip(calls, cases, results, strict=True):
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
    """Yield lists of work items. The items of a list share a graph.

    is_alone: Whether an item needs a separate graph.
    is_wide: Whether an item has 64-bit numbers. Items with and without 64-bit numbers never share a graph.
    """
    yield from ([item] for item in runs if is_alone(item))
    shared = [item for item in runs if not is_alone(item)]
    size = max(1, -(-len(shared) // (MOST_GRAPHS - 1)))
    for wide in (False, True):
        chosen = [item for item in shared if is_wide(item) == wide]
        yield from (chosen[start : start + size] for start in range(0, len(chosen), size))


def pack(adapter: Adapter, result: CallResult) -> Packed:
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
            f"the result has dtype {min(unknown)}, which is not supported. Convert the result to one of "
            f"{', '.join(STORAGE)}"
        )
    return {key: getattr(result, key) for key in keys}, tensors


def write_result(out: Path, number: int, result: Mapping[str, Any], tensors: Mapping[str, Sequence[Gradient]]) -> None:
    with (out / f"{number}.{memmap.TENSORS}").open("wb") as file:
        entries = {name: [memmap.append(file, each) for each in gradients] for name, gradients in tensors.items()}
    write_json(out / f"{number}.json", {**result, **entries})


def write_json(path: Path, data: Any) -> None:
    atomic_files.write(path, json.dumps(data))  # at once, so the parent process never reads an incomplete file


if __name__ == "__main__":
    main()
