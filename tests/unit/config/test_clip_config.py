"""A clip configuration is read from TOML, YAML and JSON, saved, copied, and compared by its meaning."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from support.config.clip_configs import AS_JSON, AS_YAML, CLIP, write_config

from unified_clip import ClipConfig, ConfigError
from unified_clip._kit.install import command
from unified_clip.config import documents
from unified_clip.config.schema import FAMILIES, Group, Settings, is_off, json_schema


@pytest.mark.parametrize("number", [np.float32(1), np.float64(1), np.float16(1), np.int64(1), 1])
def test_a_scalar_of_numpy_is_a_number(number: Any) -> None:
    threshold = ClipConfig(rule="global_norm", threshold=number).threshold
    assert threshold == 1.0
    assert type(threshold) is float


@pytest.mark.parametrize(("kind", "text"), [("yaml", AS_YAML), ("yml", AS_YAML), ("json", AS_JSON)])
def test_toml_yaml_and_json_have_the_same_meaning(tmp_path: Path, kind: str, text: str) -> None:
    toml = ClipConfig.load(write_config(tmp_path, CLIP))
    assert ClipConfig.load(write_config(tmp_path, text, kind)) == toml
    assert toml.groups[0].norm_type == math.inf
    assert toml.groups[0].family == "paddle"  # the group inherits the family
    assert toml.groups[1].family is None  # a group without a norm inherits no family


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
def test_a_saved_configuration_is_read_unchanged(tmp_path: Path, kind: str) -> None:
    clip = ClipConfig.loads(CLIP)
    clip.save(tmp_path / f"clip.{kind}")
    assert ClipConfig.load(tmp_path / f"clip.{kind}") == clip
    infinite = ClipConfig(rule="global_norm", threshold=math.inf)
    assert ClipConfig.loads(infinite.dumps(kind), kind).threshold == math.inf


def test_a_configuration_can_be_built_in_python() -> None:
    assert ClipConfig(rule="norm", threshold=np.float32(0.5).item()).threshold == 0.5
    assert ClipConfig(rule="norm", threshold=1).threshold == 1.0
    assert ClipConfig(rule="value", threshold=1.0, family=None, eps=None).meaning  # None means that the key is not set


def test_aliases_can_be_used() -> None:
    text = "rule: norm\nthreshold: &t 2.0\ngroups:\n - {name: a, include: [x], threshold: *t}"
    assert ClipConfig.loads(text, "yaml").groups[0].threshold == 2.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10), ("-010", -10), ("0o10", 8), ("0x10", 16), ("1:30", "1:30"), ("1:30.5", "1:30.5"), ("1_000", 1000),
        ("1e-6", 1e-6), ("1.5e3", 1500.0), (".5", 0.5), ("-1.", -1.0), ("-.inf", -math.inf), ("+1", 1),
        ("1.2.3", "1.2.3"), ("-", None), ("a1", "a1"), ("0b1", "0b1"),
    ],
)  # fmt: skip
def test_numbers_in_yaml_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = documents.parse(f"a: {text}" if text != "-" else "a: ~", "yaml", "").data["a"]
    assert parsed == value
    assert isinstance(parsed, type(value))


TEXTS = st.one_of(
    st.sampled_from(["1e-3", "08", "1e5", "0o7", ".5e3", "0x1F", "1_0", "+1", "1:30", "0b1", "null", "~", "yes", "inf"])
    | st.sampled_from(
        [".inf", "NaN", "=", "<<", "2001-01-01", "a\x85b", "\u2028", "\ufeff", "\r\n", "\x00", "\x7f", "- a"]
    ),
    st.from_regex(r"[-+]?[0-9._]{1,3}([eE][-+]?[0-9]{1,2})?", fullmatch=True),
    st.text(min_size=1),
    st.text("ab \n\t", min_size=1, max_size=200),
)


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
@given(data=st.data())
def test_names_and_patterns_of_any_text_are_saved_and_read(kind: str, data: Any) -> None:
    names = data.draw(st.lists(TEXTS, max_size=2, unique=True))
    groups = [{"name": name, "include": data.draw(st.lists(TEXTS, min_size=1, max_size=3))} for name in names]
    number = data.draw(st.floats(0, allow_nan=False))
    clip = ClipConfig(rule="norm", threshold=number, exclude=data.draw(st.lists(TEXTS, max_size=2)), groups=groups)
    again = ClipConfig.loads(clip.dumps(kind), kind)
    assert again == clip
    assert again.data() == {"version": 1, **clip.data()}


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
def test_keys_that_are_none_are_not_saved(kind: str) -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, norm_type=None, eps=None,
                      groups=[{"name": "a", "include": ["x"], "eps": None, "threshold": None}])  # fmt: skip
    assert ClipConfig.loads(clip.dumps(kind), kind) == clip
    assert ClipConfig.loads("rule: norm\nthreshold: 1\neps: null", "yaml").dumps(kind)


@pytest.mark.parametrize("kind", ["toml", "yaml", "json"])
def test_bounds_may_be_infinite(kind: str) -> None:
    clip = ClipConfig(rule="value", min=-math.inf, max=1.0)
    text = clip.dumps(kind)
    assert "Infinity" not in text
    assert ClipConfig.loads(text, kind) == clip
    if kind == "json":
        assert json.loads(text)["min"] == "-inf"
        jsonschema.validate(json.loads(text), json.loads(json_schema()))


class TrainingSettings(BaseModel):
    clip: ClipConfig


@pytest.mark.parametrize(
    "keys",
    [
        {"rule": "global_norm", "threshold": math.inf},
        {"rule": "value", "min": -math.inf, "max": 1.0},
        {"rule": "norm", "threshold": 2.0, "norm_type": math.inf},
        {"rule": "global_norm", "threshold": math.inf, "adaptive": {"rule": "zclip"}},
        {"rule": "global_norm", "threshold": {"schedule": "linear", "start": 2.0, "end": 1.0, "steps": 5}},
        {"rule": "norm", "threshold": 1.0, "groups": [{"name": "a", "include": ["x"], "threshold": math.inf}]},
    ],
)
@pytest.mark.parametrize("exclude_unset", [False, True])
def test_infinity_in_the_json_of_pydantic_is_read_again(keys: dict[str, Any], exclude_unset: bool) -> None:
    clip = ClipConfig(**keys)
    assert ClipConfig.model_validate_json(clip.model_dump_json(exclude_unset=exclude_unset)) == clip
    text = TrainingSettings(clip=clip).model_dump_json(exclude_unset=exclude_unset)
    assert TrainingSettings.model_validate_json(text).clip == clip
    assert {"version": 1, **clip.model_dump(mode="json", exclude_unset=True)} == json.loads(clip.dumps("json"))


def test_a_group_inherits_the_keys_that_it_does_not_set() -> None:
    group_data = {"name": "a", "include": ["x"], "threshold": 2.0}
    for group in (group_data, Group(**group_data), group_data | {"rule": None}):
        clip = ClipConfig(rule="norm", threshold=7, family="paddle", norm_type=1, groups=[group])
        (only,) = clip.groups
        assert (only.rule, only.threshold, only.family, only.norm_type) == ("norm", 2.0, "paddle", 1.0)
    bounds = Group(name="a", include=["x"], min=-1.0, max=1.0)
    assert ClipConfig(rule="value", threshold=7.0, groups=[bounds]).groups[0].rule == "value"
    with pytest.raises(ConfigError, match="ClipConfig, groups 1, max: max applies to rule = 'value' only"):
        ClipConfig(rule="norm", threshold=7.0, groups=[bounds])


@pytest.mark.parametrize(
    ("settings", "family", "eps"),
    [
        ({}, "paddle", 0.5),
        ({"rule": "global_norm", "threshold": 1.0}, "paddle", 0.5),  # both rules of norms have a family and an eps
        ({"family": "pytorch"}, "pytorch", None),  # the eps of the family applies
        ({"family": "pytorch", "eps": 0.25}, "pytorch", 0.25),
        ({"rule": "value", "threshold": 1.0}, None, None),
    ],
)
def test_a_group_with_its_own_family_has_the_eps_of_this_family(
    settings: dict[str, Any], family: str | None, eps: float | None
) -> None:
    group = {"name": "a", "include": ["x"], **settings}
    (inherited,) = ClipConfig(rule="norm", threshold=7.0, family="paddle", eps=0.5, groups=[group]).groups
    assert (inherited.family, inherited.eps) == (family, eps)


@pytest.mark.parametrize("deep", [False, True])
def test_a_copy_has_the_updated_settings(deep: bool) -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    updated = clip.model_copy(update={"exclude": ["b"], "threshold": 10.0}, deep=deep)
    gradients = {"a": np.array([3.0, 4.0]), "b": np.array([99.0])}
    assert (updated.exclude, updated.threshold) == (["b"], 10.0)
    assert updated(gradients)["b"] is gradients["b"]
    assert updated.last.norm == 5.0
    assert clip.model_copy() == copy.copy(clip) == copy.deepcopy(clip) == clip
    with pytest.raises(ConfigError, match="threshold: it is -1"):
        clip.model_copy(update={"threshold": -1})


@pytest.mark.parametrize("form", ["dict", "Group", "null"])
def test_groups_of_a_copy_or_a_saved_file_inherit_again(form: str) -> None:
    group: Any = {"name": "d", "include": ["d.*"]}
    group = (
        Group(**group) if form == "Group" else {**group, "threshold": None, "rule": None} if form == "null" else group
    )
    clip = ClipConfig(rule="global_norm", threshold=1, family="paddle", eps=0.25, groups=[group])
    changed = {"threshold": 5.0, "rule": "norm", "family": "tensorflow", "eps": 0.5}
    as_json, again = json.loads(clip.dumps("json")), ClipConfig.loads(clip.dumps("yaml"), "yaml")
    assert as_json["groups"] == [{"name": "d", "include": ["d.*"]}]
    assert "groups=[{'name': 'd', 'include': ['d.*']}]" in repr(clip)
    for copied in (clip, copy.deepcopy(clip), pickle.loads(pickle.dumps(clip)), again):
        (only,) = copied.model_copy(update=changed).groups
        assert {key: getattr(only, key) for key in changed} == changed
        assert copied.groups[0].threshold == 1.0
    with_own_rule = ClipConfig(rule="norm", threshold=1.0, groups=[{"name": "d", "include": ["d.*"], "threshold": 2.0}])
    assert with_own_rule.model_copy(update={"threshold": 5.0}).groups[0].threshold == 2.0
    assert Settings(rule="norm", threshold=3.0, groups=clip.groups).groups[0].threshold == 3.0


def test_settings_cannot_be_changed() -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, groups=[{"name": "a", "include": ["x"]}])
    copied = r"\. Copy the configuration with other values, as in clip\.model_copy\(update=\{'threshold': \.\.\.\}\)\.$"
    for place, name, end in (
        (clip, "threshold", copied),
        (
            clip.groups[0],
            "threshold",
            r"\. Make a new configuration by ClipConfig\(\.\.\.\), and pass the new value there\.$",
        ),
        (clip, "step", r"\. Only a clipper has a step that you can set: .* then clipper\.step = 10\.$"),
        (clip, "treshold", r"\. There is no such setting\. The settings are rule, threshold, .*\.$"),
    ):
        for change in (lambda place, name: setattr(place, name, 5), delattr):
            with pytest.raises(ConfigError, match=rf"^(ClipConfig|Group): {name} cannot be changed{end}"):
                change(place, name)
    assert clip.threshold == 1.0


INFINITE = {"schedule": "piecewise", "values": ["inf", "inf"], "boundaries": [10]}

OFF: list[dict[str, Any]] = [
    {"rule": "norm", "threshold": "inf"},
    {"rule": "value", "min": "-inf", "max": "inf"},
    {"rule": "global_norm", "threshold": INFINITE},
]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        *((off, True) for off in [{"rule": "none"}, *OFF]),
        ({"rule": "value", "min": "-inf", "max": 1.0}, False),
        ({"rule": "global_norm", "threshold": {**INFINITE, "values": ["inf", 1.0]}}, False),
        ({"rule": "none", "groups": [{"name": "a", "include": ["a.*"], "rule": "norm", "threshold": 5.0}]}, False),
        ({"rule": "none", "groups": [{"name": "a", "include": ["a.*"], "rule": "norm", "threshold": "inf"}]}, True),
        ({"rule": "norm", "threshold": 5.0, "groups": [{"name": "a", "include": ["a.*"], "rule": "none"}]}, False),
    ],
)
def test_a_configuration_is_off_if_no_part_of_it_clips(settings: dict[str, Any], expected: bool) -> None:
    assert is_off(ClipConfig(**settings)) is expected


def test_different_settings_can_have_equal_meanings() -> None:
    plain = ClipConfig(rule="global_norm", threshold=1.0)
    assert (
        plain.meaning == ClipConfig(rule="global_norm", threshold=1.0, family="pytorch", eps=1e-6, norm_type=2).meaning
    )
    assert plain.meaning != ClipConfig(rule="global_norm", threshold=1.0, family="paddle").meaning
    for off in OFF:
        assert ClipConfig(rule="none").meaning == ClipConfig(**off).meaning
    assert ClipConfig(rule="value", threshold=1.0).meaning == ClipConfig(rule="value", min=-1.0, max=1.0).meaning


def test_every_family_has_its_rules() -> None:
    assert {family for family, _ in FAMILIES} == {"pytorch", "tensorflow", "paddle"}


def test_the_package_can_be_imported_without_the_extra() -> None:
    code = (
        "import sys; sys.modules['pydantic'] = None; import unified_clip\n"
        "try: unified_clip.ClipConfig\n"
        "except ModuleNotFoundError as error: print(error)\n"
        "try: unified_clip.nothing\n"
        "except AttributeError as error: print(error)\n"
        "from unified_clip import *\n"
        "print('ClipConfig' in dir(unified_clip))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed == [
        f"ClipConfig needs pydantic. Install the extra `config`: {command('config')}",
        "module 'unified_clip' has no attribute 'nothing'",
        "True",
    ]


def test_the_error_about_last_names_the_objects_that_have_their_own() -> None:
    clip = ClipConfig(rule="global_norm", threshold=1.0)
    clipper = clip.clipper()
    clipper([np.array([3.0, 4.0])])
    assert clipper.last.norm == 5.0
    with pytest.raises(
        RuntimeError, match=r"so this object's .* attach_to\(\), clipper\(\) or as_paddle\(\) returned, read"
    ):
        _ = clip.last


def test_a_gradient_has_changed_if_one_group_is_clipped_and_another_is_unknown() -> None:
    group = {"name": "b", "include": ["b"], "rule": "value", "threshold": 1.0}
    clip = ClipConfig(rule="global_norm", threshold=1.0, groups=[group]).clipper()
    clip({"a": np.array([3.0, 4.0]), "b": np.array([np.nan])})
    assert (clip.last.parts["b"].clipped, clip.last.clipped, clip.rate) == (None, True, 1.0)


def test_a_gradient_that_is_not_among_the_names_is_an_error() -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, exclude=["b"]).clipper(names={"a": np.ones(2)})
    with pytest.raises(TypeError, match=r"position 0 is a gradient without its parameter\. Pass gradients as a dict"):
        clip([np.ones(2)])


def test_a_configuration_has_no_hash_and_the_error_has_the_function_to_compile() -> None:
    with pytest.raises(TypeError, match=r"^A ClipConfig has no hash.* jax\.jit\(lambda gradients: clip\(gradients\)\)"):
        hash(ClipConfig(rule="global_norm", threshold=1.0))
