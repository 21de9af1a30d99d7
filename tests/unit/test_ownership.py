"""Who counts which gradient: each element exactly once, whatever the layout. Stand-ins for meshes and parameters."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from unified_clip import ownership
from unified_clip.ownership import megatron_ownership, mesh_ownership, stage_ownership


class Ranks(np.ndarray):
    """An array that is asked as PyTorch's tensors are."""

    def nonzero(self) -> Any:
        return np.argwhere(np.asarray(self))


def mesh(ranks: Any, names: Iterable[str] | None, here: int) -> Any:
    """A device mesh as this process sees it."""
    array = np.asarray(ranks).view(Ranks)
    return SimpleNamespace(mesh=array, mesh_dim_names=names and tuple(names), get_rank=lambda: here)


WHOLE = np.arange(8).reshape(2, 2, 2)
NAMES = ("pp", "dp", "tp")


def who_counts(part: Any, distinct: Any = ()) -> list[int]:
    """Of the processes that hold a parameter, where `part` is the mesh that each sees, or None for a plain one."""
    found = []
    for here in range(8):
        at = tuple(np.argwhere(here == WHOLE)[0])
        own = None if part is None else SimpleNamespace(mesh=np.asarray(part(at)))
        counts = mesh_ownership(mesh(WHOLE, NAMES, here), distinct)
        found += [here] if counts(SimpleNamespace(device_mesh=own)) else []
    return found


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
    with pytest.raises(ValueError, match=r"the mesh has the dimensions \[\]; give them names with mesh_dim_names"):
        mesh_ownership(mesh([0, 1], None, 0))
    with pytest.raises(ValueError, match=r"the dimensions \['dp'\], and distinct names \['pp'\]"):
        mesh_ownership(mesh([0, 1], ["dp"], 0), distinct=("pp",))
    with pytest.raises(ValueError, match=r"a parameter is on the ranks \[1, 2\], and the mesh has \[0, 1\]"):
        mesh_ownership(mesh([0, 1], ["dp"], 0))(SimpleNamespace(device_mesh=SimpleNamespace(mesh=np.array([1, 2]))))
    with pytest.raises(ValueError, match=r"this process, rank 5, is not on the mesh, which has \[0, 1\]"):
        mesh_ownership(mesh([0, 1], ["dp"], 5))


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
    message = f"{re.escape(str(ranks))}, which are a part only of the mesh along {names}: it does not tell what the"
    with pytest.raises(ValueError, match=message):
        counts(SimpleNamespace(device_mesh=SimpleNamespace(mesh=np.array(ranks))))


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


def test_stages_count_on_their_first_process_what_no_earlier_stage_has() -> None:
    own, tied = object(), object()
    assert [stage_ownership(rank, [tied])(own) for rank in (0, 1)] == [True, False]
    assert not stage_ownership(0, [tied])(tied)


def test_what_is_no_device_mesh_of_pytorch_is_refused() -> None:
    with pytest.raises(TypeError, match="root is a SimpleNamespace; pass a DeviceMesh of PyTorch, or a function"):
        mesh_ownership(SimpleNamespace(dim_names=["dp"], process_ids=[0]))


def test_examples_print_what_they_say() -> None:
    result = doctest.testmod(ownership)
    assert (result.failed, result.attempted > 3) == (0, True)
