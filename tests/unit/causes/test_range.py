"""The cause of a norm of inf or 0 names the numbers that leave the range of the dtype, by norm_type."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unified_clip.causes.facts import beyond_range
from unified_clip.causes.observation import Observation
from unified_clip.tensors.types import Dense


@pytest.mark.parametrize(
    ("element", "p", "norm", "words"),
    [
        (1e20, 2.0, math.inf, "squares exceed the range of float32"),
        (1e13, 3.0, math.inf, "powers exceed the range of float32"),
        (3e38, 1.0, math.inf, "absolute values exceed the range of float32"),
        (1e-20, 2.0, 0.0, "squares are too small for float32"),
        (1e-13, 3.0, 0.0, "powers are too small for float32"),
        (1000.0, 2.0, math.inf, "squares exceed the range of float16"),  # the call may compute in float16
        (100.0, 2.0, math.inf, None),
        (1e5, 1.0, math.inf, None),
        (1e20, 1.0, math.inf, None),  # the sum of absolute values is in the range
        (1e-20, math.inf, 0.0, None),
    ],
)
def test_overflow_and_underflow_depend_on_the_norm_type(
    element: float, p: float, norm: float, words: str | None
) -> None:
    tensor = Dense("float32", np.array([element], np.float32))
    zero = Dense("float32", np.zeros(1, np.float32))
    after = zero if norm else tensor
    cause = beyond_range(Observation([tensor], [tensor], [after], "global", 1.0, p=p, expected_norm=element, norm=norm))
    assert cause is None if words is None else words in str(cause)
