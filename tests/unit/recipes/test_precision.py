"""The dtype of recorded samples."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unified_clip.recipes.precision import ENOUGH, dtype_of

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@given(SEEDS, st.floats(-10, 3), st.integers(4 * ENOUGH, 400))
def test_rounded_numbers_have_their_dtype(dtype: str, seed: int, exponent: float, count: int) -> None:
    """Of the normal numbers of the dtype."""
    numbers = np.random.default_rng(seed).normal(scale=2.0**exponent, size=count)
    kind = np.dtype(dtype if dtype != "bfloat16" else ml_dtypes.bfloat16)
    assert dtype_of([numbers.astype(kind).astype(np.float64)]) == dtype


@example(seed=0, exponent=-24, largest=127, count=38)  # each is a number of float16, below its normal ones
@given(SEEDS, st.integers(-40, 0), st.sampled_from([7, 15, 63, 127]), st.integers(1, 400))
def test_small_multiples_of_one_number_show_no_dtype(seed: int, exponent: int, largest: int, count: int) -> None:
    """As of noise, whose numbers are differences of rounded numbers, and of toy data."""
    numbers = np.random.default_rng(seed).integers(-largest, largest, size=count, endpoint=True)
    assert dtype_of([numbers * 2.0**exponent]) == "float32"
