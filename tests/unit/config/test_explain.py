"""`explain` describes what a configuration does to gradients, and how two configurations differ."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_clip import ClipConfig
from unified_clip.config.explain import compare, describe, examples

PLAIN = {"rule": "global_norm", "threshold": 1.0}
NOT_FINITE = "the result if the norm is not finite"


def sentences(**settings: Any) -> str:
    return " ".join(describe.sentences(ClipConfig(**settings)))


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        (PLAIN, ["Multiply all gradients by min(1, c / (n + 1e-06)) with c = 1.", "total norm", "PyTorch's"]),
        (PLAIN, ["finite gradients become 0"]),
        (PLAIN | {"family": "paddle"}, ["min(1, c / n)", "the rule of Paddle, optax and MaxText"]),
        (PLAIN | {"family": "tensorflow"}, ["min(1, c / n)", "If the norm is NaN or infinite, every gradient becomes"]),
        (PLAIN | {"eps": 0.5}, ["(n + 0.5)", "PyTorch's rule, with eps = 0.5."]),
        ({"rule": "norm", "threshold": 2.0}, ["Multiply each gradient by", "n is its own norm"]),
        (PLAIN | {"norm_type": "inf"}, ["(the largest magnitude)"]),
        (PLAIN | {"norm_type": 1}, ["(the sum of magnitudes)"]),
        (PLAIN | {"norm_type": 3.5}, ["(of order 3.5)"]),
        ({"rule": "value", "threshold": 0.5}, ["Clip each element to [-c, c] with c = 0.5. NaN stays NaN."]),
        ({"rule": "value", "min": -1.0, "max": 2.0}, ["Clip each element to [-1, 2]."]),
        ({"rule": "none"}, ["No gradient is clipped. Only the norm is measured."]),
        (PLAIN | {"threshold": "inf"}, ["with c = inf, which clips nothing"]),
        (PLAIN | {"nonfinite": "raise"}, ["an error is raised and no gradient changes"]),
        (PLAIN | {"nonfinite": "skip"}, ["the step is skipped"]),
        (PLAIN | {"nonfinite": "zero"}, ["all gradients become 0"]),
        (PLAIN | {"exclude": ["*.bias"]}, ["Parameters named *, except *.bias: Multiply all", "not part of the norm"]),
        (
            PLAIN | {"groups": [{"name": "head", "include": ["head.*"], "rule": "value", "threshold": 3.0}]},
            ["Group 'head', parameters named head.*: Clip each element", "All other parameters: Multiply all"],
        ),
        (
            PLAIN | {"exclude": ["*.bias"], "groups": [{"name": "head", "include": ["head.*"], "threshold": 3.0}]},
            [
                "The rules are for parameters named *, except *.bias. Other parameters are not clipped",
                "Group 'head', parameters named head.*: Multiply all",
                "All other included parameters: Multiply all",
            ],
        ),
        (
            PLAIN | {"threshold": {"schedule": "linear", "start": 10, "end": 1, "steps": 90, "begin": 10}},
            ["c = 10 until step 10, then linearly to 1 at step 100"],
        ),
        (
            PLAIN | {"threshold": {"schedule": "piecewise", "values": [4, 2, 1], "boundaries": [5, 9]}},
            ["c = 4 at first, 2 from step 5 on, 1 from step 9 on"],
        ),
    ],
)  # fmt: skip
def test_a_configuration_is_described_in_words(settings: dict[str, Any], texts: list[str]) -> None:
    for text in texts:
        assert text in sentences(**settings)


@pytest.mark.parametrize("rule", ["zclip", "ema_ratio"])
def test_a_warm_up_without_a_threshold_is_described(rule: str) -> None:
    config = ClipConfig(rule="global_norm", adaptive={"rule": rule, "warmup_steps": 3})
    texts = describe.sentences(config)
    assert "Nothing is clipped during the 3 warm-up steps, because threshold is not set." in texts
    clip = config.clipper()
    assert [clip([np.array([norm])])[0][0] for norm in (1.0, 1.0, 9.0)] == [1.0, 1.0, 9.0]
    limited = ClipConfig(rule="global_norm", threshold=1.0, adaptive={"rule": rule})
    other_configs = ClipConfig(rule="norm", adaptive={"rule": "adagc"}), ClipConfig(rule="global_norm", threshold=1.0)
    for other_config in (limited, *other_configs):
        assert not any("warm-up" in text for text in describe.sentences(other_config))


def test_no_sentence_about_nan_is_repeated() -> None:
    assert sentences(rule="value", threshold=0.5).count("NaN stays NaN.") == 1
    assert "NaN" not in sentences(rule="none")
    assert sentences(rule="none", nonfinite="skip").count("NaN") == 1


def test_examples_have_norms_below_at_and_above_the_threshold() -> None:
    explanation = compare.explain(ClipConfig(rule="global_norm", threshold=2.0, family="paddle"), "a")
    assert [each.norm for each in explanation.worked] == [1.0, 2.0, 20.0]
    assert [round(each.coef, 6) for each in explanation.worked] == [1.0, 1.0, 0.1]
    assert [round(each.norm_clipped, 6) for each in explanation.worked] == [1.0, 2.0, 2.0]
    assert np.allclose(explanation.worked[2].results["dense.weight"], np.array([3, 4]) * 2 / 13)


def test_pytorch_and_tensorflow_differ_by_eps() -> None:
    torch, tensorflow = ClipConfig(**PLAIN), ClipConfig(**PLAIN, family="tensorflow")
    comparison = compare.compare(torch, tensorflow, ["PyTorch's", "TensorFlow's"])
    assert not comparison.same
    assert {each.about for each in comparison.differences} == {"eps", "the result if the norm is not finite"}
    below, at, above, infinite = comparison.compared
    assert below.distance == 0
    assert at.distance == pytest.approx(1e-6, rel=0.1)
    assert above.distance == pytest.approx(1e-7, rel=0.5)
    assert "identical" in below.sentence
    assert "same total norm; the clipped norm of PyTorch's is lower by 1e-06 times that of" in at.sentence
    expected = "gradients with an infinity: same total norm; results differ in NaN or infinite elements"
    assert infinite.sentence == expected
    assert comparison.summary.count(";") >= 3


def test_equal_configurations_in_other_words_are_the_same() -> None:
    comparison = compare.compare(ClipConfig(**PLAIN), ClipConfig(**PLAIN, family="pytorch", eps=1e-6), ["a", "b"])
    assert comparison.same
    assert comparison.differences == []
    assert comparison.summary == "Both configurations have the same effect."


def test_every_difference_is_named() -> None:
    a = ClipConfig(**PLAIN)
    for changed, about in (
        ({"rule": "norm", "threshold": 1.0}, "rule"),
        (PLAIN | {"threshold": 2.0}, "threshold"),
        (PLAIN | {"norm_type": 1}, "norm"),
        (PLAIN | {"nonfinite": "skip"}, "the result if the norm is not finite"),
        (PLAIN | {"exclude": ["*.bias"]}, "parameters"),
        (PLAIN | {"groups": [{"name": "g", "include": ["x"], "threshold": 3.0}]}, "group 'g'"),
        ({"rule": "value", "min": -2.0, "max": 1.0}, "threshold"),
    ):
        comparison = compare.compare(a, ClipConfig(**changed), ["a", "b"])
        assert about in [each.about for each in comparison.differences], about
        assert not comparison.same


def head(**settings: Any) -> dict[str, Any]:
    return {"name": "head", "include": ["head.*"], **settings}


NOT_THE_SAME = {
    "patterns of a group": (
        PLAIN | {"groups": [head(threshold=9.0)]},
        PLAIN | {"groups": [head(threshold=9.0) | {"include": ["tail.*"]}]},
        "group 'head'",
    ),
    "the order of groups that overlap": (
        PLAIN | {"groups": [head(threshold=9.0), {"name": "b", "include": ["*.norm"], "threshold": 3.0}]},
        PLAIN | {"groups": [{"name": "b", "include": ["*.norm"], "threshold": 3.0}, head(threshold=9.0)]},
        "order of the groups",
    ),
    "a group's threshold": (
        PLAIN | {"groups": [head(threshold=9.0)]},
        PLAIN | {"groups": [head(threshold=8.0)]},
        "group 'head'",
    ),
    "a group with the rule of all the rest": (
        PLAIN,
        PLAIN | {"groups": [head(threshold=1.0)]},
        "group 'head'",
    ),
    "a digit": (PLAIN, PLAIN | {"threshold": 1.00001}, "threshold"),
    "family and skip": (PLAIN, PLAIN | {"nonfinite": "skip"}, NOT_FINITE),
    "skip and zero": (PLAIN | {"nonfinite": "skip"}, PLAIN | {"nonfinite": "zero"}, NOT_FINITE),
    "skip and raise": (PLAIN | {"nonfinite": "skip"}, PLAIN | {"nonfinite": "raise"}, NOT_FINITE),
    "what is excluded": (PLAIN, PLAIN | {"exclude": ["*.norm"]}, "parameters"),
    "later steps": (
        PLAIN,
        PLAIN | {"threshold": {"schedule": "linear", "start": 1, "end": 2, "steps": 9, "begin": 100}},
        "threshold",
    ),
    "steps on the way": (
        PLAIN | {"threshold": {"schedule": "linear", "start": 1, "end": 2, "steps": 100}},
        PLAIN | {"threshold": {"schedule": "cosine", "start": 1, "end": 2, "steps": 100}},
        "threshold",
    ),
    "a later value": (PLAIN, PLAIN | {"threshold": {"schedule": "piecewise", "values": [1, 2], "boundaries": [7]}},
                      "threshold"),
    "a lower bound": ({"rule": "value", "min": -5.0, "max": 1.0}, {"rule": "value", "min": -4.0, "max": 1.0},
                      "threshold"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_THE_SAME)
def test_an_example_shows_each_difference(name: str) -> None:
    left, right, about = NOT_THE_SAME[name]
    for a, b in ((left, right), (right, left)):
        comparison = compare.compare(ClipConfig(**a), ClipConfig(**b), ["a", "b"])
        assert not comparison.same
        assert [each.about for each in comparison.differences] == [about]
        assert max(each.distance for each in comparison.compared) > 0


def test_examples_with_equal_results_do_not_hide_a_difference() -> None:
    a, b = ClipConfig(**PLAIN), ClipConfig(**PLAIN | {"threshold": math.nextafter(1, 2)})
    comparison = compare.compare(a, b, ["a", "b"])
    assert max(each.distance for each in comparison.compared) == 0
    end = "the results are identical, but the configurations differ: threshold (1 / 1.0000000000000002)."
    assert comparison.summary.endswith(end)


@pytest.mark.parametrize("nonfinite", ["raise", "skip", "zero"])
def test_families_with_the_same_eps_are_the_same_if_nonfinite_norms_are_handled(nonfinite: str) -> None:
    a, b = (ClipConfig(**PLAIN | {"nonfinite": nonfinite, "family": family}) for family in ("tensorflow", "paddle"))
    comparison = compare.compare(a, b, ["a", "b"])
    assert (comparison.same, comparison.differences) == (True, [])


def test_a_schedule_that_never_changes_is_a_number() -> None:
    comparison = compare.compare(
        ClipConfig(**PLAIN), ClipConfig(**PLAIN | {"threshold": {"schedule": "constant", "value": 1}}), ["a", "b"]
    )
    assert (comparison.same, comparison.differences) == (True, [])


LABELS = {
    "a norm": (PLAIN, 2, False),
    "excluded names": (PLAIN | {"exclude": ["*.bias", "head.*"]}, 2, False),
    "order 1": (PLAIN | {"norm_type": 1}, 1, False),
    "the largest": (PLAIN | {"norm_type": "inf", "threshold": 1e-40}, math.inf, False),
    "each tensor": ({"rule": "norm", "threshold": 3e38, "norm_type": 3.5}, 3.5, True),
    "each element": ({"rule": "value", "threshold": 7.0}, math.inf, False),
}


@pytest.mark.parametrize("label", LABELS)
def test_labels_are_true(label: str) -> None:
    settings, order, each_tensor = LABELS[label]
    cases = examples.examples([ClipConfig(**settings)])
    assert len(cases) == 3
    for example, share in zip(cases, (0.5, 1, 10), strict=True):
        arrays = [array.astype(np.float64) for array in example.gradients.values()]
        assert len(arrays) == 2
        size = float(example.of.partition(" (")[0].split()[-1])
        assert size == pytest.approx(float(settings["threshold"]) * share, rel=1e-5)
        largest = max(np.abs(array).max() for array in arrays)
        sizes = [largest * np.linalg.norm(part.ravel() / largest, order)
                 for part in (arrays if each_tensor else [np.concatenate(arrays)])]  # fmt: skip
        assert sizes == [pytest.approx(size, rel=1e-5)] * len(sizes)


def test_the_clipped_gradients_of_an_example_have_the_norm_of_its_label() -> None:
    excluding = ClipConfig(**PLAIN, exclude=["*.bias"])
    assert [each.norm for each in compare.explain(excluding, "a").worked] == pytest.approx([0.5, 1.0, 10.0])


def test_examples_lie_around_all_thresholds() -> None:
    comparison = compare.compare(ClipConfig(**PLAIN), ClipConfig(**PLAIN | {"threshold": 4.0}), ["a", "b"])
    assert [each.of for each in comparison.compared] == [
        "gradients of norm 0.5 (half the smallest threshold)",
        "gradients of norm 1 (at one threshold)",
        "gradients of norm 4 (at one threshold)",
        "gradients of norm 40 (ten times the largest threshold)",
    ]
    assert [each.distance for each in comparison.compared] == pytest.approx([0, 1e-6, 0.75, 0.75], rel=1e-1)


@pytest.mark.nightly
def test_examples_have_the_same_order_in_every_process() -> None:
    code = (
        "from unified_clip import ClipConfig; from unified_clip.config.explain import examples\n"
        "rules = [('global_norm', {}), ('norm', {}), ('norm', {'norm_type': 1}), ('value', {})]\n"
        "configs = [ClipConfig(rule=rule, threshold=1.0, **more) for rule, more in rules]\n"
        "print([example.of for example in examples.examples(configs)])"
    )
    orders = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **seed}
        ).stdout
        for seed in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}, {"PYTHONHASHSEED": "3"})
    }
    assert len(orders) == 1


@pytest.mark.parametrize("threshold", [0.0, "inf", 1e308])
def test_thresholds_of_0_and_infinity_have_examples(threshold: Any) -> None:
    assert compare.explain(ClipConfig(rule="global_norm", threshold=threshold), "a").worked


@pytest.mark.parametrize("pattern", ["head.*", "h?ad", "[abc]ead.*", "head", "*.[!x]ead", "**", "{odd}", "[", "[]]a"])
def test_patterns_have_names(pattern: str) -> None:
    config = ClipConfig(**PLAIN, groups=[{"name": "g", "include": [pattern], "threshold": 77.0}])
    assert any("norm 77 " in each.of for each in examples.examples([config]))


def test_many_patterns_have_examples() -> None:
    groups = [{"name": str(i), "include": [f"layer{i}.*"]} for i in range(100)]
    assert len(examples.examples([ClipConfig(**PLAIN, groups=groups)])) == 3 * 101 + 1


NAN, INF = math.nan, math.inf
SKIP, ZERO, RAISE = (PLAIN | {"nonfinite": nonfinite} for nonfinite in ("skip", "zero", "raise"))
TENSORFLOW = PLAIN | {"family": "tensorflow"}
VALUE = {"rule": "value"}

EFFECTS = [
    # the gradient, two configurations, their outcomes, and the distance of their results
    (
        [200.0, 1.0],
        {"rule": "value", "threshold": 100.0},
        {"rule": "value", "threshold": 75.0},
        "clipped clipped",
        0.25,
    ),
    ([INF, 1.0], PLAIN, TENSORFLOW, "clipped clipped", INF),
    ([INF, 1.0], TENSORFLOW, TENSORFLOW, "clipped clipped", 0.0),
    ([NAN, 1.0], PLAIN, RAISE, "clipped raises", INF),
    ([NAN, 1.0], SKIP, ZERO, "skipped clipped", INF),
    ([NAN, 1.0], SKIP, SKIP, "skipped skipped", 0.0),
    ([0.5, 0.5], PLAIN, {"rule": "none"}, "unchanged unchanged", 0.0),
]


@pytest.mark.parametrize(("gradient", "a", "b", "outcomes", "distance"), EFFECTS)
def test_outcomes_and_distances(
    gradient: list[float], a: dict[str, Any], b: dict[str, Any], outcomes: str, distance: float
) -> None:
    example = examples.Example("gradients", {"w": np.array(gradient)})
    row = compare._compare(ClipConfig(**a), ClipConfig(**b), example, ["a", "b"])
    assert (f"{row.a.outcome} {row.b.outcome}", row.distance) == (outcomes, distance)
    for result in (row.a, row.b):
        assert (result.results is None) == (result.outcome in ("skipped", "raises"))
        assert math.isnan(result.norm) == math.isnan(sum(gradient))
    if "skipped clipped" in outcomes:
        assert row.sentence == "gradients: a skips the step, b does not"


def test_only_the_first_numbers_are_part_of_the_data() -> None:
    example = examples.Example("gradients", {name: np.arange(5.0) for name in "abcde"})
    worked, _ = compare._apply(ClipConfig(rule="none"), example)
    assert worked.results == {name: [0.0, 1.0, 2.0] for name in "abc"}
    assert worked.norm_clipped == pytest.approx(math.sqrt(5 * 30))  # of all


def test_json_has_words_for_inf_and_nan() -> None:
    data = compare.as_data(compare.compare(ClipConfig(**PLAIN), ClipConfig(**SKIP), ["a", "b"]))
    row = json.loads(json.dumps(data, allow_nan=False))["compared"][-1]
    assert (row["a"]["norm"], row["distance"]) == ("inf", "inf")
    assert row["a"]["results"]["dense.weight"] == ["nan", 0.0]
    assert row["b"]["results"] is None


@given(st.floats(allow_nan=False, width=64))
def test_different_numbers_have_different_texts(value: float) -> None:
    assert float(describe.number(value)) == value


def test_a_trainers_steps_that_are_not_finite_replace_the_sentence_about_the_rule(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"gradient_clipping": 1.0, "bf16": {"enabled": true, "check_grad_overflow": true}}')
    trainer, rule = ClipConfig.import_from(file, "deepspeed"), ClipConfig(rule="global_norm", threshold=1.0)
    skips = "With bf16.check_grad_overflow, DeepSpeed skips a step if the norm is not finite."
    explanation = compare.explain(trainer, "ds.json")
    assert (explanation.sentences[-1], explanation.notes) == (skips, [])
    compared = compare.compare(trainer, rule, ["ds.json", "clip.toml"])
    assert not compared.telling
    assert compared.verdict.endswith("but the results of all examples are identical.")
    assert [(each.a, each.b) for each in compared.differences] == [(skips, "clipped by the rule")]
    assert compare.compare(trainer, trainer, ["a", "b"]).same
    assert not ClipConfig.loads(trainer.dumps()).not_finite, "a clip by the saved configuration follows the rule"


def test_a_loss_scaler_has_the_same_effect_as_a_configuration_that_skips(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    file.write_text('{"output_dir": "a", "max_grad_norm": 1.0, "fp16": true}')
    trainer, skip = ClipConfig.import_from(file, "hf"), ClipConfig(**PLAIN | {"threshold": 1.0}, nonfinite="skip")
    for a, b in ((trainer, skip), (skip, trainer)):
        assert compare.compare(a, b, ["a", "b"]).same
    assert not compare.compare(trainer, skip.model_copy(update={"nonfinite": "raise"}), ["a", "b"]).same
    comparison = compare.compare(trainer, skip.model_copy(update={"nonfinite": "family"}), ["a", "b"])
    scaled = "With fp16, the loss scaler skips a step if a gradient is not finite."
    assert [(each.a, each.b) for each in comparison.differences] == [(scaled, "clipped by the rule")]
    assert trainer.nonfinite == "family", "the file has no such setting"
