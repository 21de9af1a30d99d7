"""Run cases in an old environment: `python -X faulthandler worker.py FRAMEWORK JOB OUT`.

`parity/workers/worker.py` describes the files in JOB and OUT. If the environment is new enough for unified_clip, this
file runs that worker instead.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import importlib.util
import json
import runpy
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .frameworks import Release, Stored

HERE = Path(__file__).resolve().parent
ALIGNMENT = 64  # in bytes


def _module_at(folder: Path, name: str) -> Any:
    """Import a module of unified_clip without the packages that contain it."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(name, None)  # a user's module can have the same name


sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
frameworks = _module_at(HERE, "frameworks")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run parity cases in an old environment.")
    parser.add_argument("framework")
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--functions", type=json.loads, default={})
    parser.add_argument("--returns", type=json.loads, default={})
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--graph", action="store_true")
    for name in ("--table", "--rank"):
        parser.add_argument(name, help="of parity/workers/worker.py")
    options = parser.parse_args()
    recorder = _module_at(HERE.parents[1], "recorder")
    is_new = sys.version_info >= recorder.PYTHON
    release, version = None, ""
    try:
        if options.framework in frameworks.RELEASES:
            module = importlib.import_module(options.framework)
            version = module.__version__.partition("+")[0]
            if not is_new or recorder.is_too_old(options.framework, version):
                release = frameworks.RELEASES[options.framework](module, graph=options.graph)
    except ImportError as error:
        write_json(options.out / "worker.json", {"missing": str(error)})
        return
    if release is not None:
        run(release, version, options)
    elif is_new and not options.graph:
        runpy.run_module("unified_clip.parity.workers.worker", run_name="__main__", alter_sys=True)
    else:
        problem = f"`graph` needs an old release, not {options.framework} {version}. Remove `graph`"
        if not is_new:
            problem = f"old environments of {options.framework} are not supported. Install Python 3.10 or newer"
        write_json(options.out / "worker.json", {"missing": problem})


def run(release: Release, version: str, options: argparse.Namespace) -> None:
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=False)
    warnings.simplefilter("ignore")
    versions = {"python": ".".join(map(str, sys.version_info[:2])), release.package: version, "numpy": np.__version__}
    write_json(options.out / "worker.json", {"versions": versions})
    job = json.loads((options.job / "job.json").read_text(encoding="utf-8"))
    raw = _open(options.job / "tensors")
    for item in job["runs"]:
        case, path = job["cases"][item["case"]], options.out / f"{item['number']}.json"
        with (options.out / "current.jsonl").open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([item['number']])}\n")
        started = time.perf_counter()
        tensors: Mapping[str, Sequence[Stored | None]] = {}
        try:
            if item["mode"] != "native":
                raise frameworks.NotAvailableError("unified_clip")
            gradients = [_stored_at(raw, entry) for entry in job["gradients"][case["gradients"]]]
            fields, tensors = run_case(release, case, gradients, options)
        except frameworks.NotAvailableError as error:
            fields = {"not available": f"{error} in {release.package} {version}"}
        except Exception as error:
            fields = {"unreadable": describe(error)}
        seconds = time.perf_counter() - started
        write_json(path, {**fields, "seconds": seconds, **_written(path.with_suffix(".tensors"), tensors)})


def run_case(
    release: Release, case: Mapping[str, Any], gradients: Sequence[Stored | None], options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, list[Stored | None]]]:
    for gradient in gradients:
        if gradient is not None and gradient.dtype in release.lacks:
            raise frameworks.NotAvailableError(f"{gradient.dtype} gradients")
    call = frameworks.Call(case)
    if call.form["expanded"] or call.form["overlapping"]:
        raise frameworks.NotAvailableError("gradients that share memory")
    release.feed.clear()
    with release.scope():
        call.tensors = [None if each is None else release.make(each) for each in gradients]
        call.parameters = release.parameters(call)
        try:
            if case["call"] in options.functions:
                call.name = options.functions[case["call"]]
                function = _function(options.root, call.name)
                norm, clipped = release.own(call, function, options.returns.get(case["call"], ""))
            else:
                norm, clipped = release.native(call) or (None, None)
            present = [each for each in (norm, *(clipped or ())) if each is not None]
            results = iter(release.evaluated(present) if present else [])
        except frameworks.NotAvailableError:
            raise
        except Exception as error:
            raised = [kind.__name__ for kind in type(error).__mro__]
            return {"name": call.name, "raised": raised, "message": describe(error)}, {}
        parts = {"norm": None if norm is None else [norm], "gradients": clipped}
        tensors = {
            part: [None if each is None else release.read(next(results)) for each in values]
            for part, values in parts.items()
            if values is not None
        }
    return {"name": call.name, "raised": []}, tensors


def describe(error: Exception) -> str:
    text = str(error).rpartition("Error Message Summary:")[2]  # of Paddle, after a C++ trace
    lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
    return f"{type(error).__name__}: {''.join(lines[:1])[:300]}"


def _function(root: Path, text: str) -> Callable[..., Any]:
    name, _, function = text.rpartition(":")
    path = (root / name).resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    found: Callable[..., Any] = getattr(importlib.import_module(path.stem), function)
    return found


def _open(path: Path) -> Any:
    return np.memmap(str(path), np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)


def _stored_at(raw: Any, entry: Any) -> Stored | None:
    if entry is None:
        return None
    if "rows" in entry:
        rows, values = (_dense_at(raw, entry[part]) for part in ("rows", "values"))
        return values._replace(rows=rows.array, shape=entry["shape"])
    return _dense_at(raw, entry)


def _dense_at(raw: Any, entry: Mapping[str, Any]) -> Stored:
    raw = _open(Path(entry["file"])) if "file" in entry else raw
    kind = np.dtype("u2" if entry["dtype"] == "bfloat16" else entry["dtype"])
    size, start = int(np.prod(entry["shape"], dtype=np.int64)) * kind.itemsize, entry["start"]
    array = np.array(raw[start : start + size]).view(kind).reshape(entry["shape"])
    dense: Stored = frameworks.Stored(entry["dtype"], array)
    return dense


def _written(path: Path, tensors: Mapping[str, Sequence[Stored | None]]) -> dict[str, Any]:
    """Write the tensors, and return their places in the file."""
    with path.open("wb") as file:

        def append(dtype: str, array: Any) -> Any:
            start = file.tell()
            size = file.write(np.ascontiguousarray(array).tobytes())
            file.write(bytes(-size % ALIGNMENT))
            return {"dtype": dtype, "shape": array.shape, "start": start}

        def entry(tensor: Stored | None) -> Any:
            if tensor is None or tensor.rows is None:
                return tensor and append(tensor.dtype, tensor.array)
            parts = {"rows": append("int64", tensor.rows.astype(np.int64)), "values": append(*tensor[:2])}
            return {**parts, "shape": list(map(int, tensor.shape))}

        return {part: list(map(entry, values)) for part, values in tensors.items()}


def write_json(path: Path, data: Any) -> None:
    """Write a file at once, so that the parent process never reads an incomplete file."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    main()
