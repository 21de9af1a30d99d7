"""PyTorch: one all-reduce sums all `Partial` gradients, after the ranks have compared their lists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support import reference
from support.processes import torch_sharded_terms as terms
from support.processes.torch_sharded_terms import LAYOUTS, NUMBER, Summed, place
from support.processes.worlds import World
from support.tiers import nightly

Worlds = Callable[[int], World]

ALL_REDUCES = {"row": 2, "mean": 2, "both dimensions": 2, "beside copies": 3, "beside shards": 3, "sub-mesh": 3}
"""The all-reduces for six gradients. If the partial sums are on all ranks, the norm needs no further one."""


def complete_gradients(layout: str, results: Sequence[Summed], dtype: str) -> list[np.ndarray]:
    sums: dict[tuple[int, int], np.ndarray] = {}
    places = {place(layout, rank): rank for rank in range(4)}
    for (_, shard), rank in places.items():
        for number in range(NUMBER):
            term = results[rank].terms[number].astype(np.float64)
            sums[number, shard] = sums.get((number, shard), 0) + term
    divisor = 4 if layout == "mean" else 1
    return [
        *(reference.array(array / divisor, dtype) for array in sums.values()),
        np.concatenate([result.terms[NUMBER] for result in results]),
    ]


@pytest.mark.parametrize("dtype", ["float32", *nightly("bfloat16")])
@pytest.mark.parametrize("p", [2.0, *nightly(1.0, 3.0, math.inf)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_norm_is_that_of_the_sums(torch_worlds: Worlds, layout: str, p: float, dtype: str) -> None:
    results = torch_worlds(4).run(terms.clip_terms, layout, p, dtype)
    arrays = complete_gradients(layout, results, dtype)
    norm = results[0].norm
    if p == 3:
        wide = np.concatenate([array.ravel().astype(np.float64) for array in arrays])
        assert norm == pytest.approx((np.abs(wide) ** 3).sum() ** (1 / 3), rel=1e-6)
    else:
        assert norm == reference.norm(arrays, p)
    assert [(result.error, result.norm) for result in results] == [("", norm)] * 4
    coef = reference.coefficient(norm, 1.0, 1e-6)
    for result in results:
        if p == 2:
            assert result.all_reduces == ALL_REDUCES[layout]
        for number, (before, after) in enumerate(zip(result.terms, result.after, strict=True)):
            scaled = reference.array(reference.scaled(before, coef), dtype if number < NUMBER else "float32")
            np.testing.assert_array_equal(after, scaled.astype(np.float32))


@pytest.mark.parametrize("p", [2.0, *nightly(1.0, 3.0, math.inf)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("without the first", r"position 0 .*  rank 1 +None$"),
        ("without any", r"position 0 .*  ranks 0, 2, 3  3 copies, 1 of them the first: there should be 4, one of"),
        ("another dtype", r"position 2 .*  rank 1 +\[.*\] float64, sum$"),
        ("summed already", r"position 1 .*  rank 1 +None$"),
    ],
)
def test_disagreeing_ranks_raise_before_partial_sums_are_reduced(
    torch_worlds: Worlds, change: str, message: str, p: float
) -> None:
    results = torch_worlds(4).run(terms.clip_terms, "row", p, "float32", change)
    assert len({result.error for result in results}) == 1
    assert results[0].error.startswith("Partial gradients differ in shape, dtype or placements: ")
    assert re.search(message, results[0].error, re.MULTILINE), results[0].error
    for result in results:
        for before, after in zip(result.terms, result.after, strict=True):
            np.testing.assert_array_equal(after, before)
    assert not torch_worlds(4).run(terms.clip_terms, "row")[0].error, "the next call works"


def test_a_rank_that_rejects_the_call_stops_all_ranks(torch_worlds: Worlds) -> None:
    for rank, result in enumerate(torch_worlds(4).run(terms.clip_terms, "row", 2.0, "float32", "integers")):
        assert result.error.startswith(
            "position 7" if rank == 1 else "rank 1 rejected this call: TypeError: position 7"
        )


def test_partial_placements_that_are_no_sums_are_rejected(torch_worlds: Worlds) -> None:
    for error in torch_worlds(4).run(terms.error_for_norms):
        assert "has the placement _NormPartial" in error


def test_a_rank_without_the_mesh_of_a_gradient_clips_the_others(torch_worlds: Worlds) -> None:
    assert torch_worlds(4).run(terms.norm_beside_a_mesh_of_two) == [1.0] * 4
