"""PyTorch: what cannot be answered is refused by every process, with a reason, in time, and before a write."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence

import pytest
from support import reference
from support.processes import torch_sharded
from support.processes import torch_sharded_faults as faults
from support.processes.torch_sharded_faults import Outcome
from support.processes.worlds import Failure, World
from support.tiers import nightly

Worlds = Callable[[int], World]

nan, inf = math.nan, math.inf


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with torch_sharded.worlds() as of:
        yield of


def check_refused(outcomes: Sequence[Outcome], error: str, *messages: str) -> None:
    """One message for all processes, or one for each."""
    for rank, found in enumerate(outcomes):
        assert re.search(f"^{error}: .*{messages[rank % len(messages)]}", found.error), f"rank {rank}: {found.error}"
        assert found.unchanged


@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_a_process_without_gradients_takes_part(worlds: Worlds, size: int, rank: int, p: float) -> None:
    found = worlds(size).run(faults.outcome, f"no gradients on rank {rank} and p = {p}")
    expected = reference.norm([array for each in found for array in each.held], p)
    assert [(each.norm, each.error) for each in found] == [(expected, "")] * size
    assert not found[rank].held


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, inf])
@pytest.mark.parametrize("value", [nan, inf])
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_one_process_with_such_a_value_is_enough(worlds: Worlds, size: int, value: float, p: float) -> None:
    for found in worlds(size).run(faults.outcome, f"{value} and p = {p}"):
        assert str(found.norm) == str(value)


@pytest.mark.parametrize(
    ("case", "counts"),
    [("all raise if not finite", "1 NaN and 0 inf"), ("raise if not finite, p = inf", "0 NaN and 1 inf")],
)
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_all_raise_where_one_is_not_finite(worlds: Worlds, size: int, case: str, counts: str) -> None:
    """The process that has it names the tensor, the others the process."""
    messages = [f"No gradient was changed. rank 1 has {counts}$"] * size
    messages[1] = f"No gradient was changed. position 1 has {counts}$"
    check_refused(worlds(size).run(faults.outcome, case), "NonFiniteNormError", *messages)


def test_what_is_left_out_by_name_tells_of_other_processes_too(worlds: Worlds) -> None:
    found = worlds(2).run(faults.outcome, "a plain one by name")
    assert [(each.norm, each.error) for each in found] == [(5.0, "")] * 2


def test_copies_are_those_beside_a_mesh_of_the_group_and_of_no_other(worlds: Worlds) -> None:
    *beside, third, fourth = worlds(4).run(faults.outcome, "plain beside the first two, in groups of two")
    assert [(each.norm, each.error) for each in beside] == [(reference.norm(faults.ARRAYS, 2.0), "")] * 2
    check_refused([third, fourth], "ValueError", "position 1 is a plain tensor. Pass ownership")


@pytest.mark.parametrize("how", ["other numbers", "the last bit", "another order", "negated", "NaN"])
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_plain_tensors_are_copies_only_where_all_ranks_have_the_same_bits(worlds: Worlds, size: int, how: str) -> None:
    message = "the gradients at position 2 differ between ranks. They are plain tensors .* Pass ownership='repl"
    check_refused(worlds(size).run(faults.outcome, f"unequal copies, {how}"), "ValueError", message)


def test_a_copy_that_one_rank_lacks_is_named(worlds: Worlds) -> None:
    message = r"position 2 differ between ranks. No such gradient on rank 1: position 2. They"
    check_refused(worlds(2).run(faults.outcome, "a copy without a gradient"), "ValueError", message)


@pytest.mark.parametrize("how", ["counted", "in a group"])
def test_copies_beside_what_all_hold_have_norms_of_their_own(worlds: Worlds, how: str) -> None:
    found = worlds(2).run(faults.outcome, f"copies by their own norms, {how}")
    assert [(each.norm, each.error) for each in found] == [(reference.norm(faults.ARRAYS, 2.0), "")] * 2


def test_whole_gradients_of_parameters_in_parts_are_copies(worlds: Worlds) -> None:
    norm = reference.norm(faults.ARRAYS, 2.0)
    for found in worlds(2).run(faults.outcome, "whole ones of parameters in pairs"):
        assert found.norm == pytest.approx(faults.ARRAYS[0].sum() / norm, rel=1e-6)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("other thresholds", "threshold: .*0.5 on rank 0"),
        ("other thresholds, p = inf", "threshold: .*2.0 on rank 1"),
        ("thresholds of single gradients", "threshold: .*2.0 on rank 1"),
        ("fewer parameters", "the number of parameters: .*2 on rank 0"),
        ("orders 1 and 2", "norm_type: .*1.0 on rank 0"),
        ("orders inf and 2", "norm_type: .*inf on rank 0"),
        ("orders 3 and 2", "norm_type: .*3.0 on rank 0"),
        ("one raises", "error_if_nonfinite: .*True on rank 0"),
        ("one measures", "threshold: .*None on rank 0"),
        ("one checks", "the number of gradient elements: .*24 on rank 0"),
        (
            "another name",
            r"eps(?=.* 1e-06 on rank 0)(?=.* 0.0 on rank 1)(?=.* rank 1.* called G.*\.clip_).* called clip_g",
        ),
        (
            "norms of single gradients",
            "norm_type(?=.* 2 of each gradient on rank 0).* 2.0 on rank 1.* called Gr.*ByNorm",
        ),
        ("another rule of a configuration", "rules(?=.* norm with .* on rank 0).* global_norm with .* on rank 1"),
        ("another family of a configuration", "rules(?=.*, eps 1e-06, .* on rank 0).*, eps 0.0, .* on rank 1"),
        ("details", "details(?=.* True on rank 0).* False on rank 1"),
        ("others by name", r"names(?=.*'a'.* on rank 0).*'b'.* on rank 1"),
        ("raise if not finite", "nonfinite(?=.* raise on rank 0).* family on rank 1"),
        ("skip if not finite", "nonfinite(?=.* skip on rank 0).* family on rank 1"),
        ("zero if not finite", "nonfinite(?=.* zero on rank 0).* family on rank 1"),
        ("one knows who counts", "the number of parameters: .*None on rank 0"),
    ],
)
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_processes_that_disagree_are_told_so(worlds: Worlds, size: int, case: str, message: str) -> None:
    message = message.replace("rank 1", "ranks? 1")  # of four ranks, "ranks 1, 2, 3" may have the same
    check_refused(worlds(size).run(faults.outcome, case), "ValueError", f"the ranks disagree about (.*. )?{message}")


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("copies as others", "counted 48 gradient elements together, and check_numel expects 24. Some elements"),
        ("others as copies", "counted 24 gradient elements together, and check_numel expects 48. .* Declare with"),
        ("all copies", "the ranks counted 0 gradient elements together, and check_numel expects 24"),
        ("all copies, p = inf", "the ranks counted 0 gradient elements together, and check_numel expects 24"),
    ],
)
def test_a_wrong_statement_of_who_counts_is_found(worlds: Worlds, case: str, message: str) -> None:
    check_refused(worlds(2).run(faults.outcome, case), "ValueError", message)


def test_gradients_that_no_rank_counts_are_an_error(worlds: Worlds) -> None:
    message = "no rank counts any gradient, because ownership returned False for all of them"
    for case in ("all copies, unchecked", "all copies, unchecked, p = 3"):
        check_refused(worlds(2).run(faults.outcome, case), "ValueError", message)
    assert [(each.norm, each.error) for each in worlds(2).run(faults.outcome, "zeros that one rank counts")] == [
        (0.0, "")
    ] * 2


def test_copies_that_every_rank_counts_are_suspicious(worlds: Worlds) -> None:
    """Here, warnings are errors."""
    message = "the 2 ranks counted gradients with exactly the same sum, .* as with DistributedDataParallel, the norm is"
    for case in ("copies as others, unchecked", "copies as others, by a function"):
        check_refused(worlds(2).run(faults.outcome, case), "ClipWarning", message)
    norm = reference.norm(faults.ARRAYS * 2, 2.0)
    assert [(each.norm, each.error) for each in worlds(2).run(faults.outcome, "equal shards")] == [(norm, "")] * 2


@pytest.mark.parametrize(
    ("case", "size", "error", "messages"),
    [
        ("some processes", 2, "ValueError", ["on device meshes of 1 of the 2 ranks. .* Pass process_group, the"]),
        ("some processes", 4, "ValueError", ["on device meshes of 2 of the 4 ranks. .* Pass process_group, the"]),
        ("some processes, by a functional name", 4, "ValueError", ["Pass process_group, the group of all ranks that"]),
        ("some processes, with derivatives", 2, "ValueError", ["is on 1 of 2 ranks, .* torch.no_grad"]),
        ("some processes, clipped with derivatives", 2, "ValueError", ["is on 1 of 2 ranks, .* torch.no_grad"]),
        ("some processes, configured with derivatives", 4, "ValueError", ["is on 2 of 4 ranks, .* torch.no_grad"]),
        ("some processes beside all", 2, "ValueError", ["at position 0 is on 1 of them. Pass ownership='repl"]),
        ("some processes beside all", 4, "ValueError", ["at position 0 is on 2 of them. Pass ownership='repl"]),
        ("some processes in a group", 4, "ValueError", ["at position 0 is on 2 of them. Pass ownership='repl"]),
        ("plain in a group", 2, "ValueError", ["position 0 is a plain tensor. Pass ownership='replicated'"]),
        ("plain beside some, in a group", 4, "ValueError", ["position 3 is a plain tensor. Pass ownership"]),
        ("plain, and only told who counts", 2, "ValueError", ["no tensor has a mesh. Pass process_group as well"]),
        ("parts of parameters in pairs", 2, "ValueError", ["position 0 is a plain tensor, and smaller than its par"]),
        ("parts of parameters in pairs, each by its own", 2, "ValueError", ["position 0 is a plain tensor, and other"]),
        ("another group", 2, "ValueError", [r"rank 0 is not in process_group, .*\[1\]", r"rank 1 is .*\[0\]"]),
        ("a group that is too small", 2, "ValueError", [r"ranks \[0, 1\], but .* the ranks \[0\]. Pass a", ""]),
        (
            "a group that is too small for single gradients",
            2,
            "ValueError",
            [r"ranks \[0, 1\], but process_group has the ranks \[0\]", r"process_group has the ranks \[1\]. Pass a"],
        ),
        ("no group", 2, "ValueError", ["process_group is None, but the gradient at position 0 is not complete on"]),
        ("a mesh of others", 2, "ValueError", ["is a plain tensor", "rank 1 is not on the device mesh"]),
        ("a name for a group", 2, "TypeError", ["process_group is 'world'. Pass a process group of"]),
        ("a flag for a group", 2, "TypeError", ["process_group is True. Pass a process group of"]),
        ("a name for a group of single gradients", 2, "TypeError", ["process_group is 'world'. Pass a process group"]),
        ("a list for a group", 2, "TypeError", [r"process_group is \[0, 1\]. Pass a process group of"]),
        ("copies on some processes, in a group", 4, "ValueError", ["at position 0 is on 2 of them. Pass ownership"]),
        ("on the first two, in a group", 4, "ValueError", ["at position 0 is on 2 of them. Pass ownership"]),
        ("who counts on a wider mesh", 4, "ValueError", [r"ranks \[0, 1, 2, 3\], but the norm is all-reduced over"]),
        (
            "who counts on a narrower mesh",
            4,
            "ValueError",
            [r"all-reduced over the ranks \[0, 1, 2, 3\]. Pass mesh_ownership the dev"],
        ),
        (
            "who counts on a narrower mesh than all",
            2,
            "ValueError",
            [r"ranks \[0\], but the norm is all-reduced over the ranks \[0, 1\]", r"ranks \[1\], but the norm is"],
        ),
        (
            "copies that nobody has",
            2,
            "ValueError",
            [
                r"position 1 is only on the ranks \[1\]: rank 0 has no copy. Pass ownership='dist",
                "0 is only on .* 1 has no",
            ],
        ),
        ("no answer", 2, "TypeError", ["ownership returned None for position 0.*. Return True if"]),
        ("unknown ownership", 2, "ValueError", ["ownership is 'owned'. Pass 'replicated', 'distinct', a fun"]),
        ("numbers that are no counts", 2, "TypeError", ["check_numel is 10.0. Pass a bool, a whole number"]),
        ("terms that are no sums", 2, "ValueError", [r"placement P\(max\), which is not supported"]),
    ],
)
def test_what_cannot_be_told_has_to_be_stated(
    worlds: Worlds, case: str, size: int, error: str, messages: list[str]
) -> None:
    check_refused(worlds(size).run(faults.outcome, case), error, *messages)


WAITING = "of {} waited for the other ranks in call 1 of this process group. Make the same calls on every rank"


@pytest.mark.nightly
@pytest.mark.parametrize("size", [2, *nightly(4)])
@pytest.mark.parametrize("case", ["late", "dying"])
def test_nobody_waits_longer_than_the_group_allows(case: str, size: int) -> None:
    """The error is PyTorch's, with what it was waiting for."""
    world = World(torch_sharded.start, size)
    try:
        first, *others = world.attempt(faults.outcome, case)
    finally:
        world.close()
    assert isinstance(first, Failure) == (case == "dying")
    for found in others:
        assert found.error.startswith("RuntimeError: ")
        assert WAITING.format(size) in found.error
        assert found.unchanged
        assert found.seconds < faults.PATIENCE + 2
