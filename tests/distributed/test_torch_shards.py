"""PyTorch: gradients on several ranks are clipped to the same bits as on one rank."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from support import reference
from support.processes import torch_sharded
from support.processes.torch_sharded import PLACEMENTS
from support.processes.worlds import World
from support.tiers import nightly

import unified_clip.numpy as np_uc

SIZES = [1, 2, *nightly(4)]


def arrays(dtype: str = "float32") -> list[np.ndarray]:
    """Return arrays with sizes that no number of processes divides. One has a single row, and one is empty."""
    random = np.random.default_rng(3)
    shapes = [(7, 5), (53,), (1, 3), (129, 17), (2, 3, 4), (0, 4)]
    return [reference.array(random.standard_normal(shape) * 3.0**number, dtype) for number, shape in enumerate(shapes)]


COUNTER_EXAMPLE = np.array([2.0**24, 2.0**12, 2.0**12] + [2.0**-3] * 70, np.float32)
"""Its norm is just above the midpoint of two float32, so a float64 sum depends on the order of additions."""


COLLECTIVES = {
    ("replicated", 2): 0, ("replicated", 4): 0, ("terms of a sum", 2): 2, ("terms of a sum", 4): 2,
    ("sum and shard", 2): 2, ("sum and shard", 4): 3,
}  # fmt: skip
"""The collectives of a clip by the 2-norm. Other layouts need one."""


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("layout", [*PLACEMENTS, "mixed"])
@pytest.mark.parametrize("size", SIZES)
def test_the_norm_and_the_gradients_are_those_of_one_process(
    torch_worlds: Callable[[int], World], size: int, layout: str, p: float
) -> None:
    expected = [array.copy() for array in arrays()]
    n = np_uc.clip_grad_norm_(expected, 1.5, p)
    assert float(n) == reference.norm(arrays(), p)
    for norm, kind, gradients, calls in torch_worlds(size).run(torch_sharded.clip_layout, arrays(), layout, p, 1.5):
        assert (norm, kind) == (float(n), "Tensor torch.float32")
        assert p != 2 or len(calls) == (COLLECTIVES.get((layout, size), 1) if size > 1 else 0)
        for result, expected_gradient in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)


def test_one_sharded_parameter_needs_no_list(torch_worlds: Callable[[int], World]) -> None:
    array = arrays()[0]
    expected = [array.copy()]
    norm = np_uc.clip_grad_norm_(expected, 1.5)
    for result in torch_worlds(2).run(torch_sharded.clip_without_a_list, array, "FSDP", 1.5):
        assert result[0] == float(norm)
        np.testing.assert_array_equal(result[1], expected[0], strict=True)


@pytest.mark.nightly
@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("layout", ["FSDP", "HSDP", "mixed", "cube"])
def test_eight_processes_have_the_norm_of_one(torch_worlds: Callable[[int], World], layout: str, p: float) -> None:
    expected = [array.copy() for array in arrays()]
    n = np_uc.clip_grad_norm_(expected, 1.5, p)
    for norm, _, gradients, calls in torch_worlds(8).run(torch_sharded.clip_layout, arrays(), layout, p, 1.5):
        assert norm == float(n) == reference.norm(arrays(), p)
        assert p != 2 or len(calls) == (2 if layout == "cube" else 1)
        for result, expected_gradient in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)


@pytest.mark.parametrize("size", SIZES)
def test_the_norm_does_not_depend_on_the_order_of_additions(torch_worlds: Callable[[int], World], size: int) -> None:
    assert reference.norm([COUNTER_EXAMPLE]) == 2.0**24 + 2
    for norm, _, _, calls in torch_worlds(size).run(torch_sharded.clip_layout, [COUNTER_EXAMPLE], "FSDP", 2.0, 1.0):
        assert norm == 2.0**24 + 2
        assert calls == ["all_reduce"] * (0 if size == 1 else 2)  # after the first, the norm may round either way


def test_process_group_none_needs_complete_gradients(torch_worlds: Callable[[int], World]) -> None:
    clipped = [np.float32(0.6), np.float32(0.8)]
    assert torch_worlds(2).run(torch_sharded.clip_on_this_rank, "replicated") == [clipped, clipped]
    one_shard = "along the third"  # of 4 ranks, each has this dimension of the mesh alone
    assert torch_worlds(4).run(torch_sharded.clip_on_this_rank, one_shard) == [clipped] * 4
    for failure in torch_worlds(2).attempt(torch_sharded.clip_on_this_rank, "FSDP"):
        assert "process_group is None, but the gradient at position 0 is not complete on this rank" in str(failure)
