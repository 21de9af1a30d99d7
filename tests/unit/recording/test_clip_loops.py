"""`unified-clip compare`: a loop of clips of single gradients equals one call that clips per tensor."""

from __future__ import annotations

from typing import Any

import pytest
from support.recordings import NORMS, cause_kinds, clip_line, clip_loop, per_tensor_line, rename_parameters

from unified_clip.recording.report import sentences


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("norms", [True, False])
def test_a_loop_equals_one_call_that_clips_per_tensor(compare_runs: Any, named: bool, norms: bool) -> None:
    together, loop = [per_tensor_line(1), per_tensor_line(2)], [*clip_loop(1, named=named), *clip_loop(2, named=named)]
    if not norms:
        together, loop = ([{**call, "parameters": {}} for call in calls] for calls in (together, loop))
    comparison = compare_runs(together, loop)
    assert comparison.first is None
    assert compare_runs(loop, together).first is None
    assert len(comparison.pairs) == 2
    assert (
        "6 calls. Compared: 2 calls. The calls in a loop over parameters count as one. Calls without gradients, and "
        "steps that one run skips, are left out." in sentences.report_lines(comparison)[2]
    )


def test_calls_of_a_loop_that_were_counted_as_steps_get_the_steps_of_the_other_run(compare_runs: Any) -> None:
    counted = [{**call, "step": step} for step, call in enumerate([*clip_loop(1), *clip_loop(2)], start=1)]
    assert compare_runs([per_tensor_line(1), per_tensor_line(2)], counted).first is None
    assert compare_runs(counted, [per_tensor_line(1), per_tensor_line(2)]).first is None


def test_a_loop_in_another_order_is_paired_by_name(compare_runs: Any) -> None:
    reverse = dict(reversed(NORMS.items()))
    assert compare_runs([per_tensor_line(1)], clip_loop(1, reverse)).first is None
    assert compare_runs([per_tensor_line(1)], [per_tensor_line(1, reverse)]).first is None


def test_a_loop_of_clips_by_value_equals_one_call(compare_runs: Any) -> None:
    bounds = {"rule": "value", "norm_type": None, "norm": None, "coef": None, "threshold": [-1.0, 1.0]}
    together, loop = {**per_tensor_line(1), **bounds}, [{**call, **bounds} for call in clip_loop(1)]
    assert compare_runs([together], loop).first is None


def test_mistakes_in_a_loop_are_named(compare_runs: Any) -> None:
    assert cause_kinds(compare_runs([per_tensor_line(1)], clip_loop(1, {"a": 3.0, "c": 12.0}))) == ["left out"]
    wrong = clip_loop(1, threshold=2.0)
    for call in wrong:
        call["coef"] = [min(1.0, 2 / call["norm"][0])]
    assert cause_kinds(compare_runs([per_tensor_line(1)], wrong)) == ["another threshold"]
    twice = compare_runs([per_tensor_line(1)], [*clip_loop(1), *clip_loop(1)])
    assert twice.first.stage == "calls"


def test_loops_of_two_optimizers_are_two_calls(compare_runs: Any) -> None:
    more = {"d": 5.0, "e": 7.0}
    comparison = compare_runs([per_tensor_line(1), per_tensor_line(1, more)], [*clip_loop(1), *clip_loop(1, more)])
    assert comparison.first is None
    assert len(comparison.pairs) == 2


MODEL = {**NORMS, "d": 5.0, "e": 0.5}
ACTOR, CRITIC = ({name: MODEL[name] for name in names} for names in ("abc", "de"))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("rule", ["each", "value"])
def test_a_call_for_each_network_equals_one_call_that_clips_per_tensor(
    compare_runs: Any, named: bool, rule: str
) -> None:
    by_value = {"rule": "value", "norm": None, "coef": None, "norm_type": None, "threshold": [-1.0, 1.0]}
    changes = by_value if rule == "value" else {}
    together, networks = (
        [{**per_tensor_line(step, norms), **changes} for step in (1, 2) for norms in all_norms]
        for all_norms in ([MODEL], [ACTOR, CRITIC])
    )
    if not named:
        together, networks = (
            [rename_parameters(call, {name: str(n) for n, name in enumerate(call["parameters"])}) for call in calls]
            for calls in (together, networks)
        )
    for sides in ((together, networks), (networks, together)):
        comparison = compare_runs(*sides)
        assert comparison.first is None
        assert len(comparison.pairs) == 2


def test_a_gradient_that_no_network_clips_is_left_out(compare_runs: Any) -> None:
    networks = [per_tensor_line(1, ACTOR), per_tensor_line(1, {"d": 5.0})]
    comparison = compare_runs([per_tensor_line(1, MODEL)], networks)
    assert comparison.first is not None
    assert "e" in comparison.findings[0].sentence


def test_networks_with_thresholds_of_their_own_are_not_one_call(compare_runs: Any) -> None:
    networks = [per_tensor_line(1, ACTOR), per_tensor_line(1, CRITIC, threshold=2.0)]
    assert compare_runs([per_tensor_line(1, MODEL)], networks).first is not None


def test_total_norms_of_networks_in_place_of_norms_per_tensor_are_another_rule(compare_runs: Any) -> None:
    networks = [clip_line(1, ACTOR), clip_line(1, CRITIC)]
    for sides in (([per_tensor_line(1, MODEL)], networks), (networks, [per_tensor_line(1, MODEL)])):
        comparison = compare_runs(*sides)
        assert cause_kinds(comparison) == ["another rule"]
        assert "clips each of 5 gradients by its own norm" in comparison.findings[0].sentence
        assert "clips 5 gradients in 2 calls, each by the total norm" in comparison.findings[0].sentence
