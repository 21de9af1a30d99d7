"""JAX: arrays that several processes hold have the norm, and are clipped to the bits, of whole ones."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import reference
from support.kits import Kit
from support.processes import jax_sharded
from support.processes.jax_sharded import COUNTER_EXAMPLE, arrays, assert_equal
from support.processes.worlds import World

import unified_clip.numpy as whole


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("eager calls on the host path are what is compared with")


# -- two processes with two devices each


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World(jax_sharded.start, 2)
    yield world
    world.close()


OVER_ALL = [("x",), (None, "x"), ("x", "y"), (), (("x", "y"),), ("y",)]
EXCHANGES = {1.0: ["sum"], 2.0: ["sum"], math.inf: ["max", "sum"], 3.0: ["max", "sum", "sum"]}
"""What is reduced over the processes; a count is a sum of its own where something else is a maximum."""


@pytest.mark.parametrize("p", EXCHANGES)
def test_arrays_over_several_processes(world: World, p: float) -> None:
    expected = [array.copy() for array in arrays()]
    n = whole.clip_grad_norm_(expected, 1.5, p)
    for norm, gradients, calls in world.run(jax_sharded.clipped, arrays(), OVER_ALL, p, 1.5):
        assert norm == float(n)
        assert_equal(gradients, expected)
        assert calls == EXCHANGES[p]


def test_the_last_bit_does_not_depend_on_the_processes(world: World) -> None:
    for norm, _, calls in world.run(jax_sharded.clipped, [COUNTER_EXAMPLE], [(("x", "y"),)], 2.0, 1.0):
        assert norm == 2.0**24 + 2
        assert calls == ["sum", "sum"]  # the first leaves a doubt


def test_norms_of_single_arrays_over_several_processes(world: World) -> None:
    for gradients in world.run(jax_sharded.clipped_each, arrays(), OVER_ALL, 1.5):
        assert_equal(gradients, [whole.clip_by_norm(array, 1.5) for array in arrays()])


@pytest.mark.parametrize(
    ("committed", "stated", "norm"),
    [(False, {}, 5.0), (True, {"ownership": "replicated"}, 5.0), (True, {"ownership": "distinct"}, math.sqrt(41.0))],
)
def test_an_array_of_one_process_beside_those_of_all(
    world: World, committed: bool, stated: dict[str, Any], norm: float
) -> None:
    assert world.run(jax_sharded.with_own_array, committed, stated) == [float(np.float32(norm))] * 2


@pytest.mark.parametrize("mesh_is_set", [False, True])
def test_what_is_not_committed_stays_so_and_a_mesh_may_be_set(world: World, mesh_is_set: bool) -> None:
    assert world.run(jax_sharded.clipped_with_a_copy, mesh_is_set) == [(5.0, 2.5, [False, True])] * 2


@pytest.mark.parametrize("spec", [(), ("x",), (None, "x")])
def test_sparse_rows_over_several_processes(world: World, spec: tuple[Any, ...]) -> None:
    norm = reference.norm([np.array([[2, 2], [4, 4], [2, 2]], np.float32)])
    assert world.run(jax_sharded.norm_of_rows, spec, {}) == [norm] * 2


def test_sparse_rows_of_one_process(world: World) -> None:
    for stated, norm in (("replicated", 68.0), ("distinct", 100.0)):
        found = world.run(jax_sharded.norm_of_own_rows, {"ownership": stated})
        assert found == [float(np.float32(math.sqrt(norm)))] * 2


@pytest.mark.parametrize(
    ("spec", "drifted", "others"),
    [
        ((), 3, "ranks 0, 1 "),
        (("x",), 3, "rank 1 "),
        (("y",), 3, "rank 0 "),
        ((("x", "y"),), 3, None),
        (("x",), 1, "rank 0 "),
    ],
)
def test_copies_that_devices_have_are_compared(world: World, spec: Any, drifted: int, others: str | None) -> None:
    assert world.run(jax_sharded.replicas, spec, None) == [reference.norm([np.arange(4, dtype=np.float32)])] * 2
    for failure in world.attempt(jax_sharded.replicas, spec, drifted):
        if others is None:
            assert isinstance(failure, float), "no device has a copy of another's shard"
        else:
            where = rf"rank {drifted // 2} \(.*\) differ from their copies on {others}\("
            assert re.search(rf"the gradients at position 0 \(parameter 'weight'\) on {where}", str(failure))


NOT_TOLD = "is only on devices of rank [01]. Pass ownership"


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("with_own_array", (True, {}), NOT_TOLD),
        ("disagreeing", (), "the ranks disagree about threshold: 1.0 on rank 0; 2.0 on rank 1"),
        ("disagreeing_about_copies", (), "the ranks disagree about threshold: 1.0 on rank 0; 2.0 on rank 1"),
        ("norm_of_four", ({"check_numel": 5},), "counted 4 gradient elements together, and check_numel expects 5"),
        ("replicas_on_some", ("replicated",), "position 0 is on devices of only some ranks. Leave check_replicas out"),
        ("norm_of_four", ({"process_group": None},), "process_group is None, but other processes have shards"),
        ("norm_of_rows", (("x",), {"process_group": None}), "process_group is None, but other processes have shards"),
        ("clipped_by_own_norm", ({"process_group": None},), "process_group is None, but other processes have shards"),
        ("norm_of_own_rows", ({},), NOT_TOLD),
        (
            "norm_of_arrays_of_each",
            (),
            "ownership is 'replicated', but .* only on .*: rank [01] has no copy. Pass ownership='distinct'",
        ),
        ("within_bounds", (), r"a bound has shape \[4\], and the gradient is distributed. Pass"),
    ],
)
def test_faults_are_told_on_every_process(world: World, function: str, args: tuple[Any, ...], message: str) -> None:
    for failure in world.attempt(getattr(jax_sharded, function), *args):
        assert re.search(message, str(failure))


def test_arrays_that_are_not_committed_are_copies_only_where_all_ranks_have_the_same_bits(world: World) -> None:
    message = "the gradients at position 1 differ between ranks. .* Pass ownership='replicated'"
    for failure in world.attempt(jax_sharded.with_unequal_copy, {}):
        assert re.search(message, str(failure))
    norm = reference.norm([np.array([3.0, 4.0, 3.0, 4.0], np.float32)])
    assert world.run(jax_sharded.with_unequal_copy, {"ownership": "distinct"}) == [norm] * 2


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_where_one_rank_rejects_all_raise(world: World, p: float) -> None:
    for rank, (error, norm) in enumerate(world.run(jax_sharded.rejecting, p)):
        reason = "TypeError: position 1 is int32"
        assert error.startswith(reason if rank == 1 else f"ValueError: rank 1 rejected this call: {reason}"), error
        assert norm == 5.0, "the ranks are at the same call again"


def test_parameters_in_another_order_are_found(world: World) -> None:
    for failure in world.attempt(jax_sharded.in_another_order):
        assert "the parameter at position 0 (parameter 'a'): 'a' [4] on rank 0; 'b' [8] on rank 1" in str(failure)


def test_nan_on_one_process_is_known_to_all(world: World) -> None:
    first, last = world.run(jax_sharded.with_nan_on_the_last)
    assert math.isnan(first[0])
    assert math.isnan(last[0])
    assert "rank 1 has 1 NaN and 0 inf" in first[1]
    assert "position 0 has 1 NaN and 0 inf" in last[1]


# -- three processes, and arrays over the devices of some


@pytest.fixture(scope="module")
def three() -> Iterator[World]:
    world = World(jax_sharded.start, 3)
    yield world
    world.close()


FIRST, SECOND = np.array([3.0, 0.0, 0.0, 4.0], np.float32), np.array([0.0, 12.0, 0.0, 0.0], np.float32)


def joined(kind: str, parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    """The two gradients, from what each process has of those that it lists."""
    if kind == "listed by all":
        return [np.concatenate(each) for each in zip(*parts, strict=True)]
    return [*parts[0], np.concatenate([*parts[1], *parts[2]])]


@pytest.mark.parametrize(
    ("kind", "stated", "norm"),
    [
        ("copies", {"ownership": "replicated", "check_numel": True}, 5.0),
        ("copies", {"ownership": jax_sharded.is_counted, "check_numel": 4}, 5.0),
        ("stages", {"ownership": "distinct", "check_numel": 8}, 13.0),
        ("listed by all", {"ownership": "distinct", "check_numel": True}, 13.0),
    ],
)
def test_for_arrays_on_some_processes_it_is_stated_what_the_others_have(
    three: World, kind: str, stated: dict[str, Any], norm: float
) -> None:
    found = three.run(jax_sharded.clipped_on_meshes_of_some, kind, FIRST, SECOND, 1.0, stated)
    assert [each for each, _ in found] == [norm] * 3
    wanted = [FIRST.copy(), (FIRST if kind == "copies" else SECOND).copy()]
    whole.clip_grads_with_norm_(wanted, 1.0, norm)
    assert_equal(joined(kind, [parts for _, parts in found]), wanted)


def test_arrays_on_some_processes_do_not_tell_what_the_others_have(three: World) -> None:
    message = "is only on devices of rank {}. Pass ownership"
    for failure in three.attempt(jax_sharded.clipped_on_meshes_of_some, "listed by all", FIRST, SECOND, 1.0, {}):
        assert message.format("0") in str(failure) or message.format("1, 2") in str(failure)
    for failure in three.attempt(jax_sharded.clipped_on_meshes_of_some, "copies", FIRST, SECOND, 1.0, {})[1:]:
        assert message.format("1, 2") in str(failure)


def test_a_wrong_statement_is_found_by_the_number_of_elements(three: World) -> None:
    stated = {"ownership": "distinct", "check_numel": True}
    for failure in three.attempt(jax_sharded.clipped_on_meshes_of_some, "copies", FIRST, SECOND, 1.0, stated):
        assert "the ranks counted 8 gradient elements together, and check_numel expects 4" in str(failure)


@pytest.mark.parametrize("kind", ["copies", "stages", "listed by all"])
def test_the_norm_of_a_single_array_is_that_of_the_processes_that_have_it(three: World, kind: str) -> None:
    found = three.run(jax_sharded.clipped_on_meshes_of_some, kind, FIRST, SECOND, 1.0, None)
    wanted = [whole.clip_by_norm(array, 1.0) for array in (FIRST, FIRST if kind == "copies" else SECOND)]
    assert_equal(joined(kind, [parts for _, parts in found]), wanted)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_process_knows_the_norm_of_what_is_elsewhere(three: World, devices: int) -> None:
    assert three.run(jax_sharded.norm_of_what_is_elsewhere, FIRST, devices) == [5.0] * 3
