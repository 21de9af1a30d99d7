"""PyTorch: calls that are invalid, or that differ between ranks, raise on every rank before a gradient changes."""

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
from support.rank_tables import check_differs
from support.tiers import nightly

Worlds = Callable[[int], World]

nan, inf = math.nan, math.inf


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with torch_sharded.worlds() as of:
        yield of


def check_rejected(outcomes: Sequence[Outcome], error: str, *messages: str) -> None:
    """Check the error of each rank. There is one message for all ranks, or one for each."""
    for rank, outcome in enumerate(outcomes):
        assert re.search(f"^{error}: .*{messages[rank % len(messages)]}", outcome.error), (
            f"rank {rank}: {outcome.error}"
        )
        assert outcome.unchanged


@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_a_process_without_gradients_takes_part(worlds: Worlds, size: int, rank: int, p: float) -> None:
    outcomes = worlds(size).run(faults.run_case, f"no gradients on rank {rank} and p = {p}")
    expected = reference.norm([array for outcome in outcomes for array in outcome.local_gradients], p)
    assert [(outcome.norm, outcome.error) for outcome in outcomes] == [(expected, "")] * size
    assert not outcomes[rank].local_gradients


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, inf])
@pytest.mark.parametrize("value", [nan, inf])
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_nan_or_inf_on_one_rank_reaches_the_norm_on_all_ranks(
    worlds: Worlds, size: int, value: float, p: float
) -> None:
    for outcome in worlds(size).run(faults.run_case, f"{value} and p = {p}"):
        assert str(outcome.norm) == str(value)


@pytest.mark.parametrize(
    ("case", "counts"),
    [("all raise if not finite", "1 NaN and 0 inf"), ("raise if not finite, p = inf", "0 NaN and 1 inf")],
)
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_error_if_nonfinite_raises_on_all_ranks(worlds: Worlds, size: int, case: str, counts: str) -> None:
    """The rank with the value reports the tensor. Every other rank reports this rank."""
    messages = [f"No gradient was changed. rank 1 has {counts}$"] * size
    messages[1] = f"No gradient was changed. position 1 has {counts}$"
    check_rejected(worlds(size).run(faults.run_case, case), "NonFiniteNormError", *messages)


def test_excluded_parameters_still_give_the_process_group(worlds: Worlds) -> None:
    outcomes = worlds(2).run(faults.run_case, "a plain one by name")
    assert [(outcome.norm, outcome.error) for outcome in outcomes] == [(5.0, "")] * 2


def test_plain_tensors_are_copies_only_beside_a_mesh_of_the_group(worlds: Worlds) -> None:
    *beside, third, fourth = worlds(4).run(faults.run_case, "plain beside the first two, in groups of two")
    assert [(outcome.norm, outcome.error) for outcome in beside] == [(reference.norm(faults.ARRAYS, 2.0), "")] * 2
    check_rejected([third, fourth], "ValueError", "position 1 is a plain tensor. Pass ownership")


@pytest.mark.parametrize("change", ["other numbers", "the last bit", "another order", "negated", "NaN"])
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_plain_tensors_with_other_bits_on_a_rank_are_no_copies(worlds: Worlds, size: int, change: str) -> None:
    outcomes = worlds(size).run(faults.run_case, f"unequal copies, {change}")
    check_rejected(outcomes, "ValueError", "plain gradients differ between ranks: position 2. No gradient was changed")
    for outcome in outcomes:
        check_differs(outcome.error, "position 2$")
        assert "Pass ownership='replicated'" in outcome.error


def test_a_copy_that_one_rank_lacks_is_named(worlds: Worlds) -> None:
    outcomes = worlds(2).run(faults.run_case, "a copy without a gradient")
    check_rejected(outcomes, "ValueError", "plain gradients differ between ranks: position 2. No gradient was changed")
    for outcome in outcomes:
        check_differs(outcome.error, "position 2", "checksum", "None")


@pytest.mark.parametrize("case", ["counted", "in a group"])
def test_plain_copies_beside_shards_are_clipped_by_their_own_norms(worlds: Worlds, case: str) -> None:
    outcomes = worlds(2).run(faults.run_case, f"copies by their own norms, {case}")
    assert [(outcome.norm, outcome.error) for outcome in outcomes] == [(reference.norm(faults.ARRAYS, 2.0), "")] * 2


def test_unsharded_gradients_of_sharded_parameters_are_copies(worlds: Worlds) -> None:
    norm = reference.norm(faults.ARRAYS, 2.0)
    for outcome in worlds(2).run(faults.run_case, "complete gradients in param_grads"):
        assert outcome.norm == pytest.approx(faults.ARRAYS[0].sum() / norm, rel=1e-6)


@pytest.mark.parametrize(
    ("case", "rows"),
    [
        ("other thresholds", [("threshold", "0.5")]),
        ("other thresholds, p = inf", [("threshold", "", "2.0")]),
        ("thresholds of single gradients", [("threshold", "", "2.0")]),
        ("fewer parameters", [("the number of parameters", "2")]),
        ("orders 1 and 2", [("norm_type", "1.0")]),
        ("orders inf and 2", [("norm_type", "inf")]),
        ("orders 3 and 2", [("norm_type", "3.0")]),
        ("one raises", [("error_if_nonfinite", "True")]),
        ("one measures", [("threshold", "None")]),
        ("one checks", [("the number of gradient elements", "24")]),
        ("another name", [("eps", "1e-06", "0.0"), ("function", "clip_g", r"G\S*\.clip_")]),
        (
            "norms of single gradients",
            [("norm_type", "2 of each gradient", "2.0"), ("function", r"Gr\S*ByNorm", "")],
        ),
        ("another rule of a configuration", [("rules", "norm with ", "global_norm with ")]),
        ("another family of a configuration", [("rules", ", eps 1e-06, ", ", eps 0.0, ")]),
        ("details", [("details", "True", "False")]),
        ("others by name", [(".*names", "'a'", "'b'")]),
        ("raise if not finite", [("nonfinite", "raise", "family")]),
        ("skip if not finite", [("nonfinite", "skip", "family")]),
        ("zero if not finite", [("nonfinite", "zero", "family")]),
        ("one declares ownership", [("the number of parameters", "None")]),
    ],
)
@pytest.mark.parametrize("size", [2, *nightly(4)])
def test_disagreeing_ranks_raise_an_error_that_names_the_difference(
    worlds: Worlds, size: int, case: str, rows: list[tuple[str, ...]]
) -> None:
    """`rows`: the name of each value that differs, its value on rank 0, and its value on rank 1."""
    outcomes = worlds(size).run(faults.run_case, case)
    check_rejected(outcomes, "ValueError", "the ranks disagree about ")
    for outcome in outcomes:
        for row in rows:
            check_differs(outcome.error, *row)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "copies declared as distinct",
            "own 48 gradient elements together, and check_numel expects 24. Some elements",
        ),
        (
            "distinct declared as copies",
            "own 24 gradient elements together, and check_numel expects 48. .* Pass `ownership` to",
        ),
        ("all copies", "the ranks own 0 gradient elements together, and check_numel expects 24"),
        ("all copies, p = inf", "the ranks own 0 gradient elements together, and check_numel expects 24"),
    ],
)
def test_check_numel_rejects_wrong_ownership(worlds: Worlds, case: str, message: str) -> None:
    check_rejected(worlds(2).run(faults.run_case, case), "ValueError", message)


def test_gradients_that_no_rank_counts_are_an_error(worlds: Worlds) -> None:
    message = "no rank owns any gradient, because ownership returned False for every gradient"
    for case in ("all copies, unchecked", "all copies, unchecked, p = 3"):
        check_rejected(worlds(2).run(faults.run_case, case), "ValueError", message)
    assert [
        (outcome.norm, outcome.error) for outcome in worlds(2).run(faults.run_case, "zeros that one rank owns")
    ] == [(0.0, "")] * 2


def test_equal_sums_of_ranks_that_all_count_are_a_warning(worlds: Worlds) -> None:
    """Warnings are errors in these processes."""
    message = "the 2 ranks own gradients with exactly the same norm, .* as with DistributedDataParallel, the norm is"
    for case in ("copies declared as distinct, unchecked", "copies declared as distinct, by a function"):
        check_rejected(worlds(2).run(faults.run_case, case), "ClipWarning", message)
    norm = reference.norm(faults.ARRAYS * 2, 2.0)
    assert [(outcome.norm, outcome.error) for outcome in worlds(2).run(faults.run_case, "equal shards")] == [
        (norm, "")
    ] * 2


@pytest.mark.parametrize(
    ("case", "size", "error", "messages"),
    [
        ("some processes", 2, "ValueError", ["with 1 of 2 ranks. .* As process_group, pass the"]),
        ("some processes", 4, "ValueError", ["with 2 of 4 ranks. .* As process_group, pass the"]),
        (
            "some processes, by a functional name",
            4,
            "ValueError",
            ["As process_group, pass the group of all ranks that"],
        ),
        ("some processes, with derivatives", 2, "ValueError", ["has 1 of 2 ranks. .* torch.no_grad"]),
        ("some processes, clipped with derivatives", 2, "ValueError", ["has 1 of 2 ranks. .* torch.no_grad"]),
        ("some processes, configured with derivatives", 4, "ValueError", ["has 2 of 4 ranks. .* torch.no_grad"]),
        (
            "some processes beside all",
            2,
            "ValueError",
            ["at position 0 is on only 1 of these ranks. Pass ownership='repl"],
        ),
        (
            "some processes beside all",
            4,
            "ValueError",
            ["at position 0 is on only 2 of these ranks. Pass ownership='repl"],
        ),
        (
            "some processes in a group",
            4,
            "ValueError",
            ["at position 0 is on only 2 of these ranks. Pass ownership='repl"],
        ),
        ("plain in a group", 2, "ValueError", ["position 0 is a plain tensor. Pass ownership='replicated'"]),
        ("plain beside some, in a group", 4, "ValueError", ["position 3 is a plain tensor. Pass ownership"]),
        ("plain, and ownership without a group", 2, "ValueError", ["no tensor has a mesh. Pass process_group as well"]),
        ("local shards in param_grads", 2, "ValueError", ["position 0 is a plain tensor that is smaller than its par"]),
        (
            "local shards in param_grads, by their own norms",
            2,
            "ValueError",
            ["position 0 is a plain tensor. Other ranks may have"],
        ),
        ("another group", 2, "ValueError", [r"rank 0 is not in process_group, .*\[1\]", r"rank 1 is .*\[0\]"]),
        ("a group that is too small", 2, "ValueError", [r"ranks \[0, 1\], but .* the ranks \[0\]. Pass a", ""]),
        (
            "a group that is too small for single gradients",
            2,
            "ValueError",
            [r"ranks \[0, 1\], but process_group has the ranks \[0\]", r"process_group has the ranks \[1\]. Pass a"],
        ),
        ("no group", 2, "ValueError", ["process_group is None, but the gradient at position 0 is not complete on"]),
        ("a mesh of others", 2, "ValueError", ["is a plain tensor", "but this process is rank 1"]),
        ("a name for a group", 2, "TypeError", ["process_group is 'world'. Pass a process group of"]),
        ("a flag for a group", 2, "TypeError", ["process_group is True. Pass a process group of"]),
        ("a name for a group of single gradients", 2, "TypeError", ["process_group is 'world'. Pass a process group"]),
        ("a list for a group", 2, "TypeError", [r"process_group is \[0, 1\]. Pass a process group of"]),
        (
            "copies on some processes, in a group",
            4,
            "ValueError",
            ["at position 0 is on only 2 of these ranks. Pass ownership"],
        ),
        (
            "on the first two, in a group",
            4,
            "ValueError",
            ["at position 0 is on only 2 of these ranks. Pass ownership"],
        ),
        ("ownership on a wider mesh", 4, "ValueError", [r"ranks \[0, 1, 2, 3\], but the norm is all-reduced over"]),
        (
            "ownership on a narrower mesh",
            4,
            "ValueError",
            [r"all-reduced over the ranks \[0, 1, 2, 3\]. To mesh_ownership, pass the device mesh of all ranks with"],
        ),
        (
            "ownership on a narrower mesh than all",
            2,
            "ValueError",
            [r"ranks \[0\], but the norm is all-reduced over the ranks \[0, 1\]", r"ranks \[1\], but the norm is"],
        ),
        (
            "copies that one rank lacks",
            2,
            "ValueError",
            [
                r"position 1 is only on the ranks \[1\]: rank 0 has no copy. Pass ownership='dist",
                "0 is only on .* 1 has no",
            ],
        ),
        ("no answer", 2, "TypeError", ["ownership returned None for position 0.*. Return True if"]),
        ("unknown ownership", 2, "ValueError", ["ownership is 'owned'. Pass 'replicated', 'distinct', None, or a fun"]),
        ("a float as the number of elements", 2, "TypeError", ["check_numel is 10.0. Pass a bool, a whole number"]),
        ("Partial placements that are no sums", 2, "ValueError", [r"placement Partial\(max\), which is not supported"]),
    ],
)
def test_ambiguous_or_invalid_ownership_is_rejected(
    worlds: Worlds, case: str, size: int, error: str, messages: list[str]
) -> None:
    check_rejected(worlds(size).run(faults.run_case, case), error, *messages)


WAITING = "of {} waited for the other ranks in call 1 on this process group. Make the same calls on every rank"


@pytest.mark.nightly
@pytest.mark.parametrize("size", [2, *nightly(4)])
@pytest.mark.parametrize("case", ["late", "dying"])
def test_no_rank_waits_longer_than_the_timeout_of_the_group(case: str, size: int) -> None:
    """PyTorch raises the error. A note says which call waited."""
    world = World(torch_sharded.start, size)
    try:
        first, *waiting = world.attempt(faults.run_case, case)
    finally:
        world.close()
    assert isinstance(first, Failure) == (case == "dying")
    for outcome in waiting:
        assert outcome.error.startswith("RuntimeError: ")
        assert WAITING.format(size) in outcome.error
        assert outcome.unchanged
        assert outcome.seconds < faults.PATIENCE + 2
