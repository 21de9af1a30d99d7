"""`assert_gradients_equal` reads the tensors of every framework, and compares them with another's."""

from __future__ import annotations

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

from unified_clip.testing import assert_gradients_equal

NUMBERS = np.array([[3.0, -0.0], [np.nan, 1e-40]], np.float32)


def test_the_same_bits_are_equal_whatever_holds_them(kit: Kit) -> None:
    tensors = [kit.from_array(NUMBERS), None, kit.tensor(np.zeros((0, 2)))]
    arrays = [NUMBERS, None, np.zeros((0, 2), np.float32)]
    assert_gradients_equal(tensors, arrays)
    assert_gradients_equal(tuple(tensors), (array for array in arrays))
    assert_gradients_equal({"b": tensors[0], "a": None}, {"a": None, "b": NUMBERS})
    assert_gradients_equal([("a", tensors[0]), ("b", None)], {"a": NUMBERS, "b": None})
    assert_gradients_equal(tensors[0], NUMBERS.copy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_number_that_differs_is_named_with_both_sides(kit: Kit, dtype: str) -> None:
    near = {
        "float16": "1.001 (0x1.004p+0)",
        "bfloat16": "1.0078125 (0x1.02p+0)",
        "float32": "1.0000001 (0x1.000002p+0)",
    }
    value = float.fromhex(near[dtype].split("(")[1].rstrip(")"))
    with pytest.raises(AssertionError) as error:
        assert_gradients_equal({"w": kit.tensor([0.0, 1.0], dtype)}, {"w": kit.tensor([0.0, value], dtype)})
    assert f"first at [1]: a is 1.0 (0x1p+0), b is {near[dtype]}, 1 ulp apart" in str(error.value)
    assert_gradients_equal([kit.tensor([1.0], dtype)], [kit.tensor([value], dtype)], max_ulp=1)


@where(lambda kit: kit.has_sparse)
def test_sparse_gradients_are_what_they_stand_for(kit: Kit) -> None:
    sparse = kit.sparse([2, 0, 2], [[1.0], [2.0], [4.0]], 4)
    assert_gradients_equal([sparse], [np.array([[2.0], [0.0], [5.0], [0.0]], np.float32)])
    with pytest.raises(AssertionError, match=r"\[2, 0\]: a is 5.0 .*, b is 1.0 "):
        assert_gradients_equal([sparse], [np.array([[2.0], [0.0], [1.0], [0.0]], np.float32)])
