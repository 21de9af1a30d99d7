"""A clip configuration does the same on every framework."""

from __future__ import annotations

import copy
import itertools
import json
import math
import pickle
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.kits import Kit
from support.tiers import where

import unified_clip
from unified_clip import ClipConfig, ClipWarning, NonFiniteNormError, monitor

NUMBERS = {
    "encoder.weight": [3.0, -4.0],
    "encoder.bias": [7.0],
    "decoder.weight": [[30.0, 40.0], [0.0, -1.0]],
    "decoder.bias": None,
}
EPS = {"pytorch": 1e-6, "tensorflow": 0.0, "paddle": 0.0}


def arrays(dtype: str = "float32") -> dict[str, np.ndarray | None]:
    return {name: None if values is None else reference.array(values, dtype) for name, values in NUMBERS.items()}


def tensors(kit: Kit, **changed: Any) -> dict[str, Any]:
    grads = {name: None if values is None else kit.tensor(values) for name, values in NUMBERS.items()}
    return grads | {name.replace("__", "."): kit.tensor(values) for name, values in changed.items()}


def assert_gradients(kit: Kit, grads: dict[str, Any], expected: dict[str, np.ndarray | None]) -> None:
    assert list(grads) == list(expected)
    for name, array in expected.items():
        if array is None:
            assert grads[name] is None
            continue
        result = kit.array(grads[name])
        assert result.shape == array.shape
        if kit.exact:
            assert result.tobytes() == array.tobytes(), name
        else:
            np.testing.assert_allclose(result, array, rtol=2.0**-22)


def clipped_gradients(kit: Kit, clip: Any, grads: dict[str, Any], in_place: bool) -> dict[str, Any]:
    if not in_place:
        return dict(clip(grads))
    holders = dict(zip(grads, kit.in_place(list(grads.values())), strict=True))
    clip.clip_(holders)
    return {name: None if holder is None else kit.gradient(holder) for name, holder in holders.items()}


@pytest.fixture(params=[False, True], ids=["functional", "in place"])
def in_place(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# -- rules and groups, as one property


def matches(pattern: str, name: str) -> bool:
    """A leading star and dot stand for any module or none."""
    return fnmatchcase(name, pattern) or (pattern.startswith("*.") and name == pattern[2:])


@st.composite
def rules(draw: st.DrawFn) -> dict[str, Any]:
    rule = draw(st.sampled_from(["global_norm", "norm", "value", "none"]))
    if rule == "none":
        return {"rule": rule}
    if rule == "value":
        return {"rule": rule} | draw(
            st.sampled_from([{"threshold": 5.5}, {"min": -1.0, "max": 20.0}, {"min": 2.0, "max": 2.0}])
        )
    order = draw(st.sampled_from([{}, {}, {"norm_type": 1}, {"norm_type": "inf"}]))
    threshold = draw(st.sampled_from([0.0, 2.3, 6.1, 100.0, "inf"]))
    return {"rule": rule, "threshold": threshold, "family": draw(st.sampled_from(list(EPS)))} | order


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    patterns = st.lists(
        st.sampled_from(["encoder.*", "*.bias", "*.weight", "decoder.weight", "*coder.b*", "*"]), max_size=2
    )
    listed = {key: value for key, value in (("include", draw(patterns)), ("exclude", draw(patterns))) if value}
    groups = [
        {"name": f"group{number}", "include": draw(patterns) or ["*"], "exclude": draw(patterns), **draw(rules())}
        for number in range(draw(st.integers(0, 2)))
    ]
    return draw(rules()) | listed | {"groups": groups}


def groups_of(settings: dict[str, Any]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return {title: (settings, names)}. A parameter belongs to the first group that includes it.

    A group with the same rule inherits the order of the norm.
    """
    order = {key: value for key, value in settings.items() if key == "norm_type"}
    groups = [order | group if group["rule"] == settings["rule"] else group for group in settings["groups"]]
    parts: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for name in NUMBERS:
        included = any(matches(pattern, name) for pattern in settings.get("include", ["*"]))
        if included and not any(matches(pattern, name) for pattern in settings.get("exclude", [])):
            for group in [*groups, settings | {"name": "", "include": ["*"], "exclude": []}]:
                taken = any(matches(pattern, name) for pattern in group["include"])
                if taken and not any(matches(pattern, name) for pattern in group["exclude"]):
                    parts.setdefault(group["name"], (group, []))[1].append(name)
                    break
    return parts


def clipped_by(rule: dict[str, Any], given: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float | None]:
    """Return the clipped arrays, and the smallest coefficient."""
    if rule["rule"] == "none" or not given:
        return given, 1.0 if given else None
    if rule["rule"] == "value":
        low, high = rule.get("min", -rule.get("threshold", 0.0)), rule.get("max", rule.get("threshold"))
        return {name: np.clip(array, np.float32(low), np.float32(high)) for name, array in given.items()}, None
    p, limit, eps = float(rule.get("norm_type", 2)), float(rule["threshold"]), EPS[rule["family"]]
    if rule["rule"] == "global_norm":
        norms = dict.fromkeys(given, reference.norm(list(given.values()), p))
    else:
        norms = {name: reference.norm([array], p) for name, array in given.items()}
    coefs = {name: 1.0 if limit == math.inf else reference.coefficient(norms[name], limit, eps) for name in given}
    return {name: reference.scaled(array, coefs[name]) for name, array in given.items()}, min(coefs.values())


@pytest.mark.filterwarnings("ignore::unified_clip.ClipWarning")  # patterns and groups without a parameter
@given(configurations(), st.booleans(), st.sampled_from([{}, {"nonfinite": "zero"}, {"nonfinite": "skip"}]))
def test_each_group_is_clipped_by_its_rule(
    kit: Kit, settings: dict[str, Any], in_place: bool, nonfinite: dict[str, str]
) -> None:
    clip, grads = ClipConfig(**settings, **nonfinite), tensors(kit)
    expected, parts, smallest = arrays(), groups_of(settings), {}
    for title, (rule, names) in parts.items():
        present = {name: array for name in names if (array := arrays()[name]) is not None}
        clipped, smallest[title] = clipped_by(rule, present)
        expected |= clipped
    result = clipped_gradients(kit, clip, grads, in_place)
    assert_gradients(kit, result, expected)
    taken = [name for _, names in parts.values() for name in names if expected[name] is not None]
    if not in_place and not nonfinite:
        assert all(result[name] is grads[name] for name in NUMBERS if name not in taken)
    if all("norm_type" not in rule for rule, _ in parts.values()):
        norm = reference.norm([arrays()[name] for name in taken])
        assert math.isclose(clip.last.norm, norm, rel_tol=0 if kit.exact else 2.0**-22)
        after = clip.last.norm_clipped
        assert after is None or math.isclose(after, reference.norm([expected[name] for name in taken]), rel_tol=1e-6)
    for title, part in clip.last.parts.items():
        if smallest.get(title) is not None:
            assert math.isclose(part.coef, smallest[title], rel_tol=1e-6)


@pytest.mark.parametrize("rule", ["global_norm", "norm"])
@pytest.mark.parametrize("threshold", [2.0, "inf", {"schedule": "linear", "start": 1.0, "end": 3.0, "steps": 10}])
def test_traced_returns_the_norm_and_the_smallest_coefficient(kit: Kit, rule: str, threshold: Any) -> None:
    grads = [kit.tensor([3.0, 4.0]), kit.tensor([0.0, 12.0])]
    result = ClipConfig(rule=rule, threshold=threshold).clipper().traced(grads, step=5)
    smallest = 1.0 if threshold == "inf" else 2.0 / (13 if rule == "global_norm" else 12)
    assert float(kit.array(result.norm)) == 13.0
    assert float(kit.array(result.finite)) == 1.0
    np.testing.assert_allclose(kit.array(result.coef), smallest, rtol=1e-6)
    np.testing.assert_allclose(kit.array(result.gradients[1]), [0.0, 12.0 * smallest], rtol=1e-6)


@pytest.mark.parametrize("settings", [{"rule": "none"}, {"rule": "global_norm", "threshold": "inf"}])
def test_measuring_only_writes_nothing(kit: Kit, settings: dict[str, Any], in_place: bool) -> None:
    clip = ClipConfig(**settings)
    assert_gradients(kit, clipped_gradients(kit, clip, tensors(kit, encoder__bias=[math.nan]), in_place), arrays() | {
        "encoder.bias": reference.array([math.nan], "float32")
    })  # fmt: skip
    assert math.isnan(clip.last.norm)
    assert clip.last.clipped is False


def test_an_infinite_norm_gives_zeros_or_nan_depending_on_the_family(kit: Kit) -> None:
    for family, factor in (("pytorch", 0.0), ("paddle", 0.0), ("tensorflow", math.nan)):
        result = ClipConfig(rule="global_norm", threshold=1.0, family=family)(tensors(kit, encoder__bias=[math.inf]))
        assert np.isnan(kit.array(result["encoder.bias"])).all()
        np.testing.assert_array_equal(kit.array(result["encoder.weight"]), np.full(2, factor) * [1, -1])


@where(lambda kit: kit.has_sparse)
def test_sparse_gradients_stay_sparse(kit: Kit) -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, family="paddle", exclude=["other"])
    grads = {"rows": kit.sparse([2, 0, 2], [[1.5], [0.0], [1.5]], 3), "other": kit.tensor([9.0])}
    result = clip(grads)
    np.testing.assert_allclose(kit.dense(result["rows"]), [[0.0], [0.0], [1.0]])
    assert clip.last.norm == 3.0


# -- names


@pytest.mark.parametrize(
    ("settings", "is_empty"),
    [
        ({"groups": [{"name": "a", "include": ["*.weight"]}, {"name": "b", "include": ["encoder.weight"]}]}, True),
        ({"groups": [{"name": "b", "include": ["encoder.weight"]}, {"name": "a", "include": ["*.weight"]}]}, False),
        ({"groups": [{"name": "b", "include": ["*.bias"]}], "exclude": ["*.bias"]}, True),
        ({"groups": [{"name": "b", "include": ["*.bias"], "exclude": ["*"]}]}, True),
        ({"groups": [{"name": "b", "include": ["*"]}]}, False),  # the other parameters are empty
    ],
)
def test_a_group_without_parameters_is_a_warning(kit: Kit, settings: dict[str, Any], is_empty: bool) -> None:
    clip = ClipConfig(rule="value", threshold=5.0, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            clip(tensors(kit))
    message = "The group 'b' of the configuration has no parameters: its patterns match only names that are excluded or"
    assert [str(warning.message).startswith(message) for warning in caught] == [True] * is_empty


def test_patterns_may_match_any_name_of_the_clipper(kit: Kit) -> None:
    parameters = {name: kit.parameter(name) for name in NUMBERS}
    config = ClipConfig(rule="value", threshold=1.0, exclude=["decoder.bias"])
    for names in (parameters, list(NUMBERS)):
        clip = config.clipper(names)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            param_grads = clip.pairs([(parameters["encoder.weight"], kit.tensor([3.0]))])
        assert kit.array(param_grads[0][1])[0] == 1.0
    wrong = config.model_copy(update={"exclude": ["decoder.bia"]}).clipper(parameters)
    with pytest.warns(ClipWarning, match=r"'decoder\.bia' of the configuration matches none of the names 'encoder\.w"):
        wrong.pairs([(parameters["encoder.weight"], kit.tensor([3.0]))])


VALUE = {"rule": "value", "family": None}
HEAD = {"name": "head", "include": ["head"], "threshold": 1.5}
LINES: list[tuple[dict[str, Any], list[float], str]] = [
    ({}, [3.0], "step 0: norm 5, clipped to 2.5 (coefficient 0.5)"),
    ({"threshold": 6.0}, [3.0], "step 0: norm 5, unchanged"),
    (
        {"nonfinite": "skip"}, [math.nan, math.inf, math.inf],
        "step 0: norm nan, the step is skipped (elements: 1 NaN, 2 infinite)",
    ),
    (
        {"nonfinite": "zero"}, [math.inf],
        "step 0: norm inf, clipped to 0 (coefficient 0) (elements: 1 infinite)",
    ),
    (VALUE, [3.0], "step 0: norm 5, clipped"),
    (VALUE, [math.nan], "step 0: norm nan, it is unknown whether a gradient changed (elements: 1 NaN)"),
    (
        {"groups": [HEAD]}, [3.0],
        "step 0: norm 5, clipped to 2.91548 (coefficient 0.5); head: norm 3, clipped (coefficient 0.5); all others: "
        "norm 4, clipped (coefficient 0.625)",
    ),
    (
        {"groups": [HEAD | {"rule": "value"}], "threshold": 9.0}, [1.0],
        "step 0: norm 4.12311, unchanged; head: unchanged; all others: norm 4, unchanged",
    ),
]  # fmt: skip


@where(lambda kit: kit.name == "numpy")
def test_an_outcome_prints_as_one_line_and_its_repr_has_its_numbers(kit: Kit) -> None:
    for settings, numbers, line in LINES:
        config = ClipConfig(**{"rule": "global_norm", "threshold": 2.5, "family": "paddle"} | settings)
        clip = config.clipper(details=True)
        clip({"head": kit.tensor(numbers), "body": kit.tensor([4.0])})
        assert str(clip.last) == line
        assert all(f"{name}={getattr(clip.last, name)!r}" in repr(clip.last) for name in ("step", "norm", "coef"))
        assert ("parts={'head': GroupOutcome(" in repr(clip.last)) == ("groups" in settings)


def test_a_configuration_prints_the_keys_that_are_set() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0, exclude=["*.bias"])
    assert str(clip) == repr(clip) == "ClipConfig(rule='global_norm', threshold=1.0, exclude=['*.bias'])"
    assert eval(repr(clip)) == clip


@pytest.mark.parametrize("container", [dict, list, iter])
def test_a_clipper_takes_named_parameters(kit: Kit, container: Any) -> None:
    parameters = {"encoder.weight": kit.parameter("a"), "encoder.bias": kit.parameter("b")}
    names = parameters if container is dict else container(list(parameters.items()))
    clip = ClipConfig(rule="value", threshold=1.0, exclude=["*.bias"]).clipper(names)
    param_grads = clip.pairs([(parameter, kit.tensor([3.0, 3.0])) for parameter in parameters.values()])
    assert [kit.array(gradient).max() for _, gradient in param_grads] == [1.0, 3.0]


def test_a_pattern_that_matches_nothing_warns_once(kit: Kit) -> None:
    clip = ClipConfig(rule="value", threshold=1.0, exclude=["*.biass"])
    with pytest.warns(ClipWarning, match=r"'\*\.biass' .*matches none of the names 'encoder\.weight', .*, \.\.\."):
        clip(tensors(kit))
    clip(tensors(kit))  # and not again


@where(lambda kit: kit.name in ("torch", "paddle"))
def test_parameters_in_place_of_gradients_are_rejected(kit: Kit) -> None:
    with pytest.raises(TypeError, match=r"position 0 .*is a parameter.*clip_"):
        ClipConfig(rule="norm", threshold=1.0)([kit.parameter()])


def test_pairs_keep_their_parameters(kit: Kit) -> None:
    first, second = kit.parameter("a"), kit.parameter("b")
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle")
    pairs = clip.pairs([(first, kit.tensor([3.0])), (second, None), (first, kit.tensor([4.0]))])
    assert pairs[0][0] is first
    assert [None if g is None else round(float(kit.array(g)[0]), 6) for _, g in pairs] == [0.6, None, 0.8]


# -- nonfinite norms


@pytest.mark.parametrize("settings", [
    {"rule": "global_norm", "threshold": 1.0}, {"rule": "norm", "threshold": 1.0}, {"rule": "value", "threshold": 1.0},
    {"rule": "none"}, {"rule": "global_norm", "threshold": 1.0, "exclude": ["*.bias"]},
])  # fmt: skip
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nonfinite_norm_raises_zeroes_or_skips(
    kit: Kit, settings: dict[str, Any], bad: float, in_place: bool
) -> None:
    changed = {"encoder__weight": [bad, 1.0]}
    raising = ClipConfig(nonfinite="raise", **settings)
    with pytest.raises(NonFiniteNormError, match=r"encoder\.weight"):
        clipped_gradients(kit, raising, tensors(kit, **changed), in_place)
    assert raising.step == 0

    zero = ClipConfig(nonfinite="zero", **settings)
    result = clipped_gradients(kit, zero, tensors(kit, **changed), in_place)
    left_out = set(settings.get("exclude", ())) and {"encoder.bias"}
    for name, gradient in result.items():
        if gradient is not None:
            assert (kit.array(gradient) == 0).all() == (name not in left_out), name
    assert zero.last.norm_clipped == 0.0

    skip = ClipConfig(nonfinite="skip", **settings)
    assert set(clipped_gradients(kit, skip, tensors(kit, **changed), in_place).values()) == {None}
    assert skip.last.skipped
    assert (skip.last.nan, skip.last.inf) in ([(1, 0), (0, 1)] if kit.exact else [(None, None)])
    assert clipped_gradients(kit, skip, tensors(kit), in_place)["encoder.weight"] is not None
    assert not skip.last.skipped


@where(lambda kit: not kit.on_parameters)
def test_skipping_a_step_needs_gradients_that_can_be_removed(kit: Kit) -> None:
    skip = ClipConfig(rule="none", nonfinite="skip")
    with pytest.raises(TypeError, match=r"clip\(grads\)"):
        skip.clip_((kit.tensor([1.0]),))


# -- steps


SCHEDULES = {
    "linear": ({"schedule": "linear", "start": 3.0, "end": 1.0, "steps": 4, "begin": 1}, [3, 3, 2.5, 2, 1.5, 1, 1]),
    "cosine": (
        {"schedule": "cosine", "start": 2.0, "end": 0.0, "steps": 2},
        [2.0, float(np.float32(1 + math.cos(math.pi / 2))), 0.0, 0.0],
    ),
    "piecewise": ({"schedule": "piecewise", "values": [4.0, 2.0, "inf"], "boundaries": [1, 3]}, [4, 2, 2, math.inf]),
    "constant": ({"schedule": "constant", "value": 0.1}, [0.1, 0.1]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_threshold_follows_its_schedule(kit: Kit, name: str) -> None:
    schedule, expected = SCHEDULES[name]
    clip = ClipConfig(rule="global_norm", threshold=schedule, family="paddle")
    for step, limit in enumerate(expected):
        assert clip.step == step
        (result,) = clip([kit.tensor([30.0, 40.0])])
        assert clip.last.parts[""].threshold == limit
        assert clip.last.step == step
        np.testing.assert_allclose(kit.array(result), np.array([0.6, 0.8]) * min(limit, 50.0), rtol=1e-6)


def test_the_step_can_be_passed_or_set_as_a_number_or_a_tensor(kit: Kit) -> None:
    schedule = {"schedule": "piecewise", "values": [3.0, 2.0, 1.0], "boundaries": [5, 9]}
    clip = ClipConfig(rule="value", threshold=schedule)

    def greatest(**options: Any) -> float:
        return float(kit.array(clip([kit.tensor([10.0])], **options)[0])[0])

    assert [greatest(), greatest(step=7), greatest(), greatest(step=0)] == [3.0, 2.0, 2.0, 3.0]
    for number in (9, [9], [[9]]):
        assert greatest(step=kit.tensor(np.array(number), "int32")) == 1.0
    runner = clip.clipper()
    for number in (np.int64(5), np.uint8(5), np.array(5), kit.tensor(np.array(5), "int32")):
        runner.step = number
        (result,) = runner([kit.tensor([10.0])])
        assert (kit.array(result)[0], runner.step, type(runner.step)) == (2.0, 6, int)
        runner.load_state_dict({**runner.state_dict(), "step": number})
        assert json.dumps(runner.state_dict()["step"]) == "5"


def test_a_step_has_to_be_one_whole_number(kit: Kit) -> None:
    clip = ClipConfig(rule="none").clipper()
    tensors = [
        kit.tensor(value, dtype) for value, dtype in (([1, 2], "int32"), ([[1], [2]], "int32"), (2.5, "float32"))
    ]
    for step in (np.float64(5.0), np.bool_(True), True, "5", None, kit.from_array(np.array(True)), *tensors):
        with pytest.raises(TypeError, match="step is"):
            clip.step = step
    negative = [kit.tensor(-3, "int32")] if kit.reads_tensors else []
    for step in (1.5, True, -1, kit.tensor(math.nan), *tensors, *negative):
        with pytest.raises((TypeError, ValueError), match="step is"):
            clip([kit.tensor([1.0])], step=step)
    assert clip.step == 0


# -- outcomes


NORM = {"rule": "global_norm", "threshold": 2.0, "family": "paddle"}
EVEN, BOUNDS = {"rule": "value", "threshold": 1.0}, {"rule": "value", "min": -1.0, "max": 1.0}
OUTCOMES: list[tuple[dict[str, Any], list[list[float]], dict[str, Any]]] = [
    (NORM, [[3.0, 4.0]], {"norm": 5.0, "clipped": True, "coef": 0.4, "norm_clipped": 2.0, "nan": 0, "inf": 0}),
    (NORM, [[0.5]], {"norm": 0.5, "clipped": False, "coef": 1.0}),
    (NORM | {"nonfinite": "skip"}, [[math.inf]], {"clipped": None, "coef": None, "norm_clipped": None}),
    ({"rule": "norm", "threshold": 1.0, "norm_type": 1, "nonfinite": "skip"}, [[2e38, 2e38]], {"skipped": True}),
    ({"rule": "none"}, [[math.nan]], {"clipped": False}),
    ({"rule": "norm", "threshold": 1.0, "norm_type": "inf"}, [[3.0, 4.0], [12.0]], {"norm_clipped": None}),
    ({"rule": "norm", "threshold": 1.0}, [[0.5], [math.nan]], {"norm_clipped": None, "coef": math.nan}),
    (EVEN, [[1.0, -0.5]], {"clipped": False, "coef": 1.0, "norm_clipped": None}),
    (EVEN, [[1.0, -1.5]], {"clipped": True}),
    (EVEN, [[math.nan, 4.0]], {"clipped": None}),  # the largest element is unknown
    (EVEN | {"nonfinite": "zero"}, [[math.nan, 0.5]], {"clipped": True}),
    (EVEN | {"nonfinite": "skip"}, [[math.nan, 0.5]], {"clipped": None}),
    (BOUNDS | {"max": 2.0}, [[1.5]], {"clipped": None}),
    (BOUNDS, [[5.0, -7.0]], {"clipped": True}),
    (BOUNDS, [[0.5, -1.0]], {"clipped": False}),
]


def test_the_outcome_has_what_is_known(kit: Kit) -> None:
    for settings, gradients, expected in OUTCOMES:
        clip = ClipConfig(**settings)
        with pytest.raises(RuntimeError, match="nothing has been clipped yet"):
            _ = clip.last
        clip([kit.tensor(values) for values in gradients])
        for name, value in expected.items():
            assert getattr(clip.last, name) == pytest.approx(value, nan_ok=True), (settings, gradients, name)
        if "clipped" in expected:
            assert clip.rate == (None if expected["clipped"] is None else float(expected["clipped"]))
            assert ("clip_rate" in monitor.metrics(clip)) == (expected["clipped"] is not None)
        known = {"grad_norm": clip.last.norm, "grad_norm_clipped": clip.last.norm_clipped, "clip_coef": clip.last.coef}
        metrics = {f"train/{name}": value for name, value in known.items() if value is not None}
        assert clip.last.metrics("train/") == pytest.approx(metrics, nan_ok=True)


def test_details_name_the_largest_gradients(kit: Kit, in_place: bool) -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0).clipper(details=True)
    clipped_gradients(kit, clip, tensors(kit), in_place)
    norms = clip.last.parameters
    assert list(norms) == ["decoder.weight", "encoder.bias", "encoder.weight"]
    assert [round(norm, 4) for norm in norms.values()] == [50.01, 7.0, 5.0]
    clip = ClipConfig(rule="global_norm", threshold=1.0, norm_type=1).clipper(details=True)
    clipped_gradients(kit, clip, tensors(kit), in_place)
    assert clip.last.parameters["encoder.weight"] == 7.0  # 3 + 4


def test_a_recording_has_a_clip_event_for_each_group(kit: Kit, tmp_path: Path) -> None:
    clip = ClipConfig(rule="global_norm", threshold=2.0, exclude=["*.bias"], groups=[
        {"name": "decoder", "include": ["decoder.*"], "rule": "value", "threshold": 10.0},
    ])  # fmt: skip
    with unified_clip.record(tmp_path / "run.jsonl"):
        clip(tensors(kit))
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    assert [(line["step"], line["rule"], line["threshold"]) for line in lines] == [
        (1, "value", [-10.0, 10.0]), (1, "global", 2.0),
    ]  # fmt: skip
    assert {line["call"] for line in lines} == {"ClipConfig"}
    assert lines[1]["norm"] == clip.last.parts[""].norm == 5.0


def test_a_configuration_is_copied_without_its_history(kit: Kit) -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0, exclude=["b"])
    clip({"a": kit.tensor([3.0]), "b": kit.tensor([3.0])})
    for copied in (copy.copy(clip), copy.deepcopy(clip), pickle.loads(pickle.dumps(clip))):
        assert copied == clip
        assert copied.step == 0
    assert clip.step == 1
    assert clip.clipper().step == 0


# -- edge cases


@where(lambda kit: kit.on_parameters)
@pytest.mark.parametrize("nonfinite", ["family", "skip"])
def test_tied_parameters_belong_to_the_group_of_their_first_name(kit: Kit, nonfinite: str) -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0, include=["a"], nonfinite=nonfinite)
    for details, order in itertools.product((False, True), ("ab", "ba")):
        (holder,) = kit.in_place([kit.tensor([3.0, 4.0])])
        clip.clipper(details=details).clip_([(name, holder) for name in order])
        assert (round(float(kit.array(kit.gradient(holder))[0]), 4) == 0.6) == (order == "ab")


@where(lambda kit: "complex64" in kit.complex)
def test_complex_gradients_are_rejected_only_by_the_value_rule(kit: Kit) -> None:
    groups = [{"name": "v", "include": ["v"], "rule": "value", "threshold": 1.0}]
    clip = ClipConfig(rule="global_norm", threshold=1.0, family="paddle", groups=groups)
    number, real = kit.tensor([3.0 + 4.0j], "complex64"), kit.tensor([5.0])
    result = clip({"v": real, "c": number})
    assert kit.array(result["v"])[0] == 1.0
    assert abs(abs(complex(kit.array(result["c"])[0])) - 1.0) < 1e-6
    with pytest.raises(TypeError, match=r"parameter 'v'.*complex"):
        clip({"v": number, "c": number})


def test_a_clipper_is_pickled_with_its_step_and_names(kit: Kit) -> None:
    clip = ClipConfig(rule="value", threshold=1.0, include=["a"]).clipper(names=["a", "b"])
    clip([kit.tensor([3.0]), kit.tensor([3.0])])
    again = pickle.loads(pickle.dumps(clip))
    assert again.step == 1
    assert [kit.array(g)[0] for g in again([kit.tensor([3.0]), kit.tensor([3.0])])] == [1.0, 3.0]


class Model(dict[str, Any]):
    def named_parameters(self) -> Any:
        return iter(self.items())


@pytest.mark.parametrize("container", [dict, Model])
def test_a_deep_copy_of_a_clipper_has_the_same_model_or_its_copy(kit: Kit, container: Any) -> None:
    names = container({"encoder.weight": kit.parameter("a"), "encoder.bias": kit.parameter("b")})
    clipper = ClipConfig(rule="value", threshold=1.0, exclude=["*.bias"]).clipper(names)
    clipper.step = 7
    model, follows = copy.deepcopy((names, clipper))
    for copied, parameters in ((copy.deepcopy(clipper), names), (follows, model)):
        param_grads = copied.pairs([(parameter, kit.tensor([3.0, 3.0])) for parameter in parameters.values()])
        assert [kit.array(gradient).max() for _, gradient in param_grads] == [1.0, 3.0]
        assert (copied.step, clipper.step) == (8, 7)


@where(lambda kit: kit.on_parameters)
@pytest.mark.parametrize("details", [False, True])
def test_parameters_with_need_clip_false_are_excluded(kit: Kit, details: bool) -> None:
    first, second = kit.in_place([kit.tensor([3.0, 4.0]), kit.tensor([12.0])])
    second.need_clip = False
    clip = ClipConfig(rule="global_norm", threshold=1.0, exclude=["nothing", "b"]).clipper(details=details)
    with pytest.warns(ClipWarning, match="matches none"):
        clip.clip_([("a", first), ("c", second)])
    assert clip.last.norm == 5.0
    assert kit.array(kit.gradient(second))[0] == 12.0
    excluded = kit.parameter("c")
    excluded.need_clip = False
    clip = ClipConfig(rule="value", threshold=1.0)
    assert [
        kit.array(g)[0] for _, g in clip.pairs([(excluded, kit.tensor([3.0])), (kit.parameter("d"), kit.tensor([3.0]))])
    ] == [3.0, 1.0]


def test_details_count_nonfinite_elements_of_all_gradients(kit: Kit) -> None:
    clip = ClipConfig(rule="none").clipper(details=True)
    clip([kit.tensor([math.nan, 1.0, math.inf]), None, kit.tensor([[-math.inf, math.nan]]), kit.tensor(math.nan)])
    assert (clip.last.nan, clip.last.inf) == (3, 2)
    clip([kit.tensor([1.0])])
    assert (clip.last.nan, clip.last.inf) == (0, 0)
