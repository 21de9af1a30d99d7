"""After an error about one entry, the leaves of all other entries are known, because their ranks wait for the error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_clip._backends.numpy import BACKEND
from unified_clip._core.collect import _may_keep
from unified_clip._core.containers import flatten
from unified_clip._core.types import Leaf

FIRST, SECOND = np.ones(1), np.ones(2)


@pytest.mark.parametrize(
    "container",
    [
        ["x", FIRST, SECOND], [FIRST, 3, SECOND], (FIRST, SECOND, object()), {"a": "x", "b": FIRST, "c": [SECOND]},
        iter([FIRST, "x", SECOND]),
    ],
)  # fmt: skip
def test_the_leaves_of_other_entries_are_collected(container: Any) -> None:
    leaves: list[Leaf] = []
    with pytest.raises(TypeError):
        flatten(BACKEND, container, leaves)
    assert [leaf.tensor is array for leaf, array in zip(leaves, (FIRST, SECOND), strict=True)] == [True, True]


def test_an_entry_that_is_the_container_has_no_other_leaves() -> None:
    leaves: list[Leaf] = []
    with pytest.raises(TypeError):
        flatten(BACKEND, 3, leaves)
    assert leaves == []


def test_a_parameter_that_raises_may_be_clipped() -> None:
    def keep(parameter: int) -> bool:
        return bool(1 // parameter)

    assert [_may_keep(keep, number) for number in (0, 1, 2)] == [True, True, False]
