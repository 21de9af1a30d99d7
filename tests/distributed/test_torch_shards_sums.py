"""PyTorch: sums of tensors outside of the CPU's memory are exact enough to round the norm correctly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support import reference

from unified_clip._backends.torch import BACKEND
from unified_clip._backends.torch.local_sums import CHUNK, LocalSums
from unified_clip._core.exact import BLOCK

nan, inf = math.nan, math.inf


def norm_of(tensors: list[torch.Tensor], p: int) -> float | None:
    """Return the norm from the fast sum. If it may round either way, use the exact sum."""
    sums = LocalSums(BACKEND, tensors)
    n = sums.power_sum(p, False).root(p, sums.norm_dtype)
    return sums.power_sum(p, True).root(p, sums.norm_dtype) if n is None else n


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("length", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_all_elements_are_in_the_sum(length: int, p: int) -> None:
    array = np.random.default_rng(length).standard_normal(length).astype(np.float32)
    assert norm_of([torch.from_numpy(array)], p) == reference.norm([array], float(p))


@pytest.mark.parametrize("position", [0, CHUNK - 1, CHUNK])
def test_all_chunks_are_in_the_sum(position: int) -> None:
    long = torch.zeros(CHUNK + 1)
    long[position] = 3.0
    assert norm_of([long, torch.tensor([[4.0]])], 2) == 5.0


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize(
    ("values", "norm"), [((inf, 1.0), inf), ((1.0, -inf), inf), ((nan, 1.0), nan), ((nan, inf), nan)]
)
def test_nan_and_inf_are_in_the_sum(values: tuple[float, float], norm: float, dtype: torch.dtype, p: int) -> None:
    assert str(norm_of([torch.ones(3), torch.tensor(values, dtype=dtype)], p)) == str(norm)
