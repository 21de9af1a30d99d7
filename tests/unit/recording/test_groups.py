"""`unified-clip compare`: one norm for each parameter group, and parameters that one run packs into one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from support.recordings import cause_kinds

from unified_clip.recording.report import sentences
from unified_clip.recording.rounding_noise import is_noise_of

Lines = list[dict[str, Any]]
GROUPS = {"0": 3.0, "1": 4.0}, {"0": 12.0}
SHAPES = {"0": [4, 2], "1": [2, 4]}, {"0": [16]}
STEP = {"optimizer": "torch.optim.AdamW", "settings": {"lr": 0.1, "weight_decay": [0.1, 0.0]}, "backward_calls": 1}


def clip_line(step: int, norms: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    norms = {"a": 3.0, "b": 4.0, "c": 12.0} if norms is None else norms
    total, eps, weights = math.hypot(*norms.values()), changes.get("eps", 0.0), changes.pop("weights", {})
    fields = {
        "step": step, "call": "clip_by_global_norm", "framework": "numpy", "rule": "global", "threshold": 1.0,
        "norm_type": 2.0, "eps": eps, "dtype": "float32", "norm": total, "coef": min(1.0, 1.0 / (total + eps)),
        "clipped": total > 1, "nan": 0, "inf": 0, "seconds": 0.001,
        "parameters": {n: {"norm": norm, "shape": [8], "weight": weights.get(n)} for n, norm in norms.items()},
    }  # fmt: skip
    return {**fields, **changes}


def clip_of_shapes(step: int, norms: dict[str, float], shapes: dict[str, list[int]], **changes: Any) -> dict[str, Any]:
    line = clip_line(step, norms, weights=dict.fromkeys(norms, changes.pop("weight", 1.0)), count=len(norms), **changes)
    parameters = {name: {**values, "shape": shapes[name]} for name, values in line["parameters"].items()}
    return {**line, "parameters": parameters}


def per_group(steps: int = 2, factor: float = 1.0, **changes: Any) -> Lines:
    lines: Lines = []
    for n in range(1, 2 * steps, 2):
        for call, (norms, shapes) in enumerate(zip(GROUPS, SHAPES, strict=True)):
            lines.append(
                clip_of_shapes(n + call, {name: factor * norm for name, norm in norms.items()}, shapes, **changes)
            )
        lines.append({"step": n + 1, **STEP})
    return lines


def by_total_norm(steps: int = 2, factor: float = 1.0, **changes: Any) -> Lines:
    norms = {"0": 3.0 * factor, "1": 4.0 * factor, "2": 12.0 * factor}
    shapes = {"0": [4, 2], "1": [2, 4], "2": [16]}
    return [
        each for n in range(1, steps + 1) for each in (clip_of_shapes(n, norms, shapes, **changes), {"step": n, **STEP})
    ]


def without_norms(lines: Iterable[dict[str, Any]]) -> Lines:
    return [{**each, "parameters": {}} if "call" in each else each for each in lines]


@pytest.mark.parametrize("factor", [1.0, 0.7])
@pytest.mark.parametrize("norms", [True, False])
def test_a_norm_per_group_is_named_even_if_the_gradients_differ(compare_runs: Any, factor: float, norms: bool) -> None:
    old, new = per_group(), by_total_norm(factor=factor, eps=1e-6)
    if not norms:
        old, new = without_norms(old), without_norms(new)
    for a, b, rules in ((old, new, "per group and total norm"), (new, old, "total norm and per group")):
        printed = sentences.report_lines(comparison := compare_runs(a, b))
        assert cause_kinds(comparison) == ["per group for global"]
        assert printed[3] == f"The runs first differ at step 1: the rules are {rules}."
        assert ("The gradients differ, too" in printed[4]) == (factor != 1.0)
        code = "for gradients in groups: unified_clip.numpy.GradientClipByGlobalNorm(c).clip_(gradients)"
        assert (code if a is old else "`unified_clip.numpy.clip_grad_norm_(gradients, c)`") in printed[5]
        assert not any("Clipping is the same" in each for each in printed)


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_without_steps_of_one_optimizer_groups_are_not_paired_with_later_steps(
    compare_runs: Any, factor: float
) -> None:
    """TensorFlow 1 may record no optimizer steps."""
    without_steps = [each for each in by_total_norm(3, factor) if "call" in each]
    for runs in ((without_steps, per_group(3)), (per_group(3), without_steps)):
        printed = sentences.report_lines(comparison := compare_runs(*runs))
        assert cause_kinds(comparison)[0] == "per group for global"
        assert len(comparison.pairs) == 1
        assert not any("From step 2 on" in line or "from step 2 on" in line for line in printed)


def test_other_initial_weights_are_named_beside_a_norm_per_group(compare_runs: Any) -> None:
    comparison = compare_runs(per_group(), by_total_norm(factor=0.7, weight=2.0))
    assert cause_kinds(comparison) == ["per group for global", "other initial weights"]
    assert "the total norms of the weights are 1.73205081 and 3.46410162" in str(comparison.findings[1])


def test_a_loop_of_clips_is_per_tensor_even_if_the_gradients_differ(compare_runs: Any) -> None:
    norms = enumerate({"0": 3.0, "1": 4.0, "2": 12.0}.items(), start=1)
    loop = [*(clip_of_shapes(n, {"0": norm}, {"0": [8]}) for n, (_, norm) in norms), {"step": 3, **STEP}]
    (cause,) = compare_runs(without_norms(loop), without_norms(by_total_norm(1, 0.7))).findings
    assert cause.kind == "per tensor for global"
    assert "clips single gradients in 3 calls, with one norm for each call" in cause.sentence


def test_clipping_is_not_called_the_same_if_calls_or_eps_differ(compare_runs: Any) -> None:
    long = [clip_line(n) for n in range(1, 9)]
    short = [clip_line(n, {"a": 3.3, "b": 5.0, "c": 11.0}, weights={}) for n in range(1, 5)]
    for new, text in (
        (short, "a.jsonl has 8 calls and b.jsonl has 4 calls: the runs differ in the number of steps, or"),
        (
            [{**each, "eps": 1e-6} for each in short],
            "the eps of the clips is 0 in the first run and 1e-06 in the second run",
        ),
    ):
        printed = sentences.report_lines(compare_runs(long, new))
        assert any("The clips might differ" in each and text in each for each in printed)


def test_steps_that_the_script_sets_are_kept(compare_runs: Any) -> None:
    """The optimizer's line follows only the first clip of the step, but the script sets step 1 for both."""
    lines = [
        clip_line(1),
        {"step": 1, **STEP},
        clip_line(1, {"c": 1.0}, seconds=0.002),
        clip_line(2),
        {"step": 2, **STEP},
    ]
    comparison = compare_runs(lines, lines)
    assert [pair.a.step for pair in comparison.pairs] == [1, 1, 2]


# -- packed parameters

SEPARATE = {"q": ([4, 4], 1.0), "k": ([4, 4], 2.0), "v": ([4, 4], 2.0), "out": ([4, 4], 4.0), "bias": ([4], 5.0)}
PACKED = {"0": ([12, 4], 3.0), "1": ([4, 4], 4.0), "2": ([4], 5.0)}


def network_line(parameters: dict[str, tuple[list[int], float]], **changes: Any) -> Lines:
    norms = {name: norm for name, (_, norm) in parameters.items()}
    line = clip_of_shapes(1, norms, {name: shape for name, (shape, _) in parameters.items()}, **changes)
    for name, values in line["parameters"].items():
        values["weight"] = parameters[name][1]
    return [line]


def test_a_packed_parameter_is_compared_with_its_separate_parameters(compare_runs: Any) -> None:
    comparison = compare_runs(network_line(SEPARATE), network_line(PACKED))
    assert comparison.first is None
    assert comparison.pairs[0].names == {"q + k + v": "0", "out": "1", "bias": "2"}
    larger = network_line({**PACKED, "0": ([12, 4], 6.0)})
    assert compare_runs(network_line(SEPARATE), larger).first.parameter == "q + k + v"


def test_parameters_are_not_paired_by_a_shape_that_one_run_has_more_often(compare_runs: Any) -> None:
    """Without the elements of `bias`, `0` is no packed parameter of the first run."""
    more = network_line({**SEPARATE, "rest": ([3], 1.0)})
    names = compare_runs(more, network_line(PACKED)).pairs[0].names
    assert names == {"bias": "2"}


def test_fewer_gradients_with_the_same_total_norm_are_not_left_out(compare_runs: Any) -> None:
    old, new = (without_norms(network_line(parameters)) for parameters in (SEPARATE, PACKED))
    new[0]["norm"] = math.nextafter(new[0]["norm"], 0.0)
    assert "left out" not in cause_kinds(compare_runs(old, new))
    new[0]["norm"] *= 0.9
    assert "left out" in cause_kinds(compare_runs(old, new))


def test_different_numbers_of_gradients_are_noted_if_gradients_are_not_compared(compare_runs: Any) -> None:
    old, new = (without_norms(network_line(each)) for each in (SEPARATE, PACKED))
    comparison = compare_runs(old, new)
    assert comparison.first is None
    assert "the runs clip 5 and 3 gradients with the same total norm" in " ".join(sentences.notes(comparison))
    assert not any("Not compared" in each for each in sentences.notes(compare_runs(old, old)))
    assert not any(
        "Not compared" in each for each in sentences.notes(compare_runs(network_line(SEPARATE), network_line(PACKED)))
    )


# -- gradients whose true value is 0


def with_noise(noise: float, weight: float, optimizer: str) -> Lines:
    lines: Lines = []
    for step in (1, 2, 3):
        norms, weights = {"w": 3.0, "k": noise}, {"w": 2.0, "k": weight * (step > 1)}
        lines += [clip_line(step, norms, weights=weights), {**STEP, "step": step, "optimizer": optimizer}]
    return lines


@pytest.mark.parametrize(
    ("noise", "moved", "optimizer", "is_rounding"),
    [
        (1e-9, 0.5, "torch.optim.AdamW", True), (1e-9, 0.6, "torch.optim.AdamW", False),
        (1e-9, 0.5, "torch.optim.SGD", False), (1e-4, 0.5, "torch.optim.AdamW", False),
    ],
)  # fmt: skip
def test_adam_may_move_weights_by_noise_of_gradients(
    compare_runs: Any, noise: float, moved: float, optimizer: str, is_rounding: bool
) -> None:
    """Twice the learning rate of 0.1 times the root of 8 elements is 0.566."""
    runs = with_noise(noise, 0.1, optimizer), with_noise(noise, 0.1 + moved, optimizer)
    assert cause_kinds(compare_runs(*runs)) == ["rounding noise" if is_rounding else "another update"]
    comparison = compare_runs(*runs, max_ulp=64)
    assert (comparison.first is None) == is_rounding
    is_noted = any("Not compared: the gradients of 'k'" in each for each in sentences.report_lines(comparison))
    assert is_noted == (is_rounding or moved == 0.6)  # from step 3 on, noise may have moved the weight by 0.6


@pytest.mark.parametrize(
    ("moved", "momentum", "is_rounding"), [(1e-10, 0.0, True), (4e-10, 0.0, False), (4e-10, 0.9, True)]
)
def test_sgd_may_move_weights_by_noise_of_gradients(
    compare_runs: Any, moved: float, momentum: float, is_rounding: bool
) -> None:
    """The learning rate of 0.1 times two gradients of 1e-9 is 2e-10. Momentum makes it ten times as much."""
    settings = {"settings": {"lr": 0.1, "momentum": momentum}}
    old, new = (
        [{**each, **(settings if "settings" in each else {})} for each in with_noise(1e-9, weight, "torch.optim.SGD")]
        for weight in (1e-10, 1e-10 + moved)
    )
    assert cause_kinds(compare_runs(old, new)) == ["rounding noise" if is_rounding else "another update"]
    assert (compare_runs(old, new, max_ulp=64).first is None) == is_rounding


def test_norms_of_noise_are_not_compared_in_a_clip_per_tensor(compare_runs: Any) -> None:
    def runs(noise: float) -> Lines:
        return [clip_line(1, {"w": 3.0, "k": noise}, rule="each", norm=[3.0, noise], coef=[1 / 3, 1.0])]

    for noise, is_same in ((2e-9, True), (2e-5, False)):
        assert (compare_runs(runs(1e-9), runs(noise), max_ulp=64).first is None) == is_same
        (pair,) = compare_runs(runs(1e-9), runs(noise)).pairs
        assert is_noise_of(pair, "k") == is_same


def test_noise_in_a_packed_parameter_is_no_difference_of_weights(compare_runs: Any) -> None:
    """Only the gradients of `k` are noise, and only the weights of `k` differ."""

    def run_of(parameters: dict[str, tuple[list[int], float]], moved: float) -> Lines:
        lines: Lines = []
        for step in (1, 2):
            (network_clip,) = network_line(parameters)
            for name, values in network_clip["parameters"].items():
                values["weight"] = 1.0 + (moved if step > 1 and name in ("k", "0") else 0.0)
            lines += [{**network_clip, "step": step, "norm": 8.0, "coef": 0.125}, {**STEP, "step": step}]
        return lines

    separate = {**SEPARATE, "q": ([4, 4], 3.0), "k": ([4, 4], 1e-7), "v": ([4, 4], 4.0)}
    packed = {**PACKED, "0": ([12, 4], 5.0)}
    old, new = run_of(separate, 0.0), run_of(packed, 0.0)
    for line_of_packed, weight in zip(new[::2], (1.7320507764816284, 1.8320507764816284), strict=True):
        line_of_packed["parameters"]["0"]["weight"] = weight
    comparison = compare_runs(old, new, max_ulp=64)
    assert comparison.first is None
    printed = [values for values in sentences.report_lines(comparison) if values.startswith("Weights")]
    assert printed == [] or all("Rounding noise of 'q + k + v' is ignored" in values for values in printed)
    comparison = compare_runs(old, new)
    assert "Weights differ" not in " ".join(sentences.report_lines(comparison))
    new[2]["parameters"]["0"]["weight"] = 9.0
    assert "Weights differ from step 2 on" in " ".join(sentences.report_lines(compare_runs(old, new)))


def test_runs_that_differ_in_noise_only_are_the_same(compare_runs: Any) -> None:
    for noise, is_same in ((2e-9, True), (2e-5, False)):
        comparison = compare_runs(
            [clip_line(1, {"w": 3.0, "k": 1e-9})], [clip_line(1, {"w": 3.0, "k": noise})], max_ulp=64
        )
        assert (comparison.first is None) == is_same
        assert any("Not compared" in each for each in sentences.report_lines(comparison)) == is_same
    assert compare_runs(*([clip_line(1, {"w": 3.0, "k": each})] for each in (1e-9, 2e-9))).first.is_noise


def test_positions_of_two_calls_are_not_one_weight(compare_runs: Any) -> None:
    """The second call has a much larger weight at the position 0, which is not the scale of the first one."""
    old, new = (
        [clip_of_shapes(step, {"0": 1.0}, {"0": [8]}, weight=weight) for step, weight in ((1, 1e6), (2, small))]
        for small in (1.0, 1.0009765625)
    )
    steps = [{"step": 2, **STEP}]
    comparison = compare_runs([*old, *steps], [*new, *steps])
    assert comparison.first.ulps_at_its_size > 64


@pytest.mark.parametrize("norms", [True, False])
def test_a_group_that_one_run_does_not_clip_is_left_out(compare_runs: Any, norms: bool) -> None:
    old = [{**each, "step": 1} for each in per_group(1)[:2]]
    old[1] = {**old[1], "parameters": {"bias": old[1]["parameters"]["0"]}}
    if not norms:
        old = without_norms(old)
    for a, b, name in ((old, old[:1], "b"), (old[:1], old, "a")):
        (cause,) = compare_runs(a, b).findings
        assert cause.kind == "left out"
        assert cause.sentence.startswith(f"{name}.jsonl differs from ")
        names = " ('bias')" if norms else ""
        assert (
            f": {name}.jsonl does not clip 1 of 3 gradients{names}. Pass these gradients to a clip call"
            in cause.sentence
        )


def test_a_call_that_clips_the_same_gradients_again_is_not_left_out(compare_runs: Any) -> None:
    old = [{**per_group(1)[0], "step": 1}] * 2
    assert cause_kinds(compare_runs(old, old[:1])) == ["left-out clip"]


def test_clips_of_several_groups_after_the_step_are_late(compare_runs: Any) -> None:
    early = per_group(3)
    late = [line for n in range(0, 9, 3) for line in (early[n + 2], *early[n : n + 2])]
    assert [line.kind for line in compare_runs(early, late).findings] == ["clipping after the step"]
    assert compare_runs(late, late).first is None


def test_clips_of_several_groups_after_each_micro_batch_are_several_clips(compare_runs: Any) -> None:
    old = per_group(2)
    old = [{**each, "step": 1 + index // 3, **({"backward_calls": 2} if "settings" in each else {})}
           for index, each in enumerate(old)]  # fmt: skip
    often = [each for n in range(0, 6, 3) for each in (*old[n : n + 2], *old[n : n + 3])]
    (cause,) = compare_runs(old, often).findings
    assert cause.kind == "several clips before a step"
    assert (
        "before step 1 of the optimizer, b.jsonl clips the same gradients 4 times. a.jsonl clips these gradients 2 "
        "times" in str(cause)
    )


def test_weight_decay_of_all_groups_is_named_beside_weight_decay_per_group(compare_runs: Any) -> None:
    old, new = by_total_norm(3), by_total_norm(3, weight=2.0)
    new = [{**each, "settings": {"lr": 0.1, "weight_decay": 0.1}} if "settings" in each else each for each in new]
    new[0] = old[0]
    (cause,) = [each for each in compare_runs(old, new).findings if each.kind == "another optimizer"]
    assert "weight_decay 0.1 instead of 0.1 and 0 (for different parameters)" in cause.sentence


def test_a_boolean_setting_is_named_with_its_value(compare_runs: Any) -> None:
    steps = [{**STEP, "settings": {"lr": 0.1, "nesterov": nesterov}} for nesterov in (False, True)]
    old, new = ([by_total_norm(1)[0], {"step": 1, **step}] for step in steps)
    (cause,) = compare_runs(old, new).findings
    assert "has nesterov True instead of False" in cause.sentence


def test_a_learning_rate_of_0_is_part_of_a_shifted_schedule(compare_runs: Any) -> None:
    def with_rates(*rates: float) -> Lines:
        lines = by_total_norm(3, weight=1.0 + rates[0])
        return [{**each, "settings": {"lr": rates[each["step"] - 1]}} if "settings" in each else each for each in lines]

    comparison = compare_runs(with_rates(0.0, 0.1, 0.2), with_rates(0.1, 0.2, 0.3))
    first = next(each for each in comparison.divergences if each.stage == "learning rate")
    assert (first.step, first.a, first.b) == (1, 0.0, 0.1)
    assert "shifted step" in cause_kinds(comparison)


@pytest.mark.parametrize(("factor", "advice"), [(2.0, True), (0.5, False)])
def test_gradients_that_are_sums_over_passes_are_to_be_divided(compare_runs: Any, factor: float, advice: bool) -> None:
    new = [{**each, **({"backward_calls": 2} if "settings" in each else {})} for each in by_total_norm(2, factor)]
    (cause,) = compare_runs(by_total_norm(2), new).findings
    assert cause.kind == "gradient accumulation"
    text = "b.jsonl adds up the gradients of these passes: divide each loss by the number of passes"
    assert (text in cause.sentence) is advice
