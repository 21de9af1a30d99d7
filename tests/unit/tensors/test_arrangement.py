"""Fingerprints of the order of a weight's elements."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from unified_clip.tensors import arrangement


@pytest.mark.parametrize("shape", [(5,), (0,), (1, 1), (3, 7), (0, 4), (4, 0), (300, 40)])
@pytest.mark.parametrize("elements", [7, 1 << 20])
def test_slices_give_the_fingerprints_of_the_whole_and_of_its_transpose(
    shape: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrangement, "SLICE", elements)
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = arrangement.arrangement(weight, "float32")
    matrix = np.atleast_2d(weight.astype(np.float64))
    whole = [arrangement._row_factors(len(each)) @ each @ arrangement._column_factors(len(each.T))
             for each in (matrix, matrix.T)]  # fmt: skip
    assert found == pytest.approx(whole, rel=0, abs=1e-12 * (1 + np.linalg.norm(matrix)))


def test_a_large_weight_is_not_copied_whole() -> None:
    weight = np.ones((1 << 12, 1 << 11), np.float32)
    tracemalloc.start()
    arrangement.arrangement(weight, "float32")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weight.size * 8 / 2, "bytes of half of the weight in float64"
