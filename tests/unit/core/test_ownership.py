"""Ownership of gradients on imitated meshes: each element has exactly one owner."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unified_clip import ownership
from unified_clip._core.distributed import DistributedSpec
from unified_clip._core.types import Leaf
from unified_clip._distributed.groups import KeptByIdentity
from unified_clip.ownership import fsdp1_ownership, megatron_ownership, mesh_ownership


class Mesh:
    def __init__(self, ranks: Any, names: Iterable[str] | None = None, here: int = 0) -> None:
        self.mesh, self.mesh_dim_names, self.get_rank = np.asarray(ranks), names and tuple(names), lambda: here


mesh: Any = Mesh


WHOLE = np.arange(8).reshape(2, 2, 2)
NAMES = ("pp", "dp", "tp")


def who_counts(part: Any, distinct: Any = ()) -> list[int]:
    """Return the processes that own a parameter. `part`: a function that returns the mesh that each process sees, or
    None for a plain parameter."""
    result = []
    for here in range(8):
        at = tuple(np.argwhere(here == WHOLE)[0])
        own = None if part is None else Mesh(part(at))
        counts = mesh_ownership(mesh(WHOLE, NAMES, here), distinct)
        result += [here] if counts(SimpleNamespace(device_mesh=own)) else []
    return result


@pytest.mark.parametrize(
    ("part", "distinct", "counting"),
    [
        (lambda at: WHOLE, (), list(range(8))),
        (lambda at: WHOLE[at[0]], ("pp",), list(range(8))),
        (lambda at: WHOLE[at[0]], (), [0, 1, 2, 3]),
        (lambda at: WHOLE[at[0], :, at[2]], ("pp",), [0, 2, 4, 6]),
        (lambda at: WHOLE[at[0], :, at[2]], "pp", [0, 2, 4, 6]),
        (lambda at: WHOLE[at[0], :, at[2]], (), [0, 2]),
        (lambda at: WHOLE[at[0], at[1], :], ("pp",), [0, 1, 4, 5]),
        (None, (), [0]),
        (None, ("pp",), [0, 4]),
        (None, ("pp", "tp"), [0, 1, 4, 5]),
    ],
)
def test_the_first_counts_what_others_have_copies_of(part: Any, distinct: Any, counting: list[int]) -> None:
    assert who_counts(part, distinct) == counting


def test_a_tensor_without_a_mesh_is_one_of_this_process() -> None:
    counts = [mesh_ownership(mesh([0, 1], ["dp"], here))(object()) for here in (0, 1)]
    assert counts == [True, False]


def test_what_does_not_fit_the_mesh_is_refused() -> None:
    with pytest.raises(ValueError, match=r"The mesh has no dimension names\. Pass mesh_dim_names to init_device_mesh"):
        mesh_ownership(mesh([0, 1], None, 0))
    with pytest.raises(
        ValueError,
        match=r"`distinct` contains \['pp'\], which are not dimensions of the mesh\. Choose from \['dp'\]",
    ):
        mesh_ownership(mesh([0, 1], ["dp"], 0), distinct=("pp",))
    with pytest.raises(ValueError, match=r"A parameter is on the ranks \[1, 2\], but the mesh has the ranks \[0, 1\]"):
        mesh_ownership(mesh([0, 1], ["dp"], 0))(SimpleNamespace(device_mesh=Mesh([1, 2])))
    with pytest.raises(ValueError, match=r"Rank 5 is not on the mesh of the ranks \[0, 1\]"):
        mesh_ownership(mesh([0, 1], ["dp"], 5))


def test_the_answer_for_a_mesh_is_kept_until_the_mesh_is_gone() -> None:
    kept: KeptByIdentity[int] = KeptByIdentity()
    answers = iter(range(9))
    meshes = [mesh([0]), mesh([0])]
    assert [kept.get(own, lambda own: next(answers)) for own in [*meshes, *meshes]] == [0, 1, 0, 1]
    del meshes[0]
    meshes.append(mesh([0]))  # perhaps at the address of the one before
    assert [kept.get(own, lambda own: next(answers)) for own in meshes] == [1, 2]
    del meshes
    assert len(kept) == 0


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        ([0, 2, 4], "pp and dp"),
        ([0, 7], "pp and dp and tp"),
        ([2, 1], "dp and tp"),
        ([0, 1, 2, 3, 4, 5], "pp and dp and tp"),
    ],
)
def test_a_part_of_a_dimension_does_not_tell_what_the_others_there_have(ranks: list[int], names: str) -> None:
    counts = mesh_ownership(mesh(WHOLE, NAMES, 0), distinct=("pp",))
    message = f"{re.escape(str(ranks))}, but not on all ranks along the mesh dimensions {names}. Cannot infer"
    with pytest.raises(ValueError, match=message):
        counts(SimpleNamespace(device_mesh=Mesh(ranks)))


@pytest.mark.parametrize(
    ("attributes", "ranks", "counts"),
    [
        ({}, (0, None), True),
        ({}, (1, None), False),
        ({"tensor_model_parallel": True}, (1, None), True),
        ({"allreduce": False}, (1, 0), True),
        ({"allreduce": False}, (0, 1), False),
        ({"allreduce": False}, (1, None), False),
        ({"allreduce": False, "tensor_model_parallel": True}, (1, 1), True),
        ({"allreduce": True}, (1, 0), False),
        ({"shared": True, "tensor_model_parallel": True}, (0, None), False),
        ({"shared": False}, (0, None), True),
    ],
)
def test_attributes_of_megatron_tell_parts_from_copies(attributes: Any, ranks: Any, counts: bool) -> None:
    assert megatron_ownership(*ranks)(SimpleNamespace(**attributes)) is counts


def staged(here: int, also_elsewhere: Any) -> Any:
    return mesh_ownership(mesh([0, 1], ["dp"], here), also_elsewhere=also_elsewhere)


@pytest.mark.parametrize("rule", [False, True])
def test_the_first_rank_counts_parameters_that_no_earlier_stage_has(rule: bool) -> None:
    own, tied = SimpleNamespace(), SimpleNamespace()
    also_elsewhere: Any = (lambda parameter: parameter is tied) if rule else iter([tied])
    assert [staged(rank, [tied])(own) for rank in (0, 1)] == [True, False]
    counts = staged(0, also_elsewhere)
    assert (counts(own), counts(tied)) == (True, False)


def test_a_parameter_of_also_elsewhere_is_in_the_call() -> None:
    """FSDP2 replaces parameters. The old objects would not be found, so their copies would count twice."""
    before, after = SimpleNamespace(shape=(3, 2)), SimpleNamespace(shape=(3, 2))
    staged(0, [after]).check_present([before, after])
    with pytest.raises(ValueError, match=r"also_elsewhere\[0\], of shape \[3, 2\], is not .* fully_shard replaced"):
        staged(0, [before]).check_present([after])
    staged(0, lambda parameter: False).check_present([])


def test_also_elsewhere_is_a_list_or_a_rule() -> None:
    class Model:
        def named_parameters(self) -> Any:
            raise AssertionError

        def __call__(self, inputs: Any) -> Any:
            return inputs

    for wrong in (np.zeros(3), "head.weight", Model()):
        with pytest.raises(
            TypeError, match=r"also_elsewhere has the type .*\. Pass a list of parameters, or a function"
        ):
            staged(0, wrong)
    weight = SimpleNamespace()
    for names in ({"head.weight": weight}, [weight, "head.weight"], [("head.weight", weight)]):
        with pytest.raises(
            TypeError, match=r"also_elsewhere\[[01]\] has the type (str|tuple)\. Pass parameters, not names"
        ):
            staged(0, names)
    for answer in (None, np.zeros(3), np.zeros((1, 1))):
        with pytest.raises(TypeError, match=r"(?s)also_elsewhere returned .*\. Return True if an earlier stage"):
            staged(0, lambda parameter, answer=answer: answer)(SimpleNamespace())
    assert not staged(0, lambda parameter: np.array(True))(SimpleNamespace())


@pytest.mark.parametrize(
    ("attributes", "data_rank", "expert_data_rank", "counts"),
    [
        ({}, 0, None, True),
        ({}, 1, None, False),
        ({"tensor_model_parallel": True}, 1, None, False),
        ({"allreduce": False}, 1, 0, True),
        ({"allreduce": False, "tensor_model_parallel": True}, 0, 1, False),
    ],
)
def test_the_first_data_parallel_rank_of_megatron_counts(
    attributes: Any, data_rank: int, expert_data_rank: Any, counts: bool
) -> None:
    owner = megatron_ownership(0, data_rank=data_rank, expert_data_rank=expert_data_rank)
    assert owner(SimpleNamespace(**attributes)) is counts


@pytest.mark.parametrize("ranks", [{"data_rank": 0}, {"expert_data_rank": 0}])
def test_experts_of_megatron_have_data_parallel_ranks_of_their_own(ranks: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"has only one of data_rank and expert_data_rank, .* Pass both, or"):
        megatron_ownership(0, **ranks)(SimpleNamespace(allreduce=False))


def test_what_is_no_device_mesh_of_pytorch_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"root has the type SimpleNamespace\. Pass a DeviceMesh of PyTorch\. Or, instead"
    ):
        mesh_ownership(SimpleNamespace(dim_names=["dp"], process_ids=[0]))


def test_the_first_pattern_that_matches_decides() -> None:
    spec = DistributedSpec(ownership={"a*": "distinct", "*": "replicated", "ab": None})
    owners = [spec.ownership_of(Leaf(None, 0, name)) for name in ("ab", "b", "ca")]
    assert owners == ["distinct", "replicated", "replicated"]
    assert DistributedSpec(ownership={"b": "distinct"}).ownership_of(Leaf(None, 0, "ab")) is None


def test_examples_print_what_they_say() -> None:
    result = doctest.testmod(ownership)
    assert (result.failed, result.attempted > 1) == (0, True)


@pytest.mark.parametrize("model", [SimpleNamespace(), SimpleNamespace(modules=list)])
def test_a_model_without_fsdp1_is_rejected(model: Any) -> None:
    with pytest.raises(TypeError, match=r"model has the type SimpleNamespace, and contains no FSDP1 module\. Pass the"):
        fsdp1_ownership(model)
