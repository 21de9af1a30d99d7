"""Sums of squares in 16 bits, one after the other, as NumPy adds up float16 numbers."""

from __future__ import annotations

import numpy as np
import pytest

from unified_clip.causes.rounding import BLOCK, one_after_the_other


@pytest.mark.parametrize("size", [0, 1, BLOCK, 5 * BLOCK + 3])
@pytest.mark.parametrize("kind", ["normal", "powers of two", "equal"])
def test_squares_are_added_up_one_after_the_other(kind: str, size: int) -> None:
    random = np.random.default_rng(size)
    squares = {
        "normal": random.standard_normal(size) ** 2,
        "powers of two": np.exp2(random.integers(-12, 4, size)),
        "equal": np.full(size, 0.375),
    }[kind].astype(np.float16)
    expected = np.add.accumulate(np.append(np.float16(0), squares))[-1]
    assert one_after_the_other(squares.astype(np.float64), "float16") == expected
