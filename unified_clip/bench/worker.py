"""Measure one framework: `python -X faulthandler -m unified_clip.bench.worker FRAMEWORK JOB`. JOB contains the fields
of `Options` as JSON."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import unified_clip

from .._kit import workers
from . import cuda, lists, measure
from .gradients import create_gradients, rough_norm
from .options import Measurement, Options
from .pairs import FRAMEWORKS, MOST_COMPILED, Framework

Tables = dict[str, list[dict[str, Any]]]

LONG = 10**6
"""Memory speed is measured only for lists of gradients with more elements than this number."""


def main() -> None:
    warnings.simplefilter("ignore")
    name, options = sys.argv[1], Options(**json.loads(sys.argv[2]))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # stdout now goes to stderr: frameworks may print to stdout
        for result in results(name, options):
            print(json.dumps(result), file=out, flush=True)


def results(name: str, options: Options) -> Iterator[dict[str, Any]]:
    """Yield parts of bench.json."""
    framework = cuda.FRAMEWORK if options.device == "cuda" else FRAMEWORKS[name]
    try:
        framework.use_threads(options.threads)
        framework.pairs(create_gradients([(1,)], "float32"))
    except (ModuleNotFoundError, cuda.NoDeviceError) as error:
        if (getattr(error, "name", None) or "").startswith("unified_clip"):
            raise
        advice = "Install it" if options.device == "cuda" else f"Install it, or leave {name} out of --frameworks"
        yield {"missing": {name: f"{error}. {advice}." if isinstance(error, ModuleNotFoundError) else str(error)}}
        return
    versions = {package: importlib.metadata.version(package) for package in framework.packages}
    yield {"versions": versions, "compiled_kernels": {name: unified_clip.native_available()}}
    if framework.describe_device is not None:
        yield {"machine": framework.describe_device()}
    for measurement in options.measurements(name):
        tables = _measure_list(framework, measurement, options)
        labels = {"framework": name, **measurement.labels}
        yield {key: [labels | row for row in rows] for key, rows in tables.items()}


def _measure_list(framework: Framework, measurement: Measurement, options: Options) -> Tables:
    gc.collect()  # free the previous list
    gradients = create_gradients(measurement.shapes, measurement.dtype)
    norm, pairs, seconds = rough_norm(gradients), framework.pairs(gradients), options.seconds
    on_host = framework.describe_device is None
    memory = [_memory(pair) for pair in pairs.clips(norm / 2) if pair.in_place and on_host]
    ways = [("", pairs.clips)] + ([(", in a graph", pairs.in_graphs)] if len(gradients) <= MOST_COMPILED else [])
    compared = [
        {"what": f"{kind}{where}", **measure.compare(pair, seconds, milliseconds=framework.milliseconds)}
        for where, clips in ways
        for kind, threshold in (("clipped", norm / 2), ("not clipped", 2 * norm))
        for pair in clips(threshold)
    ]
    compared.append({"what": "norm alone", **measure.compare(pairs.norm, seconds, milliseconds=framework.milliseconds)})
    if framework.bytes_per_ms is not None:
        size, speed = sum(gradient.nbytes for gradient in gradients), framework.bytes_per_ms()
        for row in compared:  # a norm reads each gradient once, and a product reads and writes it
            row["floor_ms"] = float(f"{size * (3 if row['what'].startswith('clipped') else 1) / speed:.4g}")
    limits = []
    if lists.elements(measurement.shapes) > LONG and on_host:
        limits = [measure.limits(pairs.memory(), pairs.clips(norm)[0].prepare, options.threads, seconds)]
    return {"results": compared, "memory": memory, "limits": limits}


def _memory(pair: measure.Pair) -> dict[str, Any]:
    calls = {"ours_bytes": pair.unified, "native_bytes": pair.native}
    sizes = {key: call and measure.extra_memory(call, pair.prepare()) for key, call in calls.items()}
    return {"native": pair.native_name, **sizes}


if __name__ == "__main__":
    workers.prepare()
    main()
