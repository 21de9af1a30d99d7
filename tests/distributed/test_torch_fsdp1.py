"""`fsdp1_ownership` gives the norm of one process for shards of some parameters and copies of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.processes import torch_fsdp1 as fsdp1
from support.processes.worlds import World


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_shards_count_on_every_rank_and_copies_once(
    torch_worlds: Callable[[int], World], use_orig_params: bool
) -> None:
    for make in (fsdp1.ignored, fsdp1.nested, fsdp1.copied, fsdp1.outside, fsdp1.sharded):
        for expected, norm, distinct in torch_worlds(2).run(fsdp1.norms, make, use_orig_params):
            assert norm == pytest.approx(expected, rel=1e-6), make
            assert (distinct > expected * 1.05) == (make is not fsdp1.sharded), "every copy counts"


def test_gradients_are_rejected(torch_worlds: Callable[[int], World]) -> None:
    for error in torch_worlds(2).attempt(fsdp1.clip_gradients_by_ownership):
        assert "is not a parameter of the model that you passed to fsdp1_ownership. Pass the" in str(error)


def test_nested_modules_on_other_ranks_are_rejected(torch_worlds: Callable[[int], World]) -> None:
    for rank, error in enumerate(torch_worlds(2).attempt(fsdp1.own_modules_on_other_ranks)):
        assert f"A nested FSDP1 module is on the ranks [{rank}], and the model is on [0, 1]" in str(error)
