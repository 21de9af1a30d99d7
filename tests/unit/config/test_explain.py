"""`explain` describes what a configuration does to gradients, and how two configurations differ."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_clip import ClipConfig
from unified_clip.config.explain import compare, describe
from unified_clip.config.families import family_difference

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
    other_configs = ClipConfig(rule="norm", adaptive={"rule": "agc"}), ClipConfig(rule="global_norm", threshold=1.0)
    for other_config in (limited, *other_configs):
        assert not any("warm-up" in text for text in describe.sentences(other_config))


def test_no_sentence_about_nan_is_repeated() -> None:
    assert sentences(rule="value", threshold=0.5).count("NaN stays NaN.") == 1
    assert "NaN" not in sentences(rule="none")
    assert sentences(rule="none", nonfinite="skip").count("NaN") == 1


def test_pytorch_and_tensorflow_differ_by_eps() -> None:
    torch, tensorflow = ClipConfig(**PLAIN), ClipConfig(**PLAIN, family="tensorflow")
    comparison = compare.compare(torch, tensorflow, ["PyTorch's", "TensorFlow's"])
    assert not comparison.same
    assert {each.about for each in comparison.differences} == {"eps", "the result if the norm is not finite"}
    assert comparison.effect == family_difference(torch, tensorflow).sentence
    assert comparison.summary == (
        f"The configurations differ in: eps, the result if the norm is not finite. {comparison.effect}"
    )


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
    "a digit": (PLAIN, PLAIN | {"threshold": math.nextafter(1, 2)}, "threshold"),
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
def test_each_difference_is_named_alone(name: str) -> None:
    left, right, about = NOT_THE_SAME[name]
    for a, b in ((left, right), (right, left)):
        comparison = compare.compare(ClipConfig(**a), ClipConfig(**b), ["a", "b"])
        assert not comparison.same
        assert [each.about for each in comparison.differences] == [about]
        assert comparison.summary.startswith(f"The configurations differ in: {about}.")


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
    assert compared.summary == "The configurations differ in: the trainer's action if the norm is not finite."
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
