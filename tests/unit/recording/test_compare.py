"""`unified-clip compare`: what is refused, what belongs together, and which mistake the numbers show."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_clip import cli
from unified_clip.recording import compare, pairing, rounding, runs
from unified_clip.recording.causes import sequence
from unified_clip.recording.report import model, sentences

HEADER = {"unified_clip": "0.1.0", "schema": 1, "started": "2026-01-01T00:00:00Z", "norms": True}
NORMS = {"a": 3.0, "b": 4.0, "c": 12.0}
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0}
SHAPES = {"a": [4, 2], "b": [2, 4], "c": [8]}


def line(step: int, norms: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """A global clip of gradients with these norms at 1."""
    norms = NORMS if norms is None else norms
    total = float(np.float32(math.hypot(*norms.values())))
    eps, threshold = changes.get("eps", 0.0), changes.get("threshold", 1.0)
    weights = changes.pop("weights", WEIGHTS)
    found = {
        "step": step, "call": "clip_by_global_norm", "framework": "numpy", "rule": "global", "threshold": threshold,
        "norm_type": 2.0, "eps": eps, "dtype": "float32", "norm": total, "coef": min(1.0, threshold / (total + eps)),
        "clipped": total > threshold, "nan": 0, "inf": 0, "seconds": 0.001,
        "parameters": {
            name: {"norm": norm, "shape": SHAPES.get(name, [8]), "weight": weights.get(name)}
            for name, norm in norms.items()
        },
    }  # fmt: skip
    return {**found, **changes}


def written(path: Path, lines: Iterable[dict[str, Any]], header: dict[str, Any] | None = None) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in (header or HEADER, *lines)))
    return path


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., compare.RecordingComparison]:
    def compare_written(
        a: Iterable[dict[str, Any]], b: Iterable[dict[str, Any]], **options: Any
    ) -> compare.RecordingComparison:
        return compare.compare(written(tmp_path / "a.jsonl", a), written(tmp_path / "b.jsonl", b), **options)

    return compare_written


def mistakes(found: compare.RecordingComparison) -> list[str]:
    return [each.kind for each in found.findings]


# -- reading


def test_a_run_is_read_with_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    bad = {**line(1, {"a": 1.0}, norm="nan", coef="nan", nan=2), "threshold": "inf"}
    found = runs.read(written(tmp_path / "run.jsonl", [bad, line(2)]))
    assert math.isnan(found.lines[0].norms()[0])
    assert found.lines[0].threshold == math.inf
    assert found.lines[1].parameters["c"].norm == 12.0
    assert not found.torn


def test_infinite_bounds_are_strings_in_json(compared: Any) -> None:
    bounds = [{"rule": "value", "threshold": ["-inf", high], "norm_type": None} for high in (1.0, 2.0)]
    found = compared(*([{"step": 1, "call": "clip", **each}] for each in bounds))
    (parting,) = json.loads(json.dumps(model.build(found).as_json(), allow_nan=False))["partings"]
    assert (parting["a"], parting["b"]) == (["-inf", 1.0], ["-inf", 2.0])


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "run.jsonl", [line(1), line(2)])
    path.write_bytes(path.read_bytes()[:-20])
    found = runs.read(path)
    assert found.torn
    assert [each.step for each in found.lines] == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no complete line. If a run still writes it"),
        (
            "{}\n",
            "line 1, unified_clip: Field required. Pass a file that unified-clip record or unified_clip.record wrote",
        ),
        (json.dumps({**HEADER, "schema": 3}) + "\n", r"format version \(schema\) 3, .* install that release"),
        (
            json.dumps(HEADER) + "\n{\n",
            "line 2 is not JSON: Expecting property name enclosed in double quotes at column 2. ",
        ),
        (json.dumps(HEADER) + "\n" + json.dumps({**line(1), "step": 0}) + "\n", "line 2, step: "),
        (json.dumps(HEADER) + "\n" + "[" * 100_000 + "\n", "line 2 is not JSON: maximum recursion depth"),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**line(1), "norm": None}) + "\n",
            "norm is None, which does not fit the rule 'gl",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**line(1), "norm": []}) + "\n",
            "line 2: .* which does not fit the rule 'global'",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**line(1), "rule": "each"}) + "\n",
            "which does not fit the rule 'each'",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**line(1), "norm_type": None}) + "\n",
            "norm_type is missing, but the rule ",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**line(1), "norm_type": -1}) + "\n",
            "norm_type is -1.0, but must be above 0. Record",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**line(1), "norm_type": "nan"}) + "\n",
            "norm_type is nan, but must be above 0",
        ),
        (json.dumps(HEADER) + "\n" + json.dumps({**line(1), "step": 10**400}) + "\n", "line 2, step: "),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(runs.RunError, match=message):
        runs.read(tmp_path / "run.jsonl")


@pytest.mark.parametrize("order", [5e-324, 1e-300, 1e-3, 1e300, "inf"])
def test_any_order_of_the_norm_is_compared(compared: Any, order: Any) -> None:
    found = compared([line(1)], [line(1, norm_type=order)])
    assert (found.first.stage, found.first.b) == ("norm type", float(order))
    watched = compared([line(1)], [line(1, norm_type=0, watched=True)])
    assert watched.first.stage == "norm type"


def test_files_that_are_not_there_or_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(runs.RunError, match="cannot be read: No such file"):
        runs.read(tmp_path / "run.jsonl")
    (tmp_path / "run.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(runs.RunError, match="it is not text"):
        runs.read(tmp_path / "run.jsonl")


# -- what belongs together


def renamed(each: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {**each, "parameters": {names[name]: found for name, found in each["parameters"].items()}}


OTHER = {"a": "x.weight", "b": "y.weight", "c": "z.bias"}


def test_parameters_are_matched_by_shape_and_order_where_no_name_is_the_same(compared: Any) -> None:
    found = compared([line(1)], [renamed(line(1), OTHER)])
    assert found.first is None
    assert found.pairs[0].names == OTHER
    moved = renamed(line(1, {"a": 3.0, "b": 4.0, "c": 12.5}, norm=13.0), OTHER)
    assert compared([line(1)], [moved]).first.parameter == "c"


def test_positions_are_no_names(compared: Any) -> None:
    weight, bias = {"norm": 3.0, "shape": [4, 2]}, {"norm": 4.0, "shape": [8]}
    one, other = line(1, parameters={"0": weight, "1": bias}), line(1, parameters={"0": bias, "1": weight})
    assert compared([one], [other]).first is None


def test_a_map_of_some_parameters_leaves_the_others_to_shape_and_order(compared: Any) -> None:
    crossed = {"a": "y.weight", "b": "x.weight", "c": "z.bias"}
    found = compared([line(1)], [renamed(line(1), crossed)], names={"a": "y.weight"})
    assert found.first is None
    assert found.pairs[0].names == crossed


@pytest.mark.parametrize("reverse", [False, True])
def test_parameters_are_matched_by_a_map_in_either_direction(compared: Any, tmp_path: Path, reverse: bool) -> None:
    crossed = {"a": "y.weight", "b": "x.weight", "c": "z.bias"}
    given = {other: name for name, other in crossed.items()} if reverse else crossed
    (tmp_path / "map.toml").write_text("".join(f'"{name}" = "{other}"\n' for name, other in given.items()))
    found = compared([line(1)], [renamed(line(1), crossed)], names=pairing.read_names(tmp_path / "map.toml"))
    assert found.first is None


def test_a_map_with_a_name_that_nobody_has_is_refused(compared: Any) -> None:
    with pytest.raises(
        runs.RunError, match=r"has 'd', which is no parameter of .*a.jsonl. This run has parameters such as a, b, c"
    ):
        compared([line(1)], [line(1)], names={"d": "a"})
    with pytest.raises(runs.RunError, match=r"has 'd', which is no parameter of .*b.jsonl"):
        compared([line(1)], [line(1)], names={"a": "d"})


def test_a_map_in_both_directions_is_refused(compared: Any) -> None:
    other = renamed(line(1), {"a": "x", "b": "y", "c": "z"})
    with pytest.raises(
        runs.RunError, match=r"has 'y', .* It is a parameter of the other run. Write the names of one run"
    ):
        compared([line(1)], [other], names={"a": "x", "y": "b"})
    with pytest.raises(runs.RunError, match=r"has 'bb', .* of .*a.jsonl\. This run has parameters such as b"):
        compared([line(1)], [other], names={"x": "a", "y": "bb"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "map.toml"),
        ("a = 1", 'map.toml, a: its value is not a string. Put both names in quotes: "a" = "its name'),
        ("fc.weight = 'x'", r'fc: this is a table.* such as "fc.weight" = "its name .* such as \[fc\]\.'),
        ("a = 'c'\nb = 'c'", "several lines have the value 'c'. Keep one"),
        ("a = " + "[" * 5000, "map.toml: its lists or tables are nested too deep"),
    ],
    ids=["no value", "a number", "a table", "two of one name", "nested"],
)
def test_a_map_that_is_wrong_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(runs.RunError, match=message):
        pairing.read_names(tmp_path / "map.toml")


# -- how far


def test_distances_are_counted_in_float32_or_in_float64_where_it_is_needed() -> None:
    one = float(np.float32(1))
    assert rounding.distance(one, float(np.nextafter(np.float32(1), np.float32(2)))).ulps == 1
    assert rounding.distance(1.0, float(np.nextafter(1.0, 2.0))).ulps == 1
    assert rounding.distance(-(2.0**-149), 2.0**-149).ulps == 2
    assert rounding.distance(math.nan, math.nan).ulps == 0
    assert rounding.distance(math.inf, 1.0).ulps == math.inf
    assert rounding.distance(2.0, 1.0).relative == 0.5
    assert rounding.distance(1e39, float(np.nextafter(1e39, 2e39))).ulps == 1  # which float32 does not reach
    assert rounding.distance(1e39, 1.0).ulps > 1e16


def test_runs_are_the_same_up_to_what_is_allowed(compared: Any) -> None:
    near = {**NORMS, "a": float(np.nextafter(np.float32(3), np.float32(4)))}
    found = compared([line(1), line(2)], [line(1), line(2, near)])
    assert (found.first.step, found.first.stage, found.first.parameter) == (2, "gradient", "a")
    assert found.first.ulps == 1
    assert mistakes(found) == ["rounding"]
    assert "To allow such differences, pass --max-ulp 64." in found.findings[0].sentence
    assert [(each.stage, each.differs_at_step) for each in found.agreements] == [
        ("weight", None), ("gradient", 2), ("norm", None), ("coefficient", None),
    ]  # fmt: skip
    assert compared([line(1), line(2)], [line(1), line(2, near)], max_ulp=1).first is None


def test_a_coefficient_that_differs_by_less_than_gradients_see_is_the_same(compared: Any) -> None:
    assert compared([line(1, eps=0.0)], [line(1, eps=1e-7)]).first is None


def test_another_number_of_norms_is_a_difference(compared: Any) -> None:
    each = line(1, rule="each", norm=[3.0, 4.0], coef=[1 / 3, 1 / 4], parameters={})
    found = compared([each], [{**each, "norm": [3.0, 4.0, 5.0], "coef": [1 / 3, 1 / 4, 1 / 5]}])
    assert (found.first.stage, found.first.a, found.first.b) == ("norms", 2, 3)
    assert "2 and 3 norms" in sentences.lines(found)[2]


def test_weights_are_compared_where_their_norms_have_the_same_order(compared: Any) -> None:
    other = line(1, norm_type=1.0, norm=19.0, weights={"a": 1.5, "b": 3.0, "c": 5.0})
    assert [each.stage for each in compared([line(1)], [other]).agreements] == []
    bounded = {**line(1, rule="value", norm_type=None, norm=None, coef=None), "threshold": [-1.0, 1.0]}
    assert [each.stage for each in compared([line(1)], [bounded]).agreements] == ["weight", "gradient"]


def test_a_threshold_given_as_a_float32_tensor_is_the_number_it_stands_for(compared: Any) -> None:
    single = float(np.float32(0.1))
    one, other = line(1, threshold=0.1), line(1, threshold=single)
    assert compared([one], [other], max_ulp=1).first is None
    assert compared([{**one, "dtype": "float64"}], [{**other, "dtype": "float64"}]).first.stage == "threshold"
    for pair in ((one, {**other, "dtype": "float64"}), ({**one, "dtype": "float64"}, other)):
        assert compared(*([each] for each in pair), max_ulp=1).first is None


# -- which mistake


def test_per_tensor_for_global(compared: Any) -> None:
    each = line(1, rule="each", norm=list(NORMS.values()), coef=[1 / norm for norm in NORMS.values()])
    assert mistakes(compared([line(1)], [each])) == mistakes(compared([each], [line(1)])) == ["per tensor for global"]
    alone = [line(step, {name: norm}) for step, (name, norm) in enumerate(NORMS.items(), start=1)]
    assert mistakes(compared([line(1)], alone)) == ["per tensor for global"]
    alone = [{**each, "rule": "each", "norm": [each["norm"]], "coef": [each["coef"]]} for each in alone]
    assert mistakes(compared([line(1)], alone)) == ["per tensor for global"]
    for last in (11.0, 13.0):
        assert mistakes(compared([line(1)], [{**each, "norm": [3.0, 4.0, last]}])) == ["per tensor for global"]


def test_a_loop_of_clips_by_total_norm_is_another_rule(compared: Any) -> None:
    """A loop calls `clip_grad_norm_(p, c)` for each parameter."""
    loop = [line(step, {name: norm}) for step in (1, 2) for name, norm in NORMS.items()]
    clips = [line(1), line(2)]
    for runs_, rules in (((clips, loop), "total norm and per tensor"), ((loop, clips), "per tensor and total norm")):
        printed = sentences.lines(found := compared(*runs_))
        assert printed[2] == f"The runs first differ at step 1: rule is {rules}."
        assert printed[3].startswith("Per tensor for global: ")
        assert any("GradientClipByNorm(c).clip_(model.parameters())" in sentence for sentence in printed[4:])
        counts = [f"{run.name} has {len(run.lines)} calls" for run in (found.a, found.b)]
        of = f"in the one call that was compared, with 1 of 3 tensors ({', '.join(counts)})."
        assert f"Gradients' norms are equal {of}" in printed


def test_clips_of_other_steps_are_not_the_tensors_of_one_clip(compared: Any) -> None:
    """Constant gradients: the norms of two steps may have the total norm of the other run's gradients."""
    steps = [{"step": n, "optimizer": "torch.optim.SGD", "settings": {}, "backward_calls": 1} for n in (1, 2, 3, 4)]
    one = [each for n, step in enumerate(steps, 1) for each in (line(n, {"a": 5.0 * math.sqrt(2)}), step)]
    other = [each for n, step in enumerate(steps, 1) for each in (line(n, {"a": 5.0}), step)]
    assert "per tensor for global" not in mistakes(compared(one, other)) + mistakes(compared(other, one))
    passes = [{**step, "backward_calls": int(n == 0)} for n, step in enumerate(steps)]  # steps in hooks of one pass
    in_hooks = [each for n, step in enumerate(passes, 1) for each in (line(n, {f"{n}": 5.0}), step)]
    assert "per tensor for global" in mistakes(
        compared([line(1, {f"{n}": 5.0 for n in range(1, 5)}), steps[0]], in_hooks)
    )


def test_per_group_for_global(compared: Any) -> None:
    groups = [line(1, {"a": 3.0, "b": 4.0}), line(1, {"c": 12.0})]
    found = compared([line(1)], groups)
    assert mistakes(found) == mistakes(compared(groups, [line(1)])) == ["per group for global"]
    assert "b.jsonl clips by 2 norms, in 2 calls" in found.findings[0].sentence
    assert sentences.lines(found)[2] == "The runs first differ at step 1: rule is total norm and per group."


def test_a_long_run_of_small_norms_is_looked_through_once() -> None:
    tiny = runs.RecordedCall(step=1, call="clip_by_global_norm", rule="global", norm_type=2.0, norm=1e-9, coef=1.0)
    begin = time.process_time()
    assert sequence._norms_up_to(5.0, [tiny] * 50_000) == ([], 0)
    assert time.process_time() - begin < 2


def test_missing_eps(compared: Any) -> None:
    small = {"a": 0.3, "b": 0.4}
    one, other = (line(1, small, threshold=0.1, eps=eps) for eps in (0.0, 1e-6))
    found = compared([one], [other])
    assert mistakes(found) == ["another eps"]
    assert found.first.stage == "coefficient"
    assert mistakes(compared([one], [{**other, "coef": 0.1 / (0.5 + 2e-6)}])) == []


def test_coefficients_that_differ_by_the_rounding_of_the_threshold(compared: Any) -> None:
    found = compared(*([line(1, {"a": 0.3, "b": 0.5}, threshold=each)] for each in (0.3, float(np.float32(0.3)))))
    assert mistakes(found) == ["rounding"]
    assert found.findings[0].sentence.endswith(
        "follow the same formula, except for rounding. To allow it, pass --max-ulp 64"
    )


def each_of(step: int, norms: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """One call that clips each gradient by its own norm at 1."""
    norms = NORMS if norms is None else norms
    lists = {"norm": list(norms.values()), "coef": [min(1.0, 1 / norm) for norm in norms.values()]}
    return line(step, norms, **{"rule": "each", "call": "GradientClipByNorm.clip_", **lists, **changes})


def by_hand(right: dict[str, Any], coef: float | list[float]) -> dict[str, Any]:
    """A clip of the same gradients whose settings are not known: its coefficients are those of its results."""
    coefs = [float(np.float32(each)) for each in coef] if isinstance(coef, list) else float(np.float32(coef))
    return {**right, "call": "by hand", "watched": True, "threshold": None, "eps": None, "coef": coefs}


SMALL_LINE = line(1, {"a": 0.3, "b": 0.4}, threshold=0.1)
SINGLE = line(1, {"a": 3.001})

BY_HAND = {
    "another eps": (SMALL_LINE, by_hand(SMALL_LINE, 0.1 / (0.5 + 1e-5)), "as with eps 1e-05 instead of 0"),
    "left out": (line(1), by_hand(line(1), 1 / math.hypot(3, 12)), "as when 'b' is left out of the norm"),
    "16 bits": (SINGLE, by_hand(SINGLE, 1 / 3.0), "as when the norm is rounded to bfloat16"),
    "clipped twice": (line(1), by_hand(line(1), 1 / 13**2), "as when the coefficient multiplies everything twice"),
    "not clipped": (line(1), by_hand(line(1), 1.0), "as when nothing is clipped"),
    "another threshold": (
        each_of(1),
        by_hand(each_of(1), [0.5 / norm for norm in NORMS.values()]),
        "as with a threshold of 0.5 instead of 1",
    ),
}
"""A clip by unified_clip, the same clip by hand with a mistake, and the cause."""


@pytest.mark.parametrize("kind", BY_HAND)
def test_a_mistake_in_a_clip_by_hand_is_named(compared: Any, kind: str) -> None:
    right, wrong, sentence = BY_HAND[kind]
    found = compared([right], [wrong])
    assert mistakes(found) == [kind]
    assert f"b.jsonl differs from a.jsonl {sentence}" in found.findings[0].sentence
    assert "a.jsonl differs from b.jsonl" in compared([wrong], [right]).findings[0].sentence


def test_a_clip_by_hand_that_no_cause_explains_is_unexplained(compared: Any) -> None:
    assert mistakes(compared([each_of(1)], [by_hand(each_of(1), [0.1, 0.2, 0.03])])) == []


MISTAKES: dict[str, Callable[[list[float], float], float]] = {
    "another eps": lambda norms, threshold: threshold / (math.hypot(*norms) + 1e-5),
    "left out": lambda norms, threshold: threshold / math.hypot(*norms[1:]),
    "16 bits": lambda norms, threshold: threshold / float(np.float16(math.hypot(*norms))),
    "clipped twice": lambda norms, threshold: (threshold / math.hypot(*norms)) ** 2,
    "another threshold": lambda norms, threshold: 0.8765432 * threshold / math.hypot(*norms),
}


@pytest.mark.parametrize("kind", MISTAKES)
@given(norms=st.lists(st.floats(1e-3, 100), min_size=2, max_size=5), ratio=st.floats(0.01, 0.9))
def test_a_random_mistake_by_hand_is_named_as_what_it_is_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, kind: str, norms: list[float], ratio: float
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    right = line(1, {str(index): norm for index, norm in enumerate(norms)}, threshold=ratio * math.hypot(*norms))
    wrong = by_hand(right, min(1.0, MISTAKES[kind](norms, right["threshold"])))
    found = compare.compare(written(directory / "a.jsonl", [right]), written(directory / "b.jsonl", [wrong]))
    facts = {"not clipped"} if wrong["coef"] == 1 else {"coefficient"} if kind == "another threshold" else set()
    assert set(mistakes(found)) <= {kind, "rounding", *facts}


def test_a_norm_without_one_gradient_is_explained_by_the_norms_of_one_run(compared: Any) -> None:
    fewer = {**line(1, {"a": 3.0, "c": 12.0}), "parameters": {}}
    found = compared([line(1)], [fewer])
    assert mistakes(found) == ["left out"]
    assert "as when 'b' is left out of the norm" in found.findings[0].sentence


def test_another_threshold(compared: Any) -> None:
    found = compared([line(1)], [line(1, threshold=5.0)])
    assert mistakes(found) == ["another threshold"]
    assert (found.first.a, found.first.b) == (1.0, 5.0)
    assert mistakes(compared([line(1)], [line(1, threshold=5.0, coef=0.3)])) == []
    fits_the_threshold_of_a = {**by_hand(line(1), 1 / math.hypot(3, 12)), "threshold": 5.0}
    assert mistakes(compared([line(1)], [fits_the_threshold_of_a])) == []


@pytest.mark.parametrize(
    ("threshold", "coef", "kind", "sentence"),
    [
        (
            1.0,
            1.0,
            "not clipped",
            "b.jsonl differs from a.jsonl as when nothing is clipped: the gradients are returned",
        ),
        (
            20.0,
            0.5,
            "clipped below the threshold",
            "b.jsonl differs from a.jsonl: it changes gradients, although both norms are below 20.0",
        ),
    ],
)
def test_a_run_that_ignores_its_threshold(
    compared: Any, threshold: float, coef: float, kind: str, sentence: str
) -> None:
    right, wrong = (line(1, threshold=threshold, **changes) for changes in ({}, {"coef": coef}))
    found = compared([right], [wrong])
    assert mistakes(found) == [kind]
    assert sentence in found.findings[0].sentence
    assert "a.jsonl differs from b.jsonl" in compared([wrong], [right]).findings[0].sentence


def test_another_norm_type(compared: Any) -> None:
    assert mistakes(compared([line(1)], [line(1, norm_type=1.0, norm=19.0)])) == ["another norm type"]
    assert mistakes(compared([line(1)], [line(1, norm_type=1.0, norm=12.0)])) == []


def test_a_parameter_that_is_missing(compared: Any) -> None:
    fewer = {"a": 3.0, "c": 12.0}
    found = compared([line(1)], [line(1, fewer)])
    assert mistakes(found) == mistakes(compared([line(1, fewer)], [line(1)])) == ["left out"]
    assert "'b' is missing" in found.findings[0].sentence
    by_shape = compared([line(1)], [renamed(line(1, {"b": 4.0, "c": 12.0}), OTHER)])
    assert "'a' is missing" in by_shape.findings[0].sentence
    more = {**NORMS, "d": 5.0, "e": 7.0}
    by_shape = compared([line(1, more)], [renamed(line(1, {"a": 3.0, "d": 5.0}), {"a": "x", "d": "y"})])
    assert "'b', 'e' and 'c' are missing" in by_shape.findings[0].sentence
    assert mistakes(compared([line(1)], [line(1, {"a": 3.0, "c": 11.0})])) == ["left out"]


def test_parameters_that_are_swapped(compared: Any) -> None:
    found = compared([line(1)], [line(1, {"a": 4.0, "b": 3.0, "c": 12.0})])
    assert mistakes(found) == ["swapped"]
    assert "b.jsonl differs from a.jsonl: 'a' and 'b' are swapped" in found.findings[0].sentence
    assert "--map" not in found.findings[0].sentence
    by_shape = compared([line(1)], [renamed(line(1, {"a": 4.0, "b": 3.0, "c": 12.0}), OTHER)])
    assert "matched by shape and order: if that is wrong, pass their names with --map" in by_shape.findings[0].sentence
    by_map = compared([line(1)], [renamed(line(1, {"a": 4.0, "b": 3.0, "c": 12.0}), OTHER)], names=OTHER)
    assert mistakes(by_map) == ["swapped"]
    assert "--map" not in by_map.findings[0].sentence
    assert mistakes(compared([line(1)], [line(1, {"a": 4.0, "b": 2.0, "c": 12.0})])) == ["other data or loss"]


def test_clipping_after_the_step(compared: Any) -> None:
    moved, later = {"a": 0.9, "b": 1.8, "c": 3.3}, {"a": 0.99, "b": 1.98, "c": 3.03}
    late = [line(1, weights=moved), line(2, weights={"a": 0.8, "b": 1.6, "c": 3.6})]
    right = [line(1), line(2, weights=later)]
    found = compared(right, late)
    assert mistakes(found) == ["clipping after the step"]
    assert "b.jsonl clips after" in found.findings[0].sentence
    assert "a.jsonl clips after" in compared(late, right).findings[0].sentence
    assert "one of the two" in compared(right[:1], late[:1]).findings[0].sentence
    elsewhere = line(1, {**NORMS, "a": 3.5}, weights=moved)
    assert mistakes(compared(right[:1], [elsewhere])) == ["other initial weights"]


def descended(lr: float, coef: float, slope: float = 0.1) -> dict[str, float]:
    """The norms of WEIGHTS after a step by `coef` times gradients that have this cosine with them."""
    return {
        name: math.sqrt(w * w - 2 * lr * coef * slope * w * NORMS[name] + (lr * coef * NORMS[name]) ** 2)
        for name, w in WEIGHTS.items()
    }


@pytest.mark.parametrize("lr", [0.05, 0.2])
def test_the_late_run_is_named_where_its_next_step_goes_back(compared: Any, lr: float) -> None:
    right = [line(1), line(2, weights=descended(lr, 1 / 13))]
    after = {name: weight * (1.01 if name == "c" else 0.9) for name, weight in descended(lr, 1).items()}
    late = [line(1, weights=descended(lr, 1)), line(2, weights=after)]
    assert "b.jsonl clips after" in compared(right, late).findings[0].sentence
    assert "a.jsonl clips after" in compared(late, right).findings[0].sentence
    mixed = [line(1), line(2, weights={"a": 1.01, "b": 1.99, "c": 3.01})]
    assert "one of the two" in compared(mixed, late).findings[0].sentence


def test_other_weights_with_the_same_gradients_are_not_a_step(compared: Any) -> None:
    """Gradients of a linear loss do not depend on the weights, nor any on a bias before a normalisation."""
    began, faster = line(1), line(2, weights={"a": 0.9, "b": 1.8, "c": 3.3})
    assert mistakes(compared([began, line(2)], [began, faster])) == ["another optimizer"]
    assert mistakes(compared([began], [line(1, weights={**WEIGHTS, "a": 5.0})])) == ["other initial weights"]


@pytest.mark.parametrize(("dtype", "framework"), [("float64", "paddle"), ("float64", "jax"), ("float32", "paddle")])
def test_weights_in_float64_beside_paddle_may_differ_by_the_precision_of_settings(
    compared: Any, dtype: str, framework: str
) -> None:
    old = [line(n, dtype=dtype, framework=framework) for n in (1, 2)]
    new = [line(1, dtype=dtype), line(2, dtype=dtype, weights={"a": 0.9, "b": 1.8, "c": 3.3})]
    (cause,) = compared(old, new).findings
    assert cause.kind == "another optimizer"
    assert ("float(np.float32(0.9))" in cause.sentence) == (dtype == "float64" and framework == "paddle")


def test_clipping_twice(compared: Any) -> None:
    again = {name: norm / 13 for name, norm in NORMS.items()}
    assert mistakes(compared([line(1)], [line(1), line(1, again)])) == ["clipped twice"]
    assert mistakes(compared([line(1), line(2)], [line(1), line(2, again), line(3)])) == ["clipped twice"]
    assert mistakes(compared([line(1)], [line(1), line(1)])) == ["left-out clip"]
    both = [line(1), line(1, again)]
    assert mistakes(compared(both, [line(1), line(1, again, threshold=0.5)])) == ["another threshold"]


def test_what_is_not_finite_in_one_run_only(compared: Any) -> None:
    bad = line(1, {**NORMS, "b": 4.0}, norm="nan", coef="nan", nan=2)
    bad["parameters"]["b"]["norm"] = "nan"
    found = compared([line(1)], [bad])
    assert mistakes(found) == ["not finite in one run"]
    assert "b.jsonl are not finite: 2 NaN and 0 inf, in 'b'" in found.findings[0].sentence
    assert compared([bad], [bad]).first is None


def test_gradients_that_are_all_scaled(compared: Any) -> None:
    found = compared([line(1)], [line(1, {name: 8 * norm for name, norm in NORMS.items()})])
    assert mistakes(found) == ["scaled gradients"]
    assert "b.jsonl differs from a.jsonl as when every gradient is 8 times as large" in found.findings[0].sentence
    rounded = {"a": 3.0 / 7 * (1 + 4e-6), "b": 4.0 / 7, "c": 12.0 / 7 * (1 - 4e-6)}
    found = compared([line(1)], [line(1, rounded)])
    assert mistakes(found) == ["scaled gradients"]
    assert "a.jsonl differs from b.jsonl as when every gradient is 6.9999" in found.findings[0].sentence
    assert mistakes(compared([line(1)], [line(1, {"a": 6.0, "b": 8.0, "c": 24.1})])) == ["other data or loss"]


def test_a_mistake_behind_a_difference_that_is_rounding(compared: Any) -> None:
    near = {**NORMS, "a": float(np.nextafter(np.float32(3), np.float32(4)))}
    swapped = {"a": 4.0, "b": 3.0, "c": 12.0}
    found = compared([line(1), line(2)], [line(1, near), line(2, swapped)])
    assert [(first.step, [each.kind for each in why]) for first, why in found.divergences.items()] == [
        (1, ["rounding"]),
        (2, ["swapped"]),
    ]


def test_what_nothing_explains(compared: Any) -> None:
    without_weights = [line(1, norms, weights={}) for norms in (NORMS, {"a": 3.5, "b": 4.0, "c": 12.0})]
    found = compared(*([each] for each in without_weights))
    assert found.exit_code == 1
    assert found.findings == []
    assert mistakes(compared([line(1)], [line(1, {"a": 3.5, "b": 4.0, "c": 12.0})])) == ["other data or loss"]


def test_another_rule(compared: Any) -> None:
    bounded = {**line(1, rule="value", norm_type=None, norm=None, coef=None), "threshold": [-1.0, 1.0]}
    (finding,) = compared([line(1)], [bounded]).findings
    assert finding.sentence == (
        "a.jsonl clips all gradients by their total norm, b.jsonl each number between two bounds"
    )


def test_a_run_that_is_shorter(compared: Any) -> None:
    found = compared([line(1), line(2)], [line(1), line(2), line(3)])
    assert [each.sentence for each in found.findings] == ["a.jsonl ends after 2 of the 3 calls of b.jsonl"]
    assert mistakes(compared([line(1), line(3)], [line(1), line(2), line(3)])) == []


def test_what_explains_two_differences_is_said_once(compared: Any) -> None:
    near = {"a": float(np.nextafter(np.float32(3), np.float32(4))), "b": 4.0}
    printed = sentences.lines(compared([line(1)], [line(1, near)]))
    assert len([each for each in printed if each.startswith("Left out")]) == 1


def test_a_call_that_one_run_lacks(compared: Any) -> None:
    found = compared([line(1), line(2), line(3)], [line(1), line(3)])
    assert (found.first.stage, found.first.step, found.first.a, found.first.b) == ("calls", 2, 1, 0)


def test_a_call_that_fails_in_one_run(compared: Any) -> None:
    failed = {"step": 1, "call": "clip_grad_norm_", "seconds": 0.1, "error": "ValueError: no"}
    failed["step"] = 2
    assert compared([line(1), line(2)], [line(1), failed]).first.stage == "error"
    assert compared([line(1), failed], [line(1), failed]).first is None


# -- a loop over gradients


def loop(step: int, norms: dict[str, float] | None = None, named: bool = True, **changes: Any) -> list[dict[str, Any]]:
    """A call of clip_by_norm for each gradient, of one step."""
    norms = NORMS if norms is None else norms
    calls = [each_of(step, {name: norm}, call="clip_by_norm", **changes) for name, norm in norms.items()]
    return calls if named else [renamed(call, {name: "0"}) for call, name in zip(calls, norms, strict=True)]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("norms", [True, False])
def test_a_loop_is_the_call_that_clips_each_gradient(compared: Any, named: bool, norms: bool) -> None:
    one, many = [each_of(1), each_of(2)], [*loop(1, named=named), *loop(2, named=named)]
    if not norms:
        one, many = ([{**call, "parameters": {}} for call in calls] for calls in (one, many))
    found = compared(one, many)
    assert found.first is None
    assert compared(many, one).first is None
    assert len(found.pairs) == 2
    assert "6 calls that clip one gradient each, compared as 2 calls." in sentences.lines(found)[1]


def test_a_loop_whose_calls_were_counted_as_steps_takes_the_steps_of_the_other_run(compared: Any) -> None:
    counted = [{**call, "step": step} for step, call in enumerate([*loop(1), *loop(2)], start=1)]
    assert compared([each_of(1), each_of(2)], counted).first is None
    assert compared(counted, [each_of(1), each_of(2)]).first is None


def test_a_loop_in_another_order_is_compared_by_name(compared: Any) -> None:
    reverse = dict(reversed(NORMS.items()))
    assert compared([each_of(1)], loop(1, reverse)).first is None
    assert compared([each_of(1)], [each_of(1, reverse)]).first is None


def test_a_loop_by_value_is_the_call_that_clips_all(compared: Any) -> None:
    bounds = {"rule": "value", "norm_type": None, "norm": None, "coef": None, "threshold": [-1.0, 1.0]}
    one, many = {**each_of(1), **bounds}, [{**call, **bounds} for call in loop(1)]
    assert compared([one], many).first is None


def test_mistakes_in_a_loop_are_named(compared: Any) -> None:
    assert mistakes(compared([each_of(1)], loop(1, {"a": 3.0, "c": 12.0}))) == ["left out"]
    other = loop(1, threshold=2.0)
    for call in other:
        call["coef"] = [min(1.0, 2 / call["norm"][0])]
    assert mistakes(compared([each_of(1)], other)) == ["another threshold"]
    twice = compared([each_of(1)], [*loop(1), *loop(1)])
    assert twice.first.stage == "calls"


def test_calls_of_two_optimizers_are_not_folded_into_one(compared: Any) -> None:
    more = {"d": 5.0, "e": 7.0}
    found = compared([each_of(1), each_of(1, more)], [*loop(1), *loop(1, more)])
    assert found.first is None
    assert len(found.pairs) == 2


# -- settings that are NaN


NOT_A_NUMBER = {"threshold": "nan", "coef": "nan", "clipped": True}
"""A framework's own function given a threshold of NaN."""


def with_nan(line_: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**line_, **NOT_A_NUMBER, "watched": True, **changes}


def test_a_threshold_of_nan_is_equal_to_itself(compared: Any) -> None:
    found = compared([with_nan(line(1))], [with_nan(line(1))])
    assert (found.first, found.findings) == (None, [])


@pytest.mark.parametrize("bounds", [["nan", 1.0], ["nan", "nan"]])
def test_bounds_of_nan_are_equal_to_themselves(compared: Any, bounds: list[Any]) -> None:
    by_value = {**line(1), "rule": "value", "threshold": bounds, "norm": None, "coef": None, "norm_type": None}
    assert compared([by_value], [by_value]).first is None
    other = compared([by_value], [{**by_value, "threshold": [0.5, 1.0]}])
    assert other.first.stage == "threshold"


def test_a_threshold_of_nan_differs_from_a_number(compared: Any) -> None:
    found = compared([with_nan(line(1))], [line(1)])
    assert found.first.stage == "threshold"
    assert (math.isnan(found.first.a), found.first.b) == (True, 1.0)
    assert [each.sentence for each in found.findings] == [
        "b.jsonl differs from a.jsonl as with a threshold of 1.0 instead of nan"
    ]


def test_no_norm_is_above_or_below_a_threshold_of_nan(compared: Any) -> None:
    found = compared([with_nan(line(1))], [with_nan(line(1), coef=1.0, clipped=False)])
    assert {each.stage for each in found.divergences} == {"coefficient"}
    assert not found.findings


def test_a_norm_type_of_nan_is_equal_to_itself(compared: Any) -> None:
    watched = {**line(1), "norm_type": "nan", "norm": "nan", "coef": "nan", "watched": True}
    assert compared([watched], [watched]).first is None


def test_calls_in_a_loop_with_a_threshold_of_nan_are_folded(compared: Any) -> None:
    calls = [with_nan(call, coef=["nan"]) for call in loop(1)]
    found = compared([with_nan(each_of(1), coef=["nan"] * len(NORMS))], calls)
    assert found.first is None
    assert len(found.pairs) == 1


# -- facts and rounding


def off(norm: float, ulps: int) -> float:
    """A float32 so many units in the last place above this one."""
    return float((np.float32(norm).view(np.int32) + ulps).view(np.float32))


SMALL = {**NORMS, "a": 2.0**-10}


def test_a_norm_that_cancels_is_rounded_at_the_size_of_the_total_norm(compared: Any) -> None:
    found = compared([line(1, SMALL)], [line(1, {**SMALL, "a": off(2.0**-10, 80)})])
    assert (found.first.parameter, found.first.ulps) == ("a", 80)
    assert found.first.ulps_at_its_size < 1
    assert mistakes(found) == ["rounding"]
    assert "80 ULP of this norm, but only 0.012 ULP of the total norm" in found.findings[0].sentence
    assert found.exit_code == 1
    assert mistakes(compared([line(1)], [line(1, {**NORMS, "a": off(3.0, 800)})])) == ["other data or loss"]


def test_a_weight_is_rounded_at_the_greatest_size_that_it_had(compared: Any) -> None:
    small, other = {**WEIGHTS, "a": 2.0**-10}, {**WEIGHTS, "a": off(2.0**-10, 80)}
    after = compared([line(1), line(2, weights=small)], [line(1), line(2, weights=other)])
    assert mistakes(after) == ["rounding"]
    assert mistakes(compared([line(1, weights=small)], [line(1, weights=other)])) == ["other initial weights"]


@pytest.mark.parametrize(
    ("changes", "stage", "mistake"),
    [
        ({"threshold": 2.0}, "threshold", "another threshold"),
        ({"norm_type": 1.0, "norm": 20.0, "coef": 0.05}, "norm type", "another norm type"),
        ({"coef": 1.0}, "clipped", "not clipped"),
    ],
)
@pytest.mark.parametrize("jump", [80, 2**20])
def test_a_fact_that_differs_is_reported_whatever_differed_before(
    compared: Any, jump: int, changes: dict[str, Any], stage: str, mistake: str
) -> None:
    apart = {**NORMS, "a": off(3.0, jump)}
    ours = [line(step) for step in range(1, 6)]
    found = compared(ours, [line(1), *(line(step, apart) for step in range(2, 5)), line(5, apart, **changes)])
    assert found.first.step == 2
    assert [(each.step, each.stage) for each in found.divergences][-1] == (5, stage)
    assert mistakes(found)[-1] == mistake
    assert "at step 5" in "".join(sentences.describe(found))


def test_a_call_more_behind_rounding_is_reported(compared: Any) -> None:
    near = {**NORMS, "a": off(3.0, 10)}
    found = compared([line(1), line(2), line(3)], [line(1, near), line(2, near), line(2, near), line(3, near)])
    assert [(each.step, each.stage) for each in found.divergences][-1] == (2, "calls")


def test_of_one_call_only_the_difference_beyond_rounding_is_reported(compared: Any) -> None:
    ours = [line(1), line(2)]
    near, faster = {**NORMS, "a": off(3.0, 10)}, {**WEIGHTS, "a": off(1.0, 3), "c": 3.1}
    found = compared(ours, [line(1, near), line(2, near, weights=faster)])
    assert [(each.step, each.stage, each.parameter) for each in found.divergences] == [
        (1, "gradient", "a"),
        (2, "weight", "c"),
    ]
    missing = compared(ours[:1], [line(1, {"a": off(3.0, 1), "b": 4.0})])
    assert mistakes(missing) == ["left out"]


@pytest.mark.parametrize("rule", ["each", "value"])
@pytest.mark.parametrize("order", [0, -1, 1e-300])
def test_gradients_whose_total_norm_has_no_number_are_compared_by_themselves(
    compared: Any, rule: str, order: float
) -> None:
    calls = [
        each_of(1, norm_type=order, watched=True, rule=rule),
        each_of(1, {**NORMS, "a": 3.5}, norm_type=order, watched=True, rule=rule),
    ]
    assert compared(calls[:1], calls[1:]).first.parameter == "a"


def test_rounding_that_grows_is_explained_and_a_jump_is_not(compared: Any) -> None:
    grown = [line(step, {**NORMS, "a": off(3.0, ulps)}) for step, ulps in enumerate((60, 400, 3000), start=1)]
    ours = [line(step) for step in range(1, 5)]
    found = compared(ours, [*grown, line(4)])
    assert mistakes(found) == ["rounding", "rounding that has grown"]
    swapped = line(4, {"a": 4.0, "b": 3.0, "c": 12.0})
    assert mistakes(compared(ours, [*grown, swapped])) == ["rounding", "rounding that has grown", "swapped"]
    assert mistakes(compared(ours[:2], [line(1), {**grown[2], "step": 2}])) == ["other data or loss"]


# -- the command


def test_the_command_prints_and_exits_by_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(written(tmp_path / "a.jsonl", [line(1), line(2)]))
    b = str(written(tmp_path / "b.jsonl", [line(1), line(2, threshold=2.0)]))
    assert cli.main(["compare", a, a]) == 0
    assert "The runs are the same: 2 calls." in capsys.readouterr().out
    assert cli.main(["compare", a, b]) == 1
    printed = capsys.readouterr().out
    assert "The runs first differ at step 2: threshold is 1.0 and 2.0." in printed
    assert "Another threshold: b.jsonl differs from a.jsonl as with a threshold of 2.0 instead of 1.0" in printed
    assert "Norms are equal in all 2 calls that were compared." in printed
    assert "To have the same threshold, pass the same number." in printed
    assert "Coefficients differ from step 2 on, by at most" in printed
    assert cli.main(["compare", a, b, "--json"]) == 1
    (parted,) = json.loads(capsys.readouterr().out)["partings"]
    assert (parted["step"], parted["stage"], parted["findings"][0]["mistake"]) == (2, "threshold", "another threshold")


def test_the_command_refuses_what_it_cannot_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = str(written(tmp_path / "a.jsonl", [line(1)]))
    assert cli.main(["compare", a, str(tmp_path / "none")]) == 2
    assert cli.main(["compare", a, a, "--map", str(tmp_path / "none")]) == 2
    assert cli.main(["compare", a, a, "--max-ulp", "nan"]) == 2
    assert "--max-ulp is nan. Pass 0 or more." in capsys.readouterr().err


EMPTY = {"step": 1, "call": "clip_grad_norm_", "seconds": 0.1}
BOUNDED = {**line(1, rule="value", norm_type=None, norm=None, coef=None, parameters={}), "threshold": [-1.0, 1.0]}


@pytest.mark.parametrize("json_option", [[], ["--json"], ["--format", "json"]])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (
            [],
            [],
            "a.jsonl: No clip calls were recorded, neither of unified_clip nor of",
        ),
        ([], [line(1)], "a.jsonl: No clip calls were recorded"),
        (
            [line(1)],
            [],
            "b.jsonl: No clip calls were recorded, neither of",
        ),
        ([EMPTY], [EMPTY], "a.jsonl: None of the 1 recorded calls has a result: 1 got no gradient. Record calls"),
        (
            [line(1)],
            [EMPTY, {**EMPTY, "error": "ValueError: no"}],
            "b.jsonl: None of the 2 recorded calls has a result: 1 raised an error (ValueError: no), 1 got no",
        ),
        ([BOUNDED], [BOUNDED], "No numbers were compared. Clips by value record none without --norms. Record both"),
    ],
)
def test_runs_that_have_nothing_to_compare_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], a: Any, b: Any, message: str, json_option: list[str]
) -> None:
    files = [str(written(tmp_path / name, lines)) for name, lines in (("a.jsonl", a), ("b.jsonl", b))]
    assert cli.main(["compare", *files, *json_option]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


def test_thresholds_that_were_not_compared_are_reported(compared: Any) -> None:
    known, unknown = line(1), {**line(1), "threshold": None}
    assert sentences.describe(compared([known, line(2)], [unknown, line(2)])) == [
        "The runs are the same: 2 calls.",
        "Thresholds were not compared in 1 of 2 calls: at least one run did not record a number.",
    ]


def test_runs_without_norms_say_how_to_see_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {**HEADER, "norms": False}
    a = str(written(tmp_path / "a.jsonl", [line(1, parameters={})], plain))
    b = str(written(tmp_path / "b.jsonl", [line(1, parameters={}, norm=14.0)], plain))
    assert cli.main(["compare", a, b]) == 1
    printed = capsys.readouterr().out
    assert "Unexplained: no known cause fits these numbers, or more than one does." in printed
    assert "Record both runs with norms=True" in printed


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ([line(1, process=1), line(2, process=1)], "It has 2 processes, with the same norms and coefficients."),
        (
            [line(1, process=1), line(2, process=1, norm=5.0)],
            "Process 1 differs from it at step 2: norm is 13.0 and 5.0.",
        ),
        ([line(1, process=1)], "Another one has 1 call."),
    ],
)
def test_processes_of_one_run_are_compared_with_the_first(
    tmp_path: Path, other: list[dict[str, Any]], sentence: str
) -> None:
    header = {**HEADER, "schema": 2, "processes": [{"rank": 0, "ranks": 2}, {"rank": 1, "ranks": 2}]}
    path = written(tmp_path / "a.jsonl", [line(1), line(2), *other], header)
    comparison = compare.compare(path, path)
    assert comparison.first is None
    assert sentence in sentences.lines(comparison)[0]


def test_norms_that_are_those_of_a_later_step(compared: Any) -> None:
    norms = [{"a": 3.0 + step, "b": 4.0, "c": 12.0} for step in range(6)]
    all_steps = [line(step, each) for step, each in enumerate(norms, start=1)]
    ahead = [line(step, each) for step, each in enumerate(norms[1:], start=1)]
    found = compared(all_steps, ahead)
    assert mistakes(found)[0] == "shifted step"
    assert "the norms of b.jsonl are those of a.jsonl 1 step later" in found.findings[0].sentence
    assert "a.jsonl are those of b.jsonl 1 step later" in compared(ahead, all_steps).findings[0].sentence
    same = [line(step) for step in range(1, 5)]
    assert "shifted step" not in mistakes(compared([line(1, norms[3]), *same[1:]], same))


NOT_NEAR = "the exact norms are equal (13), but "


@pytest.mark.parametrize(
    ("norms", "kind", "sentence"),
    [
        ({"passed_norm": 12.5}, "given norm", "b.jsonl passes the norm 12.5 to clip_by_global_norm. Compare how"),
        (
            {"passed_norm": 12.5, "stored_norm": 12.5},
            "rows",
            "b.jsonl passes the norm 12.5 to clip_by_global_norm, in which",
        ),
        ({"passed_norm": 12.5, "stored_norm": 12.0}, "given norm", "b.jsonl passes the norm 12.5"),
        ({"stored_norm": 12.5, "watched": True}, "rows", "clip_by_global_norm of b.jsonl clips by 12.5: it does not"),
    ],
)
def test_a_norm_that_is_not_that_of_the_gradients(compared: Any, norms: Any, kind: str, sentence: str) -> None:
    other = {**line(1), **norms, "coef": 1 / 12.5}
    for found in (compared([line(1)], [other]), compared([other], [line(1)])):
        (finding,) = found.findings
        assert finding.kind == kind
    assert NOT_NEAR + sentence in compared([line(1)], [other]).findings[0].sentence
    assert compared([other], [{**other, "passed_norm": None, "returned_norm": 12.5}]).first is None


def test_norms_of_both_runs_that_are_not_those_of_the_gradients(compared: Any) -> None:
    rough, passed = (
        {**line(1), key: norm, "coef": 1 / norm} for key, norm in (("returned_norm", 12.5), ("passed_norm", 12.0))
    )
    (finding,) = compared([{**rough, "watched": True}], [passed]).findings
    assert finding.kind == "given norm"
    loop = [{**line(1), "rule": "each", "norm": [3.0], "coef": [0.4], "parameters": {}, "stored_norm": [2.5]}]
    (finding,) = compared(loop, [{**loop[0], "stored_norm": None, "coef": [1 / 3]}]).findings
    assert finding.kind == "rows"


NO_FACTOR = {"watched": True, "coef": None, "clipped": True}


def test_a_coefficient_that_nothing_explains_is_reported_in_words(compared: Any) -> None:
    unknown = {**line(1), **NO_FACTOR}
    for both, side in (([[line(1)], [unknown]], "second"), ([[unknown], [line(1)]], "first")):
        found = compared(*both, max_ulp=1e9)
        assert (found.first.stage, found.findings) == ("coefficient", [])
        text = "\n".join(sentences.lines(found))
        assert f"no coefficient explains the clipped gradients of the {side} run. In the " in text
        assert "Unexplained: " in text
        assert "NaN" not in text
        assert "nan" not in text


def test_coefficients_that_are_unknown_are_not_called_equal(compared: Any) -> None:
    found = compared([line(1), {**line(2), **NO_FACTOR}], [line(1), {**line(2), **NO_FACTOR}])
    assert found.first is None
    note = "Not all coefficients were compared in 1 of 2 calls: in at least one run, no factor explains"
    assert any(each.startswith(note) for each in sentences.lines(found))
    (agreement,) = [each for each in found.agreements if each.stage == "coefficient"]
    assert agreement.compared == 1
    unknown = {"watched": True, "coef": None, "clipped": None, "threshold": None}
    assert compared([line(1)], [{**line(1), **unknown}]).first is None


@pytest.mark.parametrize(("sparse", "kind"), [(1, "rows"), (0, "inexact norm")])
def test_a_norm_that_a_framework_returns_inexactly(compared: Any, sparse: int, kind: str) -> None:
    off_by = {"watched": True, "returned_norm": 12.5, "coef": 1 / 12.5, "sparse": sparse}
    (finding,) = compared([line(1)], [{**line(1), **off_by}]).findings
    assert finding.kind == kind
    assert "the exact norms are equal (13), but clip_by_global_norm of b.jsonl returns 12.5" in finding.sentence


def step_line(step: int, **changes: Any) -> dict[str, Any]:
    return {"step": step, "optimizer": "torch.optim.Adam", "settings": {"lr": 0.1, "eps": 1e-8}, **changes}


def with_steps(lines: Iterable[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    return [each for clip in lines for each in (clip, step_line(clip["step"], **changes))]


def test_settings_without_an_effect_are_no_mistake(compared: Any) -> None:
    other = {"settings": {"lr": 0.1, "eps": 1e-7}}
    clips, moved = [line(1), line(2)], [line(1), line(2, {**NORMS, "a": 3.5})]
    assert mistakes(compared(with_steps(clips), with_steps(moved, **other))) == ["another optimizer"]
    found = compared(with_steps([*clips, line(3)]), with_steps(clips, **other) + with_steps([line(3)]))
    assert mistakes(found) == []
    last = with_steps(clips[:1]) + with_steps(clips[1:], **other)
    assert mistakes(compared(with_steps(clips), last)) == ["another optimizer"]  # no later number shows the effect


@pytest.mark.parametrize(("optimizer", "hint"), [("keras.optimizers.Adam", True), ("paddle.optimizer.Adam", False)])
def test_weights_beside_adam_of_keras_may_differ_by_the_rounding_of_betas(
    compared: Any, optimizer: str, hint: bool
) -> None:
    settings = {"settings": {"betas": [0.9, 0.999], "eps": 0}}
    old = with_steps([line(1), line(2)], optimizer=optimizer, **settings)
    new = with_steps([line(1), line(2, weights={"a": 0.9, "b": 1.8, "c": 3.3})], **settings)
    for first, second in ((old, new), (new, old)):
        (cause,) = compared(first, second).findings
        assert cause.kind == "another optimizer"
        assert ("keras.optimizers.Adam computes the bias correction from betas" in cause.sentence) == hint


def test_groups_of_parameters_may_have_another_order(compared: Any) -> None:
    clips, decays = [line(1)], ([0.1, 0.0], [0.0, 0.1], [0.1, 0.1])
    first, reordered, other = (with_steps(clips, settings={"weight_decay": decay}) for decay in decays)
    assert compared(first, reordered).first is None
    assert mistakes(compared(first, other)) == ["another optimizer"]


def test_groups_that_decay_other_parameters_are_another_optimizer(compared: Any) -> None:
    """Only if both optimizers change equally many elements: a rank that has shards changes fewer."""
    clips, moved = [line(1), line(2)], [line(1), line(2, weights={"a": 0.9, "b": 1.8, "c": 3.3})]
    old, same, other, shards = (
        with_steps(lines, settings={"weight_decay": [0.1, 0.0]}, decayed=counts)
        for lines, counts in ((clips, [6, 9]), (clips, [6, 9]), (moved, [7, 9]), (moved, [3, 5]))
    )
    assert compared(old, same).first is None
    (cause,) = compared(old, other).findings
    assert "weight decay of 7 of 9 elements instead of 6. Compare which parameters have weight decay" in cause.sentence
    assert "elements" not in str(compared(old, shards).findings)


def test_coefficients_alone_do_not_show_an_effect_of_the_optimizer(compared: Any) -> None:
    old, new = ([line(1), line(2, eps=eps), line(3)] for eps in (0.0, 1e-2))
    other = {"settings": {"lr": 0.1, "weight_decay": 0.0}}
    found = compared(with_steps(old, settings={"lr": 0.1, "weight_decay": 0.02}), with_steps(new, **other))
    assert mistakes(found) == ["another eps"]


def test_a_small_difference_after_another_optimizer_is_not_called_grown_rounding(compared: Any) -> None:
    weights = [{**WEIGHTS, "a": off(1.0, ulps)} for ulps in (0, 30, 100)]
    new = [line(step, weights=each) for step, each in enumerate(weights, start=1)]
    old = [line(step) for step in (1, 2, 3)]
    other = {"settings": {"lr": 0.1, "weight_decay": 0.01}}
    assert "rounding that has grown" in mistakes(compared(with_steps(old), with_steps(new)))
    found = compared(with_steps(old, settings={"lr": 0.1, "weight_decay": 0.0}), with_steps(new, **other))
    assert "another optimizer" in mistakes(found)
    assert "rounding that has grown" not in mistakes(found)


def test_steps_of_a_graph_have_the_number_of_clips_before_them(tmp_path: Path) -> None:
    lines = [step_line(1, clips=1), line(1), step_line(1, clips=1), line(2)]
    steps = runs.read(written(tmp_path / "a.jsonl", lines)).optimizer_steps
    assert [step.calls for step in steps] == [1, 2]


@pytest.mark.parametrize("counts_calls", [True, False])
def test_a_loop_of_clips_by_value_is_another_rule_than_one_global_clip(compared: Any, counts_calls: bool) -> None:
    by_value = {
        "rule": "value",
        "threshold": [-0.5, 0.5],
        "norm_type": None,
        "norm": None,
        "coef": None,
        "call": "clip",
    }
    loop = [{**line(step, {name: norm}), **by_value} for step in (1, 2) for name, norm in NORMS.items()]
    if counts_calls:
        loop = [{**each, "step": number} for number, each in enumerate(loop, start=1)]
    once = [line(1, count=3), line(2, count=3)]
    for lines in ((loop, once), (once, loop)):
        found = compared(*lines)
        assert mistakes(found) == ["another rule"]
        assert [len(run.lines) for run in (found.a, found.b)] == [2, 2]


def test_a_cause_is_explained_once_and_then_named(compared: Any) -> None:
    found = compared([line(1), line(2)], [line(1, threshold=2.0), line(2, threshold=2.0)])
    (first, causes), again = *found.divergences.items(), dataclasses.replace(found.first, step=2)
    both = dataclasses.replace(found, divergences={first: causes, again: causes})
    printed = sentences.describe(both)
    assert sum(sentence.startswith("Another threshold: ") for sentence in printed) == 1
    assert printed[printed.index("Another threshold, as at step 1.") - 1].startswith(
        "They differ by more than rounding"
    )


def test_thresholds_that_had_no_effect_do_not_explain_later_differences(compared: Any) -> None:
    small = {name: norm / 100 for name, norm in NORMS.items()}
    moved = {name: weight * 2 for name, weight in WEIGHTS.items()}
    a = [line(1, small), line(2, small)]
    b = [line(1, small, threshold=2.0), line(2, small, threshold=2.0, weights=moved)]
    printed = sentences.lines(compared(a, b))
    expected = "They do not explain the other differences: weights from step 2 on. Compare the optimizers"
    assert expected in printed[-1]
    same_weights = [line(1, small, threshold=2.0), line(2, small, threshold=2.0)]
    assert not any("had no effect" in sentence for sentence in sentences.lines(compared(a, same_weights)))
    clipped = [line(1), line(2)], [line(1, threshold=2.0), line(2, threshold=2.0, weights=moved)]
    assert not any("had no effect" in sentence for sentence in sentences.lines(compared(*clipped)))


def test_steps_of_which_only_the_first_are_recorded_are_not_compared(compared: Any) -> None:
    clips = [line(step) for step in range(1, 5)]
    partial = with_steps(clips[:1], settings={"lr": 0.2}) + clips[1:]
    assert compared(with_steps(clips), partial).first is None
    assert mistakes(compared(with_steps(clips), with_steps(clips[:3], settings={"lr": 0.1}) + clips[3:])) == []
