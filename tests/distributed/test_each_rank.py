"""The contract on several ranks: each rank has the bits of one process, or all ranks raise and nothing changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from support import calls, rank_calls, ranks, reference, situations
from support.calls import CALLS
from support.kits import Kit
from support.processes.worlds import World
from support.rank_calls import ARRAYS, DIFFERENCES, REJECTIONS
from support.rank_tables import check_differs, ranks_by_value, rows_of
from support.ranks import FULL, LAYOUTS, Gradient, Outcome, Situation, adapter_of, complete, is_sum
from support.tiers import quick_on, where

Worlds = Callable[[int], World]

pytestmark = where(lambda kit: kit.exact and kit.name in ranks.FRAMEWORKS)

NUMPY = Kit()


def layouts_of(kit: Kit, declared: str) -> list[str]:
    """Return the layouts that the keywords allow."""
    layouts = adapter_of(kit.name).LAYOUTS
    if declared in ranks.IN_HALVES:
        return ranks.HALVES
    if declared in ("", "WORLD"):
        return [layout for layout in layouts if layout in FULL or (layout == "plain" and not declared)]
    return [layout for layout in layouts if layout not in ranks.HALVES]


@st.composite
def gradients(draw: st.DrawFn, kit: Kit, declared: str) -> list[Gradient]:
    """Draw gradients in any layouts. Sums of terms are exact in each dtype."""
    adapter, drawn = adapter_of(kit.name), []
    dtypes = st.sampled_from(draw(st.lists(st.sampled_from(adapter.DTYPES), min_size=1, max_size=2)))
    for layout in draw(st.lists(st.sampled_from(layouts_of(kit, declared)), min_size=1, max_size=4)):
        array = draw(situations.numbers(kit, draw(dtypes)))
        if is_sum(layout):
            array = np.random.default_rng(array.size).integers(-8, 9, array.shape).astype(array.dtype)
        fits = adapter.fitting(array, layout)
        drawn.append(Gradient(array if fits is None else fits, layout, draw(st.integers(0, 9)) == 0))
    return drawn


KEYWORDS = {
    "inferred": ["", "WORLD"], "by name or group": ["replicated", "distinct", *ranks.IN_HALVES],
    "by function": ["mesh", "stages", "function"],
}  # fmt: skip


@quick_on("torch")
@where(lambda kit, keywords: kit.name in ranks.FRAMEWORKS and adapter_of(kit.name).DECLARED & set(KEYWORDS[keywords]))
@pytest.mark.parametrize("keywords", KEYWORDS)
@given(data=st.data())
def test_every_function_returns_the_bits_of_one_process(
    kit: Kit, rank_worlds: Worlds, keywords: str, data: st.DataObject
) -> None:
    adapter = adapter_of(kit.name)
    declared = data.draw(st.sampled_from([each for each in KEYWORDS[keywords] if each in adapter.DECLARED]))
    size = 4 if declared in ranks.IN_HALVES else data.draw(st.sampled_from(adapter.SIZES))
    drawn, threshold = data.draw(gradients(kit, declared)), data.draw(situations.thresholds(True))
    full = complete(Situation(drawn, "", 0.0, declared), size)
    has_mesh = any(each.layout != "plain" and not each.is_absent for each in drawn)
    numel = sum(array.size for array in full)
    in_halves = any(each.layout in ranks.HALVES for each in drawn)  # which not all ranks have
    has_known_copies = not in_halves and declared not in ("function", *ranks.IN_HALVES)
    checks = data.draw(st.sampled_from([{}, {"check_numel": numel}, {"check_replicas": has_known_copies}]))
    has_values = not any(is_sum(each.layout) or np.iscomplexobj(each.array) for each in drawn)
    made = []
    for name, call in CALLS.items():
        if call.scope == "value" and not has_values:
            continue  # is rejected
        n = 0.0
        if call.scope == "each":
            n = max((calls.norm_of([array], 2) for array in full), default=0.0)
        elif call.scope != "value":
            n = calls.norm_of(full, call.p) if call.given_norm is None else call.given_norm
        is_checked = call.given_norm is None and (declared or has_mesh)
        made.append(Situation(drawn, name, threshold(n), declared, checks if is_checked else {}))
    outcomes = rank_worlds(size).run(ranks.run_all, kit.name, made)
    for situation, of_ranks in zip(made, zip(*outcomes, strict=True), strict=True):
        note(situation.call)
        check(situation, of_ranks)


def check(situation: Situation, outcomes: Sequence[Outcome]) -> None:
    call, limit, declared = CALLS[situation.call], situation.limit, situation.declared
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes)
    size, norms = len(outcomes), []
    for rank, outcome in enumerate(outcomes):
        full, n = complete(situation, size, rank), call.given_norm
        if n is None and call.scope not in ("value", "each"):
            n = calls.norm_of(full, call.p)
        if outcome.norm is not None and call.given_norm is None:
            n = calls.check_norm(NUMPY, outcome.norm, full, call.p, exact=True)
            first = outcomes[size // 2 if declared in ranks.IN_HALVES and 2 * rank >= size else 0].norm
            assert outcome.norm.tobytes() == first.tobytes()  # type: ignore[union-attr]
        norms.append(n)
    for index, gradient in enumerate(situation.gradients):
        after = [outcome.after[index] for outcome in outcomes]
        assert [result is None for result in after] == [gradient.is_absent] * size
        for rank, result in enumerate(after if not gradient.is_absent else []):
            before, expected = gradient.on(rank, size, declared), None
            if call.scope in ("", "value"):
                (expected,) = calls.expected_of(call, [before], limit)
            else:
                whole = gradient.of_block(ranks.block(gradient.layout, declared, rank, size))
                own = calls.norm_of([whole], 2) if call.scope == "each" else norms[rank]
                expected = before if limit == np.inf else calls.scaled(before, call, own, limit)
            calls.check_gradient(NUMPY, result, expected, exact=True)


@pytest.mark.parametrize("layout", ["FSDP", "HSDP", "two dimensions"])
def test_a_clip_has_one_collective(kit: Kit, rank_worlds: Worlds, layout: str) -> None:
    for outcome in rank_worlds(2).run(ranks.run, kit.name, three(layout, "", checks={"check_numel": True})):
        assert (outcome.error, outcome.collectives) == ("", 1)


# -- copies

PLACED = [(layout, "WORLD") for layout in FULL] + [
    (layout, declared) for layout in LAYOUTS if layout not in (*FULL, *ranks.HALVES) for declared in ranks.OWNERSHIP
]
"""Layouts with keywords that declare them completely."""


def three(layout: str, declared: str, **changes: Any) -> Situation:
    return Situation([Gradient(array, layout) for array in ARRAYS], "clip_grad_norm_", 1.0, declared, **changes)


def placed(kit: Kit, layout: str, declared: str) -> bool:
    if kit.name not in ranks.FRAMEWORKS:
        return False
    adapter = adapter_of(kit.name)
    return layout in adapter.LAYOUTS and declared in adapter.DECLARED


@where(placed)
@pytest.mark.parametrize(("layout", "declared"), PLACED)
def test_a_copy_that_drifted_is_named_on_all_ranks(kit: Kit, rank_worlds: Worlds, layout: str, declared: str) -> None:
    if declared == "function":
        for outcome in rank_worlds(4).run(
            ranks.run, kit.name, three(layout, declared, checks={"check_replicas": True})
        ):
            assert "check_replicas cannot infer which ranks have copies" in outcome.error or layout in FULL
        return
    for rank in (0, 3):
        copies = ranks.copies(layout, declared, rank, 4)
        situation = three(layout, declared, checks={"check_replicas": True}, drifted=(1, rank))
        for outcome in rank_worlds(4).run(ranks.run, kit.name, situation):
            if len(copies) == 1:
                assert not outcome.error
                continue
            assert outcome.error.startswith("ValueError: copies of gradients differ between ranks: position 1")
            ((place, _),) = rows_of(outcome.error).items()
            groups = sorted(ranks_by_value(outcome.error, place))
            assert groups == sorted([[rank], [other for other in copies if other != rank]])
            assert outcome.is_unchanged


@where(lambda kit, layout, declared: placed(kit, layout, declared) and kit.name == "torch" and not is_sum(layout))
@pytest.mark.parametrize(("layout", "declared"), PLACED)
def test_a_gradient_counts_if_its_owner_has_it(kit: Kit, rank_worlds: Worlds, layout: str, declared: str) -> None:
    """If only the owner lacks it, all ranks raise. If only another rank lacks it, the norm is complete."""
    if declared == "function":
        return  # its copies are unknown
    norm = reference.norm(complete(three(layout, declared), 4))
    for rank in (0, 3):
        copies = ranks.copies(layout, declared, rank, 4)
        owner = ranks.copies(layout, declared, copies[0], 4)[0]
        outcomes = rank_worlds(4).run(ranks.run, kit.name, three(layout, declared, lacking=(1, [rank])))
        for outcome in outcomes:
            if len(copies) > 1 and rank == owner:
                assert outcome.error.startswith("ValueError: no rank owns the gradient at position 1")
                assert outcome.is_unchanged
            else:
                assert not outcome.error
                assert len(copies) == 1 or float(outcome.norm) == norm  # type: ignore[arg-type]


# -- ranks that disagree, and ranks that reject a call


NEXT = reference.norm(ARRAYS)
"""The norm of a call after the one that raises. It works, because all ranks are at the same call."""


@pytest.mark.parametrize("name", DIFFERENCES)
def test_ranks_that_differ_raise_on_all_ranks(kit: Kit, rank_worlds: Worlds, name: str) -> None:
    _, row, *values = DIFFERENCES[name]
    for outcome in rank_worlds(2).run(rank_calls.differ, kit.name, name):
        assert outcome.error.startswith("ValueError: the ranks disagree about ")
        check_differs(outcome.error, row, *values)
        assert (outcome.is_unchanged, outcome.next_norm) == (True, NEXT)


def check_rejected(outcomes: Sequence[rank_calls.Reported], reason: str) -> None:
    for rank, outcome in enumerate(outcomes):
        start = reason if rank == 1 else f"ValueError: rank 1 rejected this call: {reason}"
        assert outcome.error.startswith(start), outcome.error
        assert (outcome.is_unchanged, outcome.next_norm) == (True, NEXT)


@pytest.mark.parametrize("name", REJECTIONS)
def test_all_ranks_raise_if_one_rejects_the_call(kit: Kit, rank_worlds: Worlds, name: str) -> None:
    check_rejected(rank_worlds(2).run(rank_calls.reject, kit.name, name), REJECTIONS[name][1])


@pytest.mark.parametrize("p", [2.0, 3.0, np.inf])
def test_all_ranks_raise_if_one_has_integers(kit: Kit, rank_worlds: Worlds, p: float) -> None:
    check_rejected(rank_worlds(2).run(rank_calls.reject_integers, kit.name, p), "TypeError: position 3 ")


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, np.inf])
def test_nan_on_one_rank_raises_on_all_ranks_and_there_with_its_place(kit: Kit, rank_worlds: Worlds, p: float) -> None:
    for rank, outcome in enumerate(rank_worlds(2).run(rank_calls.clip_with_nan, kit.name, p)):
        here = r"position 1( \(.*\))? has 1 NaN and 0 inf" if rank == 1 else "On this rank, every gradient is finite"
        assert re.search(f"^NonFiniteNormError: the total norm of order {p:g} is NaN, .* {here}", outcome.error)
        assert outcome.is_unchanged


def test_a_wrong_number_of_elements_is_an_error(kit: Kit, rank_worlds: Worlds) -> None:
    numel = sum(array.size for array in ARRAYS)
    for outcome in rank_worlds(2).run(ranks.run, kit.name, three("FSDP", "", checks={"check_numel": numel + 1})):
        assert f"own {numel} gradient elements together, and check_numel expects {numel + 1}" in outcome.error
        assert outcome.is_unchanged


def test_an_error_reaches_the_ranks_of_the_group_alone(kit: Kit, rank_worlds: Worlds) -> None:
    for rank, (error, norm) in enumerate(rank_worlds(4).run(rank_calls.reject_in_a_half, kit.name)):
        own = "ValueError: max_norm is nan"
        assert error.startswith([own, f"ValueError: rank 0 rejected this call: {own}", "", ""][rank])
        assert bool(error) == (rank < 2)
        assert norm == reference.norm([array * np.float32(0.5 ** (rank // 2)) for array in ARRAYS])
