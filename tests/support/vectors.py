"""Run the conformance vectors through a framework's namespace."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unified_clip.parity.adapters.base import Adapter
from unified_clip.parity.workers import invoke
from unified_clip.tensors.types import PARTS, Dense, Gradient, Sparse, densify, encode
from unified_clip.tensors.ulp import ulps

VECTORS = Path(__file__).parents[2] / "conformance"
FILES = sorted(path for path in VECTORS.glob("*.json") if path.name != "schema.json")


def load(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read(written: Mapping[str, Any] | None) -> Gradient:
    if written is None:
        return None
    dtype, shape, rows = written["dtype"], written["shape"], written.get("rows")
    stored_shape = [*(shape if rows is None else [len(rows), *shape[1:]]), *([2] if dtype in PARTS else [])]
    dense = encode(np.array([float.fromhex(x) for x in written["values"]], np.float64).reshape(stored_shape), dtype)
    return dense if rows is None else Sparse(np.array(rows, np.int64), dense, tuple(shape))


WORDS = ("rule", "convention")
"""The arguments that are words. Other text is a number."""


def argument(name: str, value: Any) -> Any:
    return float.fromhex(value) if isinstance(value, str) and name not in WORDS else value


def failures(path: Path, adapter: Adapter, namespace: Any, without: Collection[str] = ()) -> list[str]:
    """Return the vectors of a file that a namespace fails, with reasons. `without`: dtypes that the framework lacks."""
    chosen = [vector for vector in load(path)["vectors"] if not dtypes(vector) & set(without)]
    reasons = ((vector["name"], wrong(vector, adapter, namespace)) for vector in chosen)
    return [f"{name}: {reason}" for name, reason in reasons if reason]


def dtypes(vector: Mapping[str, Any]) -> set[str]:
    return {gradient["dtype"] for gradient in vector["gradients"] if gradient}


def wrong(vector: Mapping[str, Any], adapter: Adapter, namespace: Any) -> str:
    with adapter.scope(dtypes(vector)):
        return _wrong(vector, adapter, namespace)


def _wrong(vector: Mapping[str, Any], adapter: Adapter, namespace: Any) -> str:
    expected = vector["expected"]
    call_form = {key: vector[key] for key in ("need_clip", "groups") if key in vector}
    arguments = {key: argument(key, value) for key, value in vector["arguments"].items()}
    case = {"call": vector["call"], "arguments": arguments, "call_form": call_form}
    run = invoke.make(adapter, case, [read(gradient) for gradient in vector["gradients"]])
    function = invoke.function_of(namespace, vector["call"])
    result = invoke.observe(invoke.call_public_name, run, function, namespace)
    if result.raised or "raises" in expected:
        return "" if expected.get("raises") in result.raised else f"raised {result.raised[:1]}"
    ulps = vector.get("ulps", {"norm": 0, "gradients": 0})
    if "norm" in expected:
        norm = read({"dtype": expected["norm"]["dtype"], "shape": [], "values": [expected["norm"]["value"]]})
        off = distance(norm, adapter.read(result.norm))
        if off > ulps["norm"]:
            return f"the norm is off by {off:g}"
    right, got = expected.get("gradients", []), list(result.gradients or [])
    if len(right) != len(got):
        return f"{len(got)} gradients instead of {len(right)}"
    for index, (gradient, tensor) in enumerate(zip(right, got, strict=True)):
        off = distance(read(gradient), None if tensor is None else densify(adapter.read(tensor)))
        if off > ulps["gradients"]:
            return f"gradient {index} is off by {off:g}"
    return ""


def distance(expected: Gradient, result: Gradient) -> float:
    """Return the distance in ULP. For different dtypes or shapes, the distance is infinite."""
    if expected is None or result is None:
        return 0.0 if expected is result else float("inf")
    assert isinstance(expected, Dense)
    assert isinstance(result, Dense)
    same_form = (expected.dtype, expected.shape) == (result.dtype, result.shape)
    return ulps([expected], [result]) if same_form else float("inf")
