"""An adaptive threshold has the same bits on every framework: those of the recursion in plain floats, or of AGC's
definition."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import adaptive, reference
from support.kits import Kit, rejects_adaptive
from support.tiers import quick

from unified_clip import ClipConfig, record
from unified_clip import adaptive as functions

CHANGE_TIER = [adaptive.SETTINGS[index] for index in (2, 6, 8, 10)]
FITTING = [
    pytest.param(settings, id=adaptive.title(settings), marks=() if settings in CHANGE_TIER else pytest.mark.nightly)
    for settings in adaptive.SETTINGS
]


@pytest.fixture(autouse=True)
def _adaptive(kit: Kit) -> None:
    if rejects_adaptive(kit):
        with pytest.raises(TypeError, match="adaptive thresholds"):
            clipper({"rule": "zclip"})([gradient(kit, 1.0)])
        pytest.skip("MLX rejects adaptive thresholds here")


def clipper(settings: dict[str, Any], **others: Any) -> Any:
    return ClipConfig(rule="global_norm", adaptive=settings, **others).clipper()


def skip_growing_states(kit: Kit, settings: dict[str, Any]) -> None:
    if not kit.exact and settings in adaptive.GROWING:
        pytest.skip("the state grows, so it works on the host path only")


def gradient(kit: Kit, norm: float) -> Any:
    """A gradient of three elements of which one is not 0: any path computes exactly this norm."""
    return kit.tensor([0.0, -norm, 0.0])


@pytest.mark.parametrize("settings", FITTING)
def test_thresholds_results_and_states_have_the_bits_of_the_recursion_also_after_a_resume(
    kit: Kit, settings: dict[str, Any]
) -> None:
    skip_growing_states(kit, settings)
    clip = clipper(settings)
    wanted_steps = adaptive.steps(settings)
    for step, (norm, (threshold, _)) in enumerate(zip(adaptive.NORMS, wanted_steps, strict=True)):
        if step == 110:
            saved = json.loads(json.dumps(clip.state_dict()))
            clip = clipper(settings)
            clip.load_state_dict(saved)
            assert clip.step == 110
        (result,) = clip([gradient(kit, norm)])
        assert clip.last.parts[""].threshold == threshold
        expected = np.array([0.0, -norm, 0.0], np.float32)
        if threshold < math.inf:
            with np.errstate(invalid="ignore"):
                expected = reference.scaled(expected, reference.coefficient(norm, threshold, 1e-6))
        np.testing.assert_array_equal(kit.array(result), expected)
    assert clip.state_dict() == {
        "version": 1, "step": 200, "adaptive": {"": {"rule": settings["rule"], "state": wanted_steps[-1][1]}}
    }  # fmt: skip


FEW = adaptive.NORMS[:65]


def test_a_fixed_threshold_or_schedule_is_the_largest_threshold(kit: Kit) -> None:
    schedule = {"schedule": "piecewise", "values": [1.0, 1.5], "boundaries": [40]}
    clips = {1.0: clipper({"rule": "zclip"}, threshold=1.0), 1.5: clipper({"rule": "zclip"}, threshold=schedule)}
    for step, (norm, (threshold, _)) in enumerate(zip(FEW, adaptive.steps({"rule": "zclip"}, FEW), strict=True)):
        for limit, clip in clips.items():
            clip([gradient(kit, norm)])
            assert clip.last.parts[""].threshold == min(threshold, limit if step >= 40 else 1.0)


@pytest.mark.parametrize("nonfinite", ["zero", "skip", "raise"])
def test_norms_that_are_not_finite_never_enter_the_state(kit: Kit, nonfinite: str) -> None:
    clip = clipper({"rule": "zclip"}, nonfinite=nonfinite)
    for norm, (_, state) in zip(FEW, adaptive.steps({"rule": "zclip"}, FEW), strict=True):
        try:
            (result,) = clip([gradient(kit, norm)])
        except RuntimeError:
            assert (nonfinite, math.isfinite(norm)) == ("raise", False)
        else:
            if not math.isfinite(norm):
                assert result is None if nonfinite == "skip" else not kit.array(result).any()
        assert clip.state_dict()["adaptive"][""]["state"] == state


def test_each_group_has_a_state_of_its_own(kit: Kit) -> None:
    head = {"name": "head", "include": ["head.*"], "adaptive": {"rule": "ema_ratio"}}
    fixed = {"name": "fixed", "include": ["fixed.*"], "threshold": 1.0}
    clip = clipper({"rule": "zclip"}, groups=[head, fixed])
    twice = [2 * norm for norm in FEW]
    bodies, heads = adaptive.steps({"rule": "zclip"}, FEW), adaptive.steps({"rule": "ema_ratio"}, twice)
    for norm, (body, _), (head_threshold, _) in zip(FEW, bodies, heads, strict=True):
        grads = {"body.w": gradient(kit, norm), "fixed.w": gradient(kit, 3.0), "head.w": gradient(kit, 2 * norm)}
        clip(grads)
        thresholds = {title: part.threshold for title, part in clip.last.parts.items()}
        assert thresholds == {"": body, "head": head_threshold, "fixed": 1.0}
    assert {title: each["state"] for title, each in clip.state_dict()["adaptive"].items()} == {
        "": bodies[-1][1], "head": heads[-1][1]
    }  # fmt: skip


def test_a_step_without_gradients_leaves_the_state_unchanged(kit: Kit) -> None:
    clip = clipper({"rule": "percentile", "window": 5})
    clip([gradient(kit, 2.0)])
    before = clip.state_dict()["adaptive"]
    clip([None])
    assert clip.state_dict()["adaptive"] == before
    assert clip.step == 2


def test_in_place_names_and_pairs_advance_the_state_too(kit: Kit) -> None:
    clip, settings = ClipConfig(rule="global_norm", adaptive={"rule": "zclip"}), {"rule": "zclip"}
    for step, (norm, (threshold, _)) in enumerate(zip(FEW, adaptive.steps(settings, FEW), strict=True)):
        if step % 2:
            clip.clip_(kit.in_place([gradient(kit, norm)]))
        else:
            clip.pairs([(kit.parameter(), gradient(kit, norm))])
        assert clip.last.parts[""].threshold == threshold


def test_functions_reject_other_rules(kit: Kit) -> None:
    grads, zclip = [gradient(kit, 3.0)], functions.ZClip()
    state: Any = functions.initial_state(zclip, grads)
    for rule in ("zclip", {"rule": "zclip"}, functions.ZClip, functions.AGC(), None):
        for call in (
            lambda rule=rule: functions.initial_state(rule, grads),
            lambda rule=rule: functions.read_state(rule, state),
            lambda rule=rule: functions.clip_by_global_norm(grads, rule, state),
            lambda rule=rule: functions.clip_grad_norm_(kit.in_place(grads), rule, state),
        ):
            with pytest.raises(TypeError, match=r"the adaptive rule is .*\. Pass a rule for the total norm"):
                call()
    with pytest.raises(TypeError, match=r"the adaptive rule is ZClip\(.*\. Pass AGC\(\)\."):
        functions.clip_by_unit_norm(grads, grads, zclip)  # type: ignore[arg-type]


def test_functions_reject_states_of_other_rules(kit: Kit) -> None:
    grads, ema = [gradient(kit, 3.0)], functions.EmaRatio()
    before = kit.array(grads[0]).copy()
    state = functions.initial_state(functions.ZClip(), grads)
    remedy = r"Pass the state that initial_state\(\) or the last call returned for this rule\."
    for wrong, kind, message in [
        (state, ValueError, r"the state has 3 numbers, but EmaRatio\(.*\) needs 2\. "),
        (kit.tensor([1.0, 2.0]), TypeError, r"the state has 1 axes and the dtype float32\. "),
        (kit.tensor([[1.0, 2.0]] * 2, "float64"), TypeError, r"the state has 2 axes and the dtype float(64|32)\. "),
        (None, TypeError, r"the state is None\. "),
        ([1.0, 2.0], TypeError, r"the state is a list\. "),
        ({"steps": 1.0, "mean": 2.0}, TypeError, r"the state is a dict\. "),
    ]:
        for call in (
            lambda wrong=wrong: functions.clip_by_global_norm(grads, ema, wrong),
            lambda wrong=wrong: functions.clip_grad_norm_(kit.in_place(grads), ema, wrong),
            lambda wrong=wrong: functions.read_state(ema, wrong),
        ):
            with pytest.raises(kind, match=message + remedy):
                call()
    np.testing.assert_array_equal(kit.array(grads[0]), before)


def test_functions_without_gradients_leave_the_state_unchanged(kit: Kit) -> None:
    rule = functions.EmaRatio()
    _, _, state = functions.clip_by_global_norm(
        [gradient(kit, 2.0)], rule, functions.initial_state(rule, kit.tensor([1.0]))
    )
    results, norm, state = functions.clip_by_global_norm([None], rule, state)
    assert (results, float(norm)) == ([None], 0.0)
    norm, state = functions.clip_grad_norm_(kit.in_place([None]), rule, state)
    assert (float(norm), functions.read_state(rule, state)) == (0.0, {"steps": 1.0, "mean": 2.0})


# -- AGC, whose thresholds are those of units


def tensors(kit: Kit, arrays: Any) -> list[Any]:
    return [None if array is None else kit.tensor(array) for array in arrays]


def check(kit: Kit, results: Any, expected: Any) -> None:
    for result, array in zip(results, expected, strict=True):
        assert (result is None) == (array is None)
        if array is not None:
            np.testing.assert_array_equal(kit.array(result), array)


SHAPES = [(), (5,), (1, 6), (4, 3), (2, 3, 4), (2, 3, 2, 4)]


def arrays(seed: int, scale: float) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    result = [(scale * chance.standard_normal(shape) * chance.choice([0.02, 1, 8], shape[:1])[:, None].T.ravel()[0]
              if shape else np.asarray(scale)) for shape in SHAPES]  # fmt: skip
    arrays = [np.asarray(array, np.float32) for array in result]
    arrays[3][1] = 0
    arrays[5][1] *= 1e-4
    return arrays


UNIT_SETTINGS = [
    {"clip_factor": 0.1},
    {"convention": "optax", "clip_factor": 0.05},
    {"convention": "composer", "clip_factor": 0.1},
    {"clip_factor": 1e-4, "eps": 1e-4, "smallest_norm": 0.5},
]


@pytest.mark.parametrize("settings", quick(UNIT_SETTINGS, UNIT_SETTINGS[1], UNIT_SETTINGS[3]))
def test_agc_has_the_bits_of_its_definition(kit: Kit, settings: dict[str, Any]) -> None:
    clip = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc", **settings}).clipper()
    gradients, parameters = arrays(0, 1.0), arrays(1, 1.0)
    gradients[5][0, 0, 0, 0], gradients[4][1, 1, 1] = np.nan, np.inf
    parameters[3][0] = 0
    expected = [adaptive.agc(*pair, **settings) for pair in zip(gradients, parameters, strict=True)]
    results = clip(tensors(kit, gradients), parameters=tensors(kit, parameters))
    check(kit, results, expected)
    assert math.isnan(clip.last.parts[""].coef)
    finite = [index for index in range(len(SHAPES)) if index < 4]
    clip([kit.tensor(gradients[index]) for index in finite], parameters=[kit.tensor(parameters[i]) for i in finite])
    assert 0 <= clip.last.parts[""].coef < 1


def test_agc_takes_parameters_by_name_and_has_a_largest_threshold(kit: Kit) -> None:
    clip = ClipConfig(rule="norm", eps=0.0, threshold=1e-4, adaptive={"rule": "agc"}, exclude=["head"]).clipper()
    gradients, parameters = arrays(2, 1.0)[2:4], arrays(3, 1.0)[2:4]
    named = dict(zip(("body", "head"), tensors(kit, gradients), strict=True))
    results = clip(named, parameters=dict(zip(("head", "body"), reversed(tensors(kit, parameters)), strict=True)))
    check(kit, [results["body"]], [adaptive.agc(gradients[0], parameters[0], limit=1e-4)])
    assert results["head"] is named["head"]
    results = clip(named, parameters=list(zip("ab", tensors(kit, parameters), strict=True)))  # a list, by position
    check(kit, [results["body"]], [adaptive.agc(gradients[0], parameters[0], limit=1e-4)])


def parameter_of(kit: Kit, array: np.ndarray) -> Any:
    if kit.name == "torch":
        import torch

        return torch.nn.Parameter(kit.tensor(array))
    import paddle

    assign = paddle.nn.initializer.Assign(array)
    return paddle.create_parameter(array.shape, "float32", default_initializer=assign)


def test_agc_in_place_takes_the_parameters_that_it_gets(kit: Kit) -> None:
    clip, gradients, parameters = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc"}), arrays(4, 1), arrays(5, 1)
    if not kit.on_parameters:
        with pytest.raises(TypeError, match="agc needs the parameters, but the gradient at position 0 has none"):
            clip.clip_(kit.in_place(tensors(kit, gradients)))
        return
    expected = [adaptive.agc(*pair) for pair in zip(gradients, parameters, strict=True)]
    holders = [parameter_of(kit, array) for array in parameters]
    for holder, array in zip(holders, gradients, strict=True):
        holder.grad = kit.tensor(array)
    clip.clip_(holders)
    check(kit, kit.kept(holders), expected)


def test_agc_of_pairs_takes_their_parameters(kit: Kit) -> None:
    clip, gradient = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc"}), np.array([3.0, -4.0], np.float32)
    parameter = kit.parameter()
    ((_, result),) = clip.pairs([(parameter, kit.tensor(gradient))])
    check(kit, [result], [adaptive.agc(gradient, kit.array(parameter))])


def test_agc_rejects_what_does_not_fit(kit: Kit) -> None:
    clip = ClipConfig(rule="norm", adaptive={"rule": "agc"})
    gradient = kit.tensor([[1.0, 2.0]])
    for parameters, message in [
        (None, "agc needs the parameters, but the gradient at position 0 has none"),
        ([gradient, gradient], "`parameters` has 2 entries, but there are 1 gradients"),
        ([kit.tensor([1.0, 2.0])], "has the shape .1, 2., but its parameter has .2,."),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            clip([gradient], parameters=parameters)
    with pytest.raises(ValueError, match="`parameters` has no key 'a'"):
        clip({"a": gradient}, parameters={"b": gradient})
    if kit.has_sparse:
        with pytest.raises(TypeError, match=r"is sparse\. The adaptive rule agc does not support sparse gradients"):
            clip([kit.sparse([0], [[1.0, 2.0]], 3)], parameters=[kit.tensor(np.zeros((3, 2)))])


def test_a_recording_has_the_norms_and_coefficients_of_units(kit: Kit, tmp_path: Path) -> None:
    gradients, parameters = arrays(0, 1.0)[1:4:2], arrays(1, 1.0)[1:4:2]
    with record(tmp_path / "run.jsonl"):
        functions.clip_by_unit_norm(tensors(kit, gradients), tensors(kit, parameters))
    _, *lines = map(json.loads, (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines())
    result = [(line["call"], line["rule"], len(line["norm"]), line["threshold"] is None) for line in lines]
    assert sorted(result) == [("clip_by_unit_norm", "each", 1, False), ("clip_by_unit_norm", "slices", 4, True)]
    (units,) = [line for line in lines if line["rule"] == "slices"]
    assert units["norm"] == [reference.norm([row]) for row in gradients[1]]
    limits = [0.01 * max(reference.norm([row]), 1e-3) for row in parameters[1]]
    assert units["coef"] == [reference.coefficient(*pair) for pair in zip(units["norm"], limits, strict=True)]
