"""`unified-clip compare` of a sparse gradient with a port that clips its stored rows, `gradient._values()`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.recordings import cause_kinds, write_and_compare

EXACT, STORED, KERNEL = 5.0, 4.0, 3.0
"""The norms of the embedding's gradient, of its stored rows, and of another gradient."""


def call(norm: Any, parameters: dict[str, tuple[float, list[int]]], **changes: Any) -> dict[str, Any]:
    gradients = {name: {"norm": gradient_norm, "shape": shape} for name, (gradient_norm, shape) in parameters.items()}
    clip_norm = changes.get("stored_norm", norm)
    coef = [0.5 / gradient_norm for gradient_norm in clip_norm] if isinstance(clip_norm, list) else 0.5 / clip_norm
    return {
        "step": 1, "call": "clip", "framework": "torch", "rule": "each" if isinstance(norm, list) else "global",
        "threshold": 0.5, "norm_type": 2.0, "eps": 0.0, "dtype": "float32", "norm": norm, "coef": coef, "clipped": True,
        "nan": 0, "inf": 0, "parameters": gradients, "count": len(gradients) or None, **changes,
    }  # fmt: skip


def sparse_clip(name: str = "table", **changes: Any) -> dict[str, Any]:
    return call([EXACT], {name: (EXACT, [20, 4])}, sparse=1, watched=True, stored_norm=[STORED], **changes)


def rows_clip(norm: float = STORED, count: int = 30, **changes: Any) -> dict[str, Any]:
    return call([norm], {"0": (norm, [count, 4])}, **changes)


@pytest.mark.parametrize("count", [30, 20])
@pytest.mark.parametrize("is_old", [True, False])
def test_a_clip_of_the_stored_rows_is_the_same(tmp_path: Path, count: int, is_old: bool) -> None:
    runs = [sparse_clip()], [rows_clip(count=count)]
    assert write_and_compare(tmp_path, *(runs if is_old else runs[::-1])).first is None


def test_rows_that_are_not_repeated_are_the_same(tmp_path: Path) -> None:
    old = call([EXACT], {"table": (EXACT, [20, 4])}, sparse=1, watched=True)
    assert write_and_compare(tmp_path, [old], [rows_clip(EXACT, count=6)]).first is None


def test_without_norms_of_parameters_the_norm_decides(tmp_path: Path) -> None:
    assert (
        write_and_compare(tmp_path, [{**sparse_clip(), "parameters": {}}], [{**rows_clip(), "parameters": {}}]).first
        is None
    )


def test_other_rows_and_other_thresholds_differ(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, [sparse_clip()], [rows_clip(STORED * 1.5)])
    assert comparison.first is not None
    assert (comparison.first.a, comparison.first.b) == (STORED, 1.5 * STORED)
    comparison = write_and_compare(tmp_path, [sparse_clip()], [rows_clip(threshold=0.25, coef=[0.0625])])
    assert cause_kinds(comparison) == ["another threshold"]


def test_a_port_that_sums_the_rows_is_named(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, [sparse_clip()], [call([EXACT], {"0": (EXACT, [20, 4])})])
    assert cause_kinds(comparison) == ["rows"]


@pytest.mark.parametrize(("kernel", "is_same"), [(KERNEL, True), (2.0, False)])
def test_a_clip_by_the_total_norm_of_stored_rows_is_the_same(tmp_path: Path, kernel: float, is_same: bool) -> None:
    exact, stored = (math.hypot(norm, KERNEL) for norm in (EXACT, STORED))
    old = call(exact, {"table": (EXACT, [20, 4]), "kernel": (KERNEL, [4, 2])}, sparse=1, watched=True,
               stored_norm=stored)  # fmt: skip
    new = call(stored, {"table": (STORED, [30, 4]), "kernel": (kernel, [4, 2])})
    assert (write_and_compare(tmp_path, [old], [new]).first is None) is is_same


def test_rows_are_named_beside_rounding_of_gradients(tmp_path: Path) -> None:
    """In float64, convolutions may differ by a little more than 64 ULP."""
    exact, stored = (math.hypot(norm, KERNEL) for norm in (EXACT, STORED))
    table, kernel = [20, 4], [4, 2]
    old = call(exact, {"table": (EXACT, table), "kernel": (KERNEL, kernel)}, dtype="float64", sparse=1, watched=True,
               stored_norm=stored)  # fmt: skip
    near = KERNEL * (1 + 2.0**-45)
    total = math.hypot(EXACT, near)
    new = call(total, {"table": (EXACT, table), "kernel": (near, kernel)}, dtype="float64")
    comparison = write_and_compare(tmp_path, [old], [new])
    assert "rows" in cause_kinds(comparison)
