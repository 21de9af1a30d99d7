"""`unified-clip compare` of runs with two networks, each with its own optimizer and clip, as a GAN has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.recordings import cause_kinds, write_and_compare

from unified_clip.recording.report import sentences

WEIGHTS = {"critic.a": 1.0, "critic.b": 2.0, "maker.a": 3.0, "maker.b": 4.0}


def clip(step: int, net: str, norms: Sequence[float] = (3.0, 4.0), **changes: Any) -> dict[str, Any]:
    weights, names = {**WEIGHTS, **changes.pop("weights", {})}, [f"{net}.a", f"{net}.b"]
    total = math.hypot(*norms)
    parameters = {
        name: {"norm": norm, "shape": [8], "weight": weights[name] + step // 3}
        for name, norm in zip(names, norms, strict=True)
    }
    return {
        "step": step, "call": "clip", "framework": "torch", "rule": "global", "threshold": 1.0, "norm_type": 2.0,
        "eps": 0.0, "dtype": "float32", "count": 2, "norm": total,
        "coef": min(1.0, 1 / (total or 1.0)), "clipped": True, "nan": 0, "inf": 0, "seconds": 0.001,
        "parameters": parameters, **changes,
    }  # fmt: skip


def optimizer(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step, "optimizer": "torch.optim.Adam", "settings": {"lr": 0.1}, "backward_calls": 2,
        "cleared": False if step > 1 else None, **changes,
    }  # fmt: skip


def gan(steps: int = 4, **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return steps of the critic and of the maker in turn. `changes`: changes of clips and steps, by names such as c3
    and o3."""
    lines = []
    for step in range(1, steps + 1):
        lines.append(clip(step, "maker" if step % 2 == 0 else "critic", **changes.get(f"c{step}", {})))
        lines.append(optimizer(step, **changes.get(f"o{step}", {})))
    return lines


def clip_each_micro_batch(lines: list[dict[str, Any]], *, named: bool = True) -> list[dict[str, Any]]:
    """Clip after each of the two micro-batches. The gradients of the first one are half as large."""
    result, step = [], 0
    for line in lines:
        for factor in (0.5, 1.0) if "call" in line else (1.0,):
            step += "call" in line
            parameters = {
                name if named else str(index): {**values, "norm": values["norm"] * factor}
                for index, (name, values) in enumerate(line.get("parameters", {}).items())
            }
            total = {"norm": line["norm"] * factor, "coef": line["coef"] / factor} if "call" in line else {}
            result.append({**line, **total, "step": step, **({"parameters": parameters} if parameters else {})})
    return result


def test_a_clip_for_one_of_two_optimizers_is_left_out(tmp_path: Path) -> None:
    """The first run has one optimizer for both networks, so its steps are iterations."""
    whole, parts = [], []
    for step in range(1, 9):
        moved, rate = {name: weight + step for name, weight in WEIGHTS.items()}, {"settings": {"lr": 0.1 / step}}
        critic = clip(step, "critic", weights=moved)
        maker = {
            name: {**each, "shape": [9]}
            for name, each in clip(step, "maker", (6.0, 8.0), weights=moved)["parameters"].items()
        }
        norm = math.hypot(5.0, 10.0)
        whole += [
            {**critic, "parameters": {**critic["parameters"], **maker}, "count": 4, "norm": norm, "coef": 1 / norm}
        ]
        whole += [optimizer(step, backward_calls=1, **rate)]
        parts += [{**critic, "step": 2 * step - 1}, optimizer(2 * step - 1, backward_calls=1, **rate)]
        parts += [optimizer(2 * step, backward_calls=0, **rate)]
    assert {*cause_kinds(write_and_compare(tmp_path, whole, parts))} == {"left out"}


# -- several clips before a step


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_a_clip_of_each_micro_batch_is_named(tmp_path: Path, is_old: bool, named: bool) -> None:
    often = clip_each_micro_batch(gan(), named=named)
    comparison = write_and_compare(tmp_path, *((often, gan()) if is_old else (gan(), often)))
    assert cause_kinds(comparison)[0] == "several clips before a step"
    often_name, once_name = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    assert (
        f"before step 1 of the optimizer, {often_name} clips the same gradients 2 times. {once_name} clips these "
        "gradients 1 time." in str(comparison.findings[0])
    )
    assert "directly before optimizer.step(), outside the loop over micro-batches" in str(comparison.findings[0])
    text = " ".join(sentences.report_lines(comparison))
    assert "Other data or loss" not in text


def test_several_clips_after_one_backward_pass_may_be_on_purpose(tmp_path: Path) -> None:
    old, often = (
        [{**line, "backward_calls": 1} if "settings" in line else line for line in lines]
        for lines in (gan(), clip_each_micro_batch(gan(), named=True))
    )
    comparison = write_and_compare(tmp_path, old, often)
    assert cause_kinds(comparison)[0] == "several clips before a step"
    assert "micro-batch" not in str(comparison.findings[0])
    assert "If this is on purpose, make the same clip calls in a.jsonl, in the same order." in str(
        comparison.findings[0]
    )


def test_two_clips_of_different_gradients_are_not_several_clips(tmp_path: Path) -> None:
    old = [clip(1, "critic"), clip(2, "maker"), optimizer(2), clip(3, "critic"), optimizer(3)]
    new = [clip(1, "critic"), optimizer(1), clip(2, "critic"), optimizer(2)]
    assert "several clips before a step" not in cause_kinds(write_and_compare(tmp_path, old, new))


def test_positions_show_several_clips_only_with_as_many_backward_passes(tmp_path: Path) -> None:
    often = clip_each_micro_batch(
        [{**line, "backward_calls": 3} if "settings" in line else line for line in gan()], named=False
    )
    old = [{**line, "backward_calls": 3} if "settings" in line else line for line in gan()]
    assert "several clips before a step" not in cause_kinds(write_and_compare(tmp_path, old, often))


def test_gradients_that_are_clipped_twice_are_not_several_clips(tmp_path: Path) -> None:
    again = [clip(1, "critic"), clip(2, "critic", (0.6, 0.8)), optimizer(2), clip(3, "critic"), optimizer(3)]
    once = [clip(1, "critic"), optimizer(1), clip(2, "critic"), optimizer(2)]
    assert cause_kinds(write_and_compare(tmp_path, once, again)) == ["clipped twice"]


# -- one network's clip after its optimizer's step


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("first", [1, 2])
def test_a_late_clip_of_one_network_is_no_left_out_clip(tmp_path: Path, first: int, is_old: bool) -> None:
    """The late clip of one network changes its later gradients."""

    def lines(factor: float) -> list[dict[str, Any]]:
        return gan(6, **{f"c{n}": {"norms": (n * 3.0 * factor ** (n > first), 4.0)} for n in range(1, 7)})

    late = lines(1.25)
    for index in range(2 * first - 2, 12, 4):
        late[index : index + 2] = late[index + 1], late[index]
    runs = lines(1.0), late
    (cause,) = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs)).findings
    assert cause.kind == "clipping after the step"
    names = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    assert f"{names[0]} clips gradients after step {first} of the optimizer, and {names[1]} clips" in cause.sentence


def test_a_later_clip_of_other_gradients_is_no_late_clip(tmp_path: Path) -> None:
    unclipped = [line for line in gan(c3={"norms": (6.0, 4.0)}) if "optimizer" in line or line["step"] != 2]
    kinds = cause_kinds(write_and_compare(tmp_path, gan(), unclipped))
    assert "left-out clip" in kinds
    assert "clipping after the step" not in kinds


# -- an optimizer that does not change the clipped weights

STILL = {"weights": {"maker.a": 2.0, "maker.b": 3.0}}
"""At step 4, the weights of the maker are as at step 2."""


@pytest.mark.parametrize("is_old", [True, False])
def test_a_step_that_does_not_change_the_clipped_weights_is_named(tmp_path: Path, is_old: bool) -> None:
    cleared = {f"o{step}": {"cleared": step != 4} for step in (3, 4)}  # by the optimizer that steps
    runs = gan(6), gan(6, c4=STILL, **cleared)
    comparison = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs))
    assert cause_kinds(comparison) == ["weights are not updated"]
    assert (
        f"{'a' if is_old else 'b'}.jsonl clips the gradients of 2 weights before step 2, but"
        in comparison.findings[0].sentence
    )
    assert comparison.first is not None
    assert comparison.first.step == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"c4": STILL, "c2": {"norms": (0.0, 0.0)}},
        {"c4": STILL, "c2": {"norms": (math.nan, 4.0)}},
        {"c4": STILL, "o2": {"settings": {"lr": 0.0}}},
        {"c4": STILL, "c2": {"threshold": 0.0, "coef": 0.0}},
    ],
)
def test_weights_that_need_not_change_have_other_causes(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert "weights are not updated" not in cause_kinds(write_and_compare(tmp_path, gan(), gan(**changes)))


@pytest.mark.parametrize("weights", [{"maker.a": 2.0}, {"maker.a": 2.000003, "maker.b": 3.000003}])
def test_one_weight_and_rounding_do_not_show_that_an_optimizer_changes_the_weights(
    tmp_path: Path, weights: dict[str, float]
) -> None:
    comparison = write_and_compare(tmp_path, gan(c4=STILL), gan(c4={"weights": weights}))
    assert "weights are not updated" not in cause_kinds(comparison)


def test_weights_that_change_in_neither_run_agree(tmp_path: Path) -> None:
    assert write_and_compare(tmp_path, gan(c4=STILL), gan(c4=STILL)).exit_code == 0


@pytest.mark.parametrize("is_old", [True, False])
def test_the_clip_of_a_twin_network_that_is_clipped_already_is_no_wrong_step(tmp_path: Path, is_old: bool) -> None:
    """Both networks have equal shapes. The second clip gets the clipped gradients of the first network."""
    pasted = {"parameters": clip(3, "critic", (0.6, 0.8))["parameters"], "norm": 1.0, "coef": 1.0}
    runs = gan(), gan(c2=pasted)
    for line in (*runs[0], *runs[1]):
        if "parameters" in line:
            line["parameters"] = {str(n): each for n, each in enumerate(line["parameters"].values())}
    comparison = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs))
    assert "weights are not updated" not in cause_kinds(comparison)
    assert cause_kinds(comparison)[0] == "clipped twice"
    assert "clips other parameters instead: pass these" in comparison.findings[0].sentence


@pytest.mark.parametrize("is_twin", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_a_clip_that_also_gets_the_gradients_of_a_twin_network_is_named(
    tmp_path: Path, is_old: bool, is_twin: bool
) -> None:
    """The weights show whether the further gradients belong to the other network, or are the same gradients again."""
    own = clip(1, "critic")["parameters"]
    more = clip(2, "maker")["parameters"] if is_twin else {f"{name}#2": each for name, each in own.items()}
    both = {"parameters": {**own, **more}, "count": 4, "norm": math.hypot(3, 4, 3, 4), "coef": 1 / math.hypot(5, 5)}
    runs = gan(), gan(c1=both)
    comparison = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs))
    assert (cause_kinds(comparison)[0] == "parameters of another network") == is_twin
    text = f"which {'b' if is_old else 'a'}.jsonl clips at step 2"
    assert (text in comparison.findings[0].sentence) == is_twin
    if is_twin:
        assert not any(
            line.startswith("The runs clip different parameters") for line in sentences.report_lines(comparison)
        )


# -- networks that are trained in another order


@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize("is_old", [True, False])
def test_settings_of_different_networks_are_not_compared(tmp_path: Path, is_old: bool, has_norms: bool) -> None:
    """One run trains the critic twice before the maker, which has another threshold and another learning rate."""

    def lines(networks: str) -> list[dict[str, Any]]:
        result = []
        for step, network in enumerate(networks, start=1):
            line = clip(step, "maker" if network == "m" else "critic", threshold=0.5 if network == "m" else 1.0)
            shape = [4] if network == "m" else [8]
            parameters = {name: {**each, "shape": shape, "weight": 1.0} for name, each in line["parameters"].items()}
            line |= {"parameters": parameters} if has_norms else {"parameters": {}, "count": 2 if network == "m" else 5}
            result += [line, optimizer(step, settings={"lr": 0.1 + (network == "m")})]
        return result

    runs = lines("cmcmcm"), lines("ccmccm")
    comparison = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs))
    assert cause_kinds(comparison) == ["another order of networks"]
    assert comparison.first is not None
    assert comparison.first.step == 2
    sizes = ["8 elements", "16 elements"] if has_norms else ["2 gradients", "5 gradients"]
    text = "at step 2, a.jsonl clips {}, and b.jsonl clips {}. Each run".format(*sizes[:: -1 if is_old else 1])
    assert text in comparison.findings[0].sentence


# -- gradients that differ although the weights of their call agree

MOVED = {"norms": (3.1, 4.4)}


def test_other_gradients_are_named_if_unrecorded_facts_may_explain_them(tmp_path: Path) -> None:
    equal_loss = {"o3": {"losses": [1.0]}}
    comparison = write_and_compare(tmp_path, gan(**equal_loss), gan(c3=MOVED, **equal_loss))
    assert cause_kinds(comparison) == ["other gradients"]
    assert "whether each optimizer clears its gradients" in str(comparison.findings[0])


def test_an_optimizer_that_clears_its_gradients_has_other_data_or_loss(tmp_path: Path) -> None:
    cleared = {f"o{step}": {"cleared": True} for step in (2, 3, 4)}
    comparison = write_and_compare(tmp_path, gan(**cleared), gan(c3=MOVED, **cleared))
    assert cause_kinds(comparison) == ["other data or loss"]


@pytest.mark.parametrize("is_old", [True, False])
def test_gradients_that_are_all_0_are_named(tmp_path: Path, is_old: bool) -> None:
    runs = gan(), gan(c1={"norms": (0.0, 0.0)})
    comparison = write_and_compare(tmp_path, *(runs[::-1] if is_old else runs))
    assert cause_kinds(comparison) == ["other gradients"]
    sentence = comparison.findings[0].sentence
    assert f"all gradients of {'a' if is_old else 'b'}.jsonl are 0 before the clip" in sentence
    assert "zero_grad() runs between backward() and the clip" in sentence


def test_different_weights_of_another_network_are_the_cause(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, gan(), gan(c3=MOVED, c4={"weights": {"maker.a": 3.5}}))
    cause = comparison.findings[0]
    assert cause.kind == "another optimizer"
    assert "'maker.a' differ at step 4, and have not changed since step 3" in cause.sentence
    assert "At step 2, the runs have equal gradients of these weights and equal coefficients" in cause.sentence


def test_rounding_of_another_network_is_no_cause_of_a_large_difference(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, gan(), gan(c3=MOVED, c4={"weights": {"maker.a": 3.00002}}))
    assert "another optimizer" not in cause_kinds(comparison)


def test_different_initial_weights_of_another_network_are_the_cause(tmp_path: Path) -> None:
    comparison = write_and_compare(tmp_path, gan(), gan(c1=MOVED, c2={"weights": {"maker.a": 3.5}}))
    assert comparison.findings[0].kind == "other initial weights"
    assert "'maker.a'" in comparison.findings[0].sentence


@pytest.mark.parametrize("steps", [3, 4])
def test_unknown_weights_of_other_calls_are_named(tmp_path: Path, steps: int) -> None:
    unknown = {"weights": {"maker.a": 3.0}, "parameters": {}}
    comparison = write_and_compare(tmp_path, gan(steps, c4=unknown), gan(steps, c3=MOVED, c4=unknown))
    (cause,) = (each for each in comparison.findings if each.kind == "other gradients")
    assert "The weights of 'maker.a' and 'maker.b' were not compared. Compare" in cause.sentence
    assert "names=" not in cause.sentence


def test_names_for_the_recording_are_advised_if_parameters_have_positions(tmp_path: Path) -> None:
    runs = gan(), gan(c3=MOVED)
    for line in (*runs[0], *runs[1]):
        if "parameters" in line:
            shape = [4] if "maker.a" in line["parameters"] else [8]
            parameters = enumerate(line["parameters"].values())
            line["parameters"] = {str(index): {**each, "shape": shape} for index, each in parameters}
    comparison = write_and_compare(tmp_path, *runs)
    assert cause_kinds(comparison) == ["other gradients"]
    assert "names={name: parameter, ...}" in comparison.findings[0].sentence


def test_one_network_that_clears_its_gradients_has_other_data_or_loss(tmp_path: Path) -> None:
    def lines(norms: Sequence[float]) -> list[dict[str, Any]]:
        return [clip(1, "critic"), optimizer(1), clip(2, "critic", norms), optimizer(2, cleared=True)]

    comparison = write_and_compare(tmp_path, lines((3.0, 4.0)), lines((3.1, 4.4)))
    assert cause_kinds(comparison) == ["other data or loss"]


@pytest.mark.parametrize(
    ("old", "names", "is_known"),
    [
        ("tensorflow", ("critic", "critic"), True),
        ("torch", ("critic", "critic"), False),  # Keras on PyTorch: its steps have no backward passes
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_gradients_that_only_one_framework_has_to_clear_are_named(
    tmp_path: Path, old: str, names: Sequence[str], is_known: bool, is_first: bool
) -> None:
    def lines(framework: str, norms: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
        clips = [clip(step, name, framework=framework) for step, name in enumerate(names, start=1)]
        clips[1] = clip(2, names[1], norms, framework=framework)
        return [line for step in (1, 2) for line in (clips[step - 1], optimizer(step, **changes))]

    left = lines(old, (3.0, 4.0), backward_calls=None, cleared=None)
    right = lines("torch", (3.1, 4.4), settings={"lr": 0.1 if is_first else 0.2})
    kinds = cause_kinds(write_and_compare(tmp_path, left, right))
    assert ("gradients are not cleared" in kinds) == is_known
    assert ("another learning rate" in kinds) == (not is_first)
    assert ("gradients are not cleared" in cause_kinds(write_and_compare(tmp_path, right, left))) == is_known


# -- gradients that one run leaves out


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"framework": "paddle", "watched": True}, True), ({}, True), ({"watched": True}, False)],
)
def test_a_gradient_that_is_left_out_may_have_need_clip(tmp_path: Path, changes: dict[str, Any], named: bool) -> None:
    whole = clip(1, "critic")
    fewer = {**clip(1, "critic"), "parameters": {"critic.a": whole["parameters"]["critic.a"]}, "norm": 3.0, **changes}
    (cause,) = write_and_compare(tmp_path, [{**fewer, "coef": 1 / 3, "count": 1}], [whole]).findings
    assert cause.kind == "left out"
    assert ("sets need_clip=False for these parameters, do the same in b.jsonl" in cause.sentence) == named
    assert ("copy.deepcopy" in cause.sentence) == named
    attribute = {"torch": "requires_grad=False", "paddle": "stop_gradient=True"}.get(fewer["framework"])
    assert "Leave these parameters out of the clip of b.jsonl, too" in cause.sentence
    assert ("freezes these parameters" in cause.sentence) == bool(attribute)
    assert (
        attribute is None
        or f"If a.jsonl freezes these parameters ({attribute}), freeze them in b.jsonl, too" in cause.sentence
    )
    (cause,) = write_and_compare(tmp_path, [whole], [{**fewer, "coef": 1 / 3, "count": 1}]).findings
    advice = " or ".join([f"freeze them ({attribute})"] * bool(attribute) + ["set need_clip=False for them"] * named)
    assert cause.sentence.endswith(f". Pass these parameters to the clip of b.jsonl, too. Do not {advice}")


@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("step", [3, 4])
def test_a_clip_that_also_gets_the_parameters_of_another_network_is_named(
    tmp_path: Path, step: int, is_old: bool
) -> None:
    more, network = gan(), gan()
    for index, line in enumerate(more):
        if line["step"] % 2 == 0 and "call" in line:  # the networks have different shapes
            for each in (line, network[index]):
                each["parameters"] = {name: {**p, "shape": [3]} for name, p in each["parameters"].items()}
    line = more[2 * step - 2]
    shape = [8 if step == 4 else 3]
    line["parameters"] |= {position: {"norm": 1.0, "shape": shape} for position in ("9", "10")}
    line |= {"count": 4, "norm": math.sqrt(27.0), "coef": 1 / math.sqrt(27.0)}
    comparison = write_and_compare(tmp_path, *((more, network) if is_old else (network, more)))
    (cause,) = comparison.findings
    assert cause.kind == "parameters of another network"
    names = ("a.jsonl", "b.jsonl") if is_old else ("b.jsonl", "a.jsonl")
    assert (
        f"at step {step}, the clip call of {names[0]} gets 4 gradients, and the clip call of {names[1]} gets 2 "
        "gradients"
    ) in cause.sentence
    assert f"which {names[1]} clips at step {2 if step == 3 else 1}. One of the runs passes" in cause.sentence


def test_weights_of_another_call_of_the_same_step_are_named_without_a_claim_about_steps(tmp_path: Path) -> None:
    first = [clip(1, "critic"), clip(1, "maker")]
    old = [*first, clip(2, "critic"), clip(2, "maker")]
    new = [*first, clip(2, "critic", (3.0, 5.0)), clip(2, "maker", weights={"maker.a": 9.0})]
    (cause,) = write_and_compare(tmp_path, old, new).findings
    assert cause.kind == "another optimizer"
    expected = "'maker.a' differ. Another call of this step clips their gradients. At step 1, the runs have equal"
    assert expected in cause.sentence
    assert "have not changed since" not in cause.sentence


def test_backward_passes_of_two_networks_may_all_come_before_both_steps(tmp_path: Path) -> None:
    passes = ({"backward_calls": 2, "cleared": True}, {"backward_calls": 0, "cleared": None})
    joint = gan(c3=MOVED, **{f"o{step}": passes[step % 2 == 0] for step in range(1, 5)})
    comparison = write_and_compare(tmp_path, gan(**{f"o{step}": {"backward_calls": 1} for step in range(1, 5)}), joint)
    assert not {"gradient accumulation", "gradients are not cleared"} & {*cause_kinds(comparison)}


def test_more_backward_passes_before_both_steps_are_still_named(tmp_path: Path) -> None:
    old, new = (
        gan(c1=norms, **{f"o{step}": {"backward_calls": count * (step % 2)} for step in range(1, 5)})
        for count, norms in ((2, {}), (4, MOVED))
    )
    assert "gradient accumulation" in cause_kinds(write_and_compare(tmp_path, old, new))
