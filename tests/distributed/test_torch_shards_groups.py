"""PyTorch: with groups of a configuration, every norm over the ranks is complete and compared, not only the first."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support import reference
from support.processes import torch_sharded_groups as groups
from support.processes.worlds import World
from support.rank_tables import ranks_by_value

Worlds = Callable[[int], World]

NUMEL = {"sharded": 8, "copied": 4, "terms": 4, "plain": 4}
"""The number of elements of a gradient. Each of two ranks has 4 elements, which are 1."""


@pytest.mark.parametrize("second", NUMEL)
@pytest.mark.parametrize("first", ["sharded", "terms"])
def test_each_group_is_clipped_by_its_own_norm(torch_worlds: Worlds, first: str, second: str) -> None:
    kinds = [first, second]
    numel = sum(NUMEL[kind] for kind in kinds)
    for check in (None, True, numel):
        for result in torch_worlds(2).run(groups.clip_by_groups, kinds, "", *([] if check is None else [check])):
            assert not result.error
            for kind, after in zip(kinds, result.after, strict=True):
                norm = NUMEL[kind] ** 0.5 * (2 if kind == "terms" else 1)
                coef = reference.coefficient(np.float32(norm), 1.0, 1e-6)
                np.testing.assert_array_equal(after, np.float32(coef))


@pytest.mark.parametrize("p", [2.0, 3.0])
def test_all_ranks_raise_if_ownership_of_a_later_group_raises_on_one_rank(torch_worlds: Worlds, p: float) -> None:
    for rank, (first, second, after) in enumerate(torch_worlds(2).run(groups.reject_in_second_group, p)):
        reason = "LookupError: no stage"
        assert first.startswith(reason if rank else f"ValueError: rank 1 rejected this call: {reason}"), first
        assert second == ""
        assert after == [[1 + rank] * 2] * 2


def test_elements_of_all_groups_are_counted(torch_worlds: Worlds) -> None:
    for result in torch_worlds(2).run(groups.clip_by_groups, ["sharded", "terms", "plain"], "", 15):
        assert result.error.startswith("the ranks own 16 gradient elements together, and check_numel expects 15")


@pytest.mark.parametrize(
    ("kind", "checks", "message"),
    [
        ("plain", False, "plain gradients differ between ranks: position 1 (parameter '1'). "),
        ("copied", True, "copies of gradients differ between ranks: position 1 (parameter '1'). "),
    ],
)
def test_copies_of_later_groups_are_compared(torch_worlds: Worlds, kind: str, checks: bool, message: str) -> None:
    for result in torch_worlds(2).run(groups.clip_by_groups, ["sharded", kind], kind, None, checks):
        assert message in result.error
        assert ranks_by_value(result.error, "position 1 (parameter '1')") == [[0], [1]]
        np.testing.assert_array_equal(result.after[0], 1)
