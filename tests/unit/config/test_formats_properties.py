"""Random settings are imported with the meaning with which they were exported. Unsupported settings are rejected."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.version import Version
from support.config.format_samples import READ, VERSIONS, document, text
from support.tiers import sampled

from unified_clip import ConfigError, NotRepresentableError
from unified_clip.config.families import family_difference
from unified_clip.config.formats import FORMATS, convert
from unified_clip.config.schema import Settings

NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, 0.1, 1e-8, math.inf]), st.floats(0, 1e6), st.floats(0, allow_infinity=False)
)
SCHEDULES = st.builds(
    lambda start, end: {"schedule": "linear", "start": start, "end": end, "steps": 10},
    st.floats(0, 9),
    st.floats(0, 9),
)


def rarely(**values: Any) -> st.SearchStrategy[dict[str, Any]]:
    few = [{name: value} for name, choices in values.items() for value in choices]
    return st.sampled_from([{}] * 3 * len(few) + few)


@st.composite
def of_norms(draw: st.DrawFn) -> dict[str, Any]:
    rule = draw(st.sampled_from(["global_norm", "norm"]))
    threshold = draw(st.one_of(*[NUMBERS] * 8, SCHEDULES))
    family = draw(st.sampled_from([{}, {"family": "pytorch"}, {"family": "tensorflow"}, {"family": "paddle"}]))
    optional = draw(rarely(norm_type=[1, 2, 2.5, math.inf], eps=[0, 1e-6, 1e-3]))
    return {"rule": rule, "threshold": threshold, **family, **optional}


AGC = st.fixed_dictionaries(
    {"rule": st.just("agc"), "convention": st.sampled_from(["timm", "optax", "composer"])},
    optional={
        "clip_factor": st.sampled_from([0.0, 0.01, 0.16]),
        "eps": st.sampled_from([0.0, 1e-3, 0.5]),
        "smallest_norm": st.sampled_from([0.0, 1e-6]),
    },
)


@st.composite
def of_units(draw: st.DrawFn) -> dict[str, Any]:
    optional = draw(rarely(family=["paddle"], threshold=[2.0], eps=[1e-6]))
    return {"rule": "norm", "adaptive": draw(AGC), "eps": 0.0, **optional}


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    values = st.builds(lambda limit: {"rule": "value", "threshold": limit}, NUMBERS)
    pair = st.lists(st.one_of(st.floats(-9, 9), st.sampled_from([-math.inf, math.inf])), min_size=2, max_size=2)
    bounds = st.builds(lambda both: {"rule": "value", "min": min(both), "max": max(both)}, pair)
    rule = draw(st.one_of(of_norms(), of_norms(), of_norms(), of_units(), values, bounds, st.just({"rule": "none"})))
    group = {"name": "head", "include": ["head.*"], "rule": "none"}
    nonfinite = draw(rarely(nonfinite=["raise", "raise", "skip", "zero"]))
    optional = draw(rarely(include=[["body.*"]], exclude=[["*.bias"]], groups=[[group]]))
    return Settings.model_validate(rule | nonfinite | optional)


READABLE = [(name, version) for name, version in VERSIONS if name in READ]


@pytest.mark.parametrize(("name", "version"), sampled(READABLE, 3))
@given(any_settings())
@example(Settings(rule="none"))
@example(Settings(rule="global_norm", threshold=0.0))
@example(Settings(rule="global_norm", threshold=0.0, family="tensorflow"))
@example(Settings(rule="global_norm", threshold=0.0, family="paddle"))
@example(Settings(rule="norm", threshold=0.0, family="tensorflow"))
@example(Settings(rule="norm", threshold=0.0, family="paddle"))
@example(Settings(rule="value", min=-math.inf, max=math.inf))
@example(Settings(rule="value", min=-math.inf, max=0.0))
@example(Settings(rule="value", min=math.inf, max=math.inf))
@example(Settings(rule="norm", eps=0.0, adaptive={"rule": "agc", "convention": "optax", "eps": 0.5}))
@example(Settings(rule="norm", eps=0.0, adaptive={"rule": "agc", "convention": "timm", "eps": 0, "smallest_norm": 0}))
def test_exported_settings_are_imported_with_the_same_meaning(name: str, version: str, clip_settings: Settings) -> None:
    trainer = FORMATS[name]
    written, refusal = "", ""
    try:
        written = text(trainer, clip_settings, version)
    except NotRepresentableError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith(f"Cannot export to {trainer.title}: ")
        return
    imported = trainer.read(document(trainer, written), Version(version)).settings
    assert Settings.model_validate(imported).meaning == clip_settings.meaning
    again = text(trainer, Settings.model_validate(imported), version)
    assert trainer.read(document(trainer, again), Version(version)).settings == imported


@pytest.mark.parametrize(("name", "version"), sampled(READABLE, 3))
@given(any_settings())
@example(Settings(rule="global_norm", threshold=1.0))
@example(Settings(rule="global_norm", threshold=1.0, family="tensorflow"))
@example(Settings(rule="global_norm", threshold=1.0, family="paddle"))
@example(Settings(rule="norm", threshold=1.0, family="paddle"))
@example(Settings(rule="norm", threshold=1.0, eps=0.5))
def test_the_nearest_rule_differs_by_no_more_than_its_note_states(
    name: str, version: str, clip_settings: Settings
) -> None:
    trainer, error = FORMATS[name], ""
    try:
        written, notes = convert.write(clip_settings, f"{name}@{version}", nearest=True)
    except NotRepresentableError as problem:
        error = str(problem)
    if error:
        assert not re.search(r"family|(?<!adaptive\.)eps", error)
        return
    imported = trainer.read(document(trainer, written), Version(version)).settings
    difference = family_difference(clip_settings, Settings.model_validate(imported))
    assert difference is not None
    assert [note.partition(". ")[2] for note in notes] == ([] if difference.same else [difference.sentence])


@pytest.mark.parametrize(("name", "version"), VERSIONS)
@pytest.mark.parametrize(
    "beyond",
    [
        {"nonfinite": "skip"},
        {"nonfinite": "zero"},
        {"exclude": ["*.bias"]},
        {"include": ["body.*"]},
        {"threshold": {"schedule": "linear", "start": 1.0, "end": 2.0, "steps": 3}},
        {"groups": [{"name": "head", "include": ["head.*"], "threshold": 5.0}]},
        {"eps": 0.5},
    ],
    ids=lambda beyond: next(iter(beyond)),
)
def test_unsupported_settings_are_rejected_with_the_reason(name: str, version: str, beyond: dict[str, Any]) -> None:
    for rule in ("global_norm", "norm"):
        with pytest.raises(NotRepresentableError, match=r"^Cannot export to [^:]*: \w+"):
            FORMATS[name].write(Settings.model_validate({"rule": rule, "threshold": 1.0} | beyond), Version(version))


def test_exported_yaml_has_no_anchors() -> None:
    clip = Settings(rule="global_norm", threshold=1.0)
    supported = [name for name, trainer in FORMATS.items() if trainer.rules and "global_norm" in trainer.rules]
    written = {name: convert.write(clip, name, nearest=True)[0] for name in supported}
    assert written["verl"].count("grad_clip: 1.0") == 2
    assert [name for name, text in written.items() if "&" in text or "*" in text] == []


@pytest.mark.parametrize(("name", "version"), VERSIONS)
@pytest.mark.parametrize("rule", ["global_norm", "norm", "value"])
@pytest.mark.parametrize("limit", [0.0, 0.5, math.inf])
@pytest.mark.parametrize("nonfinite", ["family", "raise"])
def test_a_constant_schedule_is_exported_as_its_number(
    name: str, version: str, rule: str, limit: float, nonfinite: str
) -> None:
    def exported(threshold: Any) -> str:
        constant = Settings.model_validate({"rule": rule, "threshold": threshold, "nonfinite": nonfinite})
        try:
            return text(FORMATS[name], constant, version)
        except NotRepresentableError as error:
            return str(error)

    assert exported({"schedule": "constant", "value": limit}) == exported(limit)


LARGE = "1" + "0" * 400


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("deepspeed", '{"gradient_clipping": %s}'),
        ("torchtitan", "[training]\nmax_norm = %s"),
        ("lightning", "trainer: {gradient_clip_val: %s}"),
        ("paddledetection", "OptimizerBuilder: {clip_grad_by_value: %s}"),
        ("paddledetection", "OptimizerBuilder: {clip_grad_by_norm: %s}"),
        ("detectron2", "SOLVER: {CLIP_GRADIENTS: {ENABLED: true, CLIP_TYPE: norm, NORM_TYPE: %s}}"),
        ("mmengine", "optim_wrapper = dict(clip_grad=dict(max_norm=%s))"),
    ],
)
def test_an_integer_beyond_all_floats_is_rejected(name: str, written: str, sign: str) -> None:
    trainer = FORMATS[name]
    with pytest.raises(ConfigError, match=r"the number is too large|a number has 40\d characters"):
        trainer.read(document(trainer, written % (sign + LARGE)), Version(trainer.newest))


def test_a_number_of_thousands_of_digits_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"text, line 1: a number has 5000 characters. Give at most 400 characters"):
        document(FORMATS["deepspeed"], '{"gradient_clipping": %s}' % ("1" * 5000))
