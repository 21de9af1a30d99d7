"""PyTorch: patterns of names in `ownership` declare the ownership of some parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_fake_ranks import RANKS, fake_all_reduces, parameters, plain, row, rows, without_groups
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

import unified_clip.torch as uc
from unified_clip.ownership import mesh_ownership


@pytest.fixture
def collectives() -> Iterator[list[Any]]:
    with fake_all_reduces() as groups:
        yield groups


EXPERT, DENSE = "0.experts.weight", "0.dense.weight"


def norm_of_experts(**owners: Any) -> float:
    """Return the squared norm per rank of a plain expert with 2 elements and an FSDP2 shard with 4, all of them 1."""
    named = [(DENSE, parameters(row(), Shard(0))[0]), (EXPERT, plain()[0])]
    return uc.clip_grad_norm_(named, 100.0, **owners).item() ** 2 / RANKS


def test_patterns_of_names_declare_the_ownership_of_some_parameters(collectives: list[Any]) -> None:
    mesh = rows()
    assert norm_of_experts(ownership={"*.experts.*": "distinct"}) == pytest.approx(4 + 2)
    assert norm_of_experts(ownership={"*.experts.*": "replicated"}) == pytest.approx(4)
    assert norm_of_experts() == pytest.approx(4), "plain tensors beside FSDP2 are taken for copies"
    assert norm_of_experts(ownership={"*.dense.*": "distinct"}) == pytest.approx(4)
    assert norm_of_experts(ownership={"*.experts.*": "distinct", "*.weight": "replicated"}) == pytest.approx(4 + 2)
    assert norm_of_experts(ownership={"other.*": "distinct"}) == pytest.approx(4), (
        "other ranks may have such parameters"
    )
    assert norm_of_experts(ownership={"*.experts.*": mesh_ownership(mesh, distinct="shard")}) == pytest.approx(4 + 2)
    assert norm_of_experts(ownership={"*.experts.*": mesh_ownership(mesh, distinct="replicate")}) == pytest.approx(4)


def test_patterns_without_names_or_without_an_owner_are_rejected(collectives: list[Any]) -> None:
    without_gradient = [(EXPERT, plain()[0]), torch.nn.Parameter(torch.ones(2))]
    for nameless in (plain(), parameters(row(), Shard(0)), without_gradient):
        with pytest.raises(ValueError, match=r"position \d has no name\. Pass model\.named_parameters\(\)"):
            uc.clip_grad_norm_(nameless, 1.0, process_group=dist.group.WORLD, ownership={"*.experts.*": "distinct"})
    part = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))["tp"]
    wrong = mesh_ownership(without_groups([0, 1], "dp"))
    with pytest.raises(ValueError, match=r"mesh_ownership got a device mesh with the ranks \[0, 1\]"):
        norm_of_experts(ownership={"*.experts.*": wrong})
    with pytest.raises(ValueError, match="on only 4 of these ranks"):
        uc.clip_grad_norm_(
            [("a", parameters(part, Shard(0))[0]), ("b", parameters(row(), Shard(0))[0])],
            1.0,
            ownership={"b": "distinct"},
        )


def test_the_first_pattern_decides_and_others_may_match_only_parameters_of_other_ranks(collectives: list[Any]) -> None:
    for owners, expected in (
        ({"*.weight": "replicated", "*.experts.*": "distinct"}, 4),
        ({"*.experts.*": "distinct", "*.weight": "replicated"}, 4 + 2),
        ({"*.experts.*": "distinct", "*.experts.1.*": "replicated"}, 4 + 2),
    ):
        assert norm_of_experts(ownership=owners) == pytest.approx(expected)
