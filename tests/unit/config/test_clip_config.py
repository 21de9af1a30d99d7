"""A clip configuration is read from TOML, YAML and JSON, and errors name the file, the line, the key and the remedy."""

from __future__ import annotations

import copy
import json
import math
import pickle
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from unified_clip import ClipConfig, ConfigError
from unified_clip._install import command
from unified_clip.config import documents
from unified_clip.config.schema import FAMILIES, Group, Settings, is_off, json_schema

DOCS = Path(__file__).parents[3] / "docs"

CLIP = """\
version = 1
rule = "global_norm"
family = "paddle"
nonfinite = "skip"
exclude = ["*.bias", "norm.*"]

[threshold]
schedule = "linear"
start = 10.0
end = 1
steps = 1_000

[[groups]]
name = "embeddings"
include = ["embed.*"]
rule = "norm"
threshold = 0.1
norm_type = inf

[[groups]]
name = "head"
include = ["head.*"]
rule = "value"
min = -1.0
max = 0.5
"""
AS_YAML = """\
# the same
version: 1
rule: global_norm
family: paddle
nonfinite: skip
exclude: ["*.bias", norm.*]
threshold: {schedule: linear, start: 1e1, end: 1, steps: 1000}
groups:
  - name: embeddings
    include: [embed.*]
    rule: norm
    threshold: 1e-1
    norm_type: .inf
  - {name: head, include: [head.*], rule: value, min: -1, max: 0.5}
"""
AS_JSON = """\
{"$schema": "clip_config.schema.json",
 "version": 1, "rule": "global_norm", "family": "paddle", "nonfinite": "skip", "exclude": ["*.bias", "norm.*"],
 "threshold": {"schedule": "linear", "start": 10, "end": 1.0, "steps": 1000},
 "groups": [
   {"name": "embeddings", "include": ["embed.*"], "rule": "norm", "threshold": 0.1, "norm_type": "inf"},
   {"name": "head", "include": ["head.*"], "rule": "value", "min": -1.0, "max": 0.5}
 ]}
"""


def write(directory: Path, text: str, kind: str = "toml") -> Path:
    path = directory / f"clip.{kind}"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("number", [np.float32(1), np.float64(1), np.float16(1), np.int64(1), 1])
def test_a_scalar_of_numpy_is_a_number(number: Any) -> None:
    threshold = ClipConfig(rule="global_norm", threshold=number).threshold
    assert threshold == 1.0
    assert type(threshold) is float


@pytest.mark.parametrize("threshold", [np.bool_(True), np.array(1.0), True, 1j])
def test_a_threshold_that_is_no_number_is_rejected(threshold: Any) -> None:
    with pytest.raises(ConfigError, match="Give a number"):
        ClipConfig(rule="global_norm", threshold=threshold)


@pytest.mark.parametrize("large", [10**400, -(10**400)])
def test_an_integer_beyond_all_floats_is_rejected(large: int) -> None:
    with pytest.raises(ConfigError, match="a float cannot be that large"):
        ClipConfig(rule="value", threshold=large)


@pytest.mark.parametrize(("kind", "text"), [("yaml", AS_YAML), ("yml", AS_YAML), ("json", AS_JSON)])
def test_toml_yaml_and_json_have_the_same_meaning(tmp_path: Path, kind: str, text: str) -> None:
    toml = ClipConfig.load(write(tmp_path, CLIP))
    assert ClipConfig.load(write(tmp_path, text, kind)) == toml
    assert toml.groups[0].norm_type == math.inf
    assert toml.groups[0].family == "paddle"  # which a group takes over
    assert toml.groups[1].family is None  # and not where there is no norm


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
    assert ClipConfig(rule="value", threshold=1.0, family=None, eps=None).meaning  # None is as good as nothing


# -- what is wrong

DATA = Path(__file__).parents[2] / "data"
BAD = {
    each["what"]: (each["text"], each["message"])
    for each in tomllib.loads((DATA / "bad_configs.toml").read_text(encoding="utf-8"))["bad"]
}


@pytest.mark.parametrize("problem", BAD)
def test_errors_name_the_place_and_the_remedy(tmp_path: Path, problem: str) -> None:
    text, message = BAD[problem]
    with pytest.raises(ConfigError) as error:
        ClipConfig.load(write(tmp_path, text))
    assert message in str(error.value)
    assert str(error.value).startswith("clip.toml")
    assert not re.search(r"pydantic|function-|tagged-union|Input should", str(error.value))


def test_there_are_enough_bad_configurations() -> None:
    assert len(BAD) >= 40


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("yaml", "rule: norm\nthreshold: -1", "clip.yaml, line 2, threshold: it is -1"),
        ("yaml", "rule: norm\ngroups:\n - name: a\n   include: [x]\n   threshold: q", "line 5, groups 1, threshold"),
        ("yaml", "rule: norm\nrule: value", "clip.yaml, line 2: the key 'rule' occurs twice. Remove one"),
        ("yaml", "rule: [norm", "clip.yaml, line 1: "),
        ("yaml", "- rule: norm", "clip.yaml contains [{'rule': 'norm'}], not keys with values. Give keys with"),
        ("yaml", "rule: off\n", "line 1, rule: it is False. Give 'none'"),
        ("yaml", "!!python/object:os.system x", "clip.yaml contains !!python/object:os.system x, not keys with values"),
        ("json", '{"rule": "norm",\n "threshold": "x"}', "clip.json, line 2, threshold: it is 'x'"),
        ("json", '{\n\t"rule": "norm",\n\t"threshold": -2}', "clip.json, line 3, threshold: it is -2"),
        ("json", '{"rule": "norm", "rule": "none"}', "clip.json, line 1: the key 'rule' occurs twice"),
        ("json", '{"rule": "norm",\n\t"threshold": 1,\n\t"threshold": 2}', "clip.json, line 3: the key 'threshold'"),
        ("json", '{"rule": "norm",\n "threshold": ' + "9" * 5000 + "}", "clip.json, line 2: a number has 5000 char"),
        ("yaml", "rule: norm\nthreshold: " + "9" * 5000, "clip.yaml, line 2: a number has 5000 characters"),
        ("yaml", "rule: norm\nthreshold: 0x" + "f" * 5000, "clip.yaml, line 2: a number has 5002 characters"),
        ("yaml", "rule: norm\nthreshold: 1" + "0" * 399, "line 2, threshold: it is 10"),
        ("yaml", "rule: norm\nthreshold: !!int x", "clip.yaml, line 2: cannot read this value: invalid literal"),
        ("yaml", "rule: norm\nthreshold: 2001-99-99", "clip.yaml, line 2: cannot read this value: month must be"),
        ("yaml", "rule: norm\n? [a]\n: 1", "clip.yaml, line 2: a key is a list or a table. Give a string"),
        ("yaml", "rule: none\ncheck: {formats: {1: hf}}", "the key 1 is not a string. Write it in quotes"),
        ("yaml", "rule: norm\n{a: 1}: 1", "clip.yaml, line 2: a key is a list or a table. Give a string"),
        ("yaml", "rule: norm\n1: 2", "clip.yaml, line 2, 1: the key 1 is not a string. Use one of rule, threshold"),
        ("yaml", "rule: norm\nthreshold: 1:30", "line 2, threshold: it is '1:30'. Give a number"),
        ("yaml", "rule: norm\ngroups: &a [*a]", "line 2: an alias stands inside the value that it refers to"),
        ("yaml", "rule: norm\ngroups:\n - {name: a, include: [x]}\n - {name: a, include: [x]}\nthreshold: 1",
         "clip.yaml, line 4, groups 2, name: two groups are named 'a'"),
        ("yaml", "rule: none\ngroups:\n - {name: a, include: [x]}\n - {name: b, include: [x], rule: norm}",
         "clip.yaml, line 4, groups 2: group 'b': rule = 'norm' needs a threshold"),
        ("toml", "rule = 'none'\n[[groups]]\nname = 'a'\ninclude = ['x']\n[[groups]]\nname = 'a'\ninclude = ['x']",
         "clip.toml, line 6, groups 2, name: two groups are named 'a'"),
        ("toml", "rule = 'norm'\nthreshold = " + "9" * 5000, "clip.toml, line 2: a number has 5000 characters"),
        ("json", '{"rule": "norm", "threshold": "-inf"}', "line 1, threshold: it is '-inf'. Give 0 or more"),
        ("json", '{"rule": ', "clip.json, line 1: this is not JSON: Expecting value. Correct it."),
        ("json", "[" * 100_000, "clip.json: its lists or tables are nested too deep"),
        ("ini", "rule = norm", "the suffix is not one of .toml, .yaml, .yml, .json"),
    ],
)  # fmt: skip
def test_errors_in_yaml_and_json_name_the_place(tmp_path: Path, kind: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ClipConfig.load(write(tmp_path, text, kind))


@pytest.mark.parametrize("top", ["{}", "rule: {}", "<<: {}", "rule: norm\nthreshold: {}", "rule: norm\nx: {}"])
@pytest.mark.parametrize("seed", ["lol", "&x {a: b}", "z" * 2000])
def test_aliases_do_not_eat_memory(top: str, seed: str) -> None:
    """A list of ten of a list of ten of ..., which would have 10**9 elements."""
    lists = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}' if i else seed] * 10)}]\n" for i in range(9))
    lists = lists.replace(f"[{', '.join([seed] * 10)}]", f"[{seed}]")
    text = f"{lists}{top.format('*l8')}" if top != "{}" else lists
    with pytest.raises(ConfigError, match="the text, line 1: the values of all aliases together are too large"):
        ClipConfig.loads(text, "yaml")


def test_aliases_can_be_used() -> None:
    text = "rule: norm\nthreshold: &t 2.0\ngroups:\n - {name: a, include: [x], threshold: *t}"
    assert ClipConfig.loads(text, "yaml").groups[0].threshold == 2.0


def test_large_values_are_shown_in_part() -> None:
    with pytest.raises(ConfigError, match=r"threshold: it is 'x.{1,70}. Give a number"):
        ClipConfig(rule="norm", threshold="x" * 10**7)
    with pytest.raises(ConfigError, match=r"threshold: it is .{1,80}. Give a smaller number"):
        ClipConfig(rule="norm", threshold=10**5000)


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
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize("kind", ["yml", "xml", ""])
def test_unknown_kinds_are_rejected(kind: str) -> None:
    message = f"'{kind}' is not a kind of file. Pass one of toml, yaml, json"
    with pytest.raises(ConfigError, match=message):
        ClipConfig.loads("rule: none", kind)
    with pytest.raises(ConfigError, match=message):
        ClipConfig(rule="none").dumps(kind)


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


# -- groups


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
        ({"rule": "global_norm", "threshold": 1.0}, "paddle", 0.5),  # the two rules of norms share them
        ({"family": "pytorch"}, "pytorch", None),  # whose own eps it is then
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


def test_the_schema_requires_no_rule_of_a_group() -> None:
    rule = json.loads(json_schema())["$defs"]["Group"]["properties"]["rule"]
    assert rule["default"] is None
    assert rule["description"] == "the rule for these parameters; default: the rule of the configuration"
    group = {"name": "a", "include": ["x"]}
    jsonschema.validate({"rule": "norm", "threshold": 1, "groups": [group]}, json.loads(json_schema()))


# -- copies


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


def test_files_that_cannot_be_read_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.toml: No such file"):
        ClipConfig.load(tmp_path / "absent.toml")
    (tmp_path / "clip.toml").write_bytes(b"rule = \xff")
    with pytest.raises(ConfigError, match=r"clip\.toml: byte 7 is not UTF-8"):
        ClipConfig.load(tmp_path / "clip.toml")
    (tmp_path / "clip.toml").write_bytes(b"\xef\xbb\xbfrule = 'none'\n")  # a mark that some editors write
    assert ClipConfig.load(tmp_path / "clip.toml").rule == "none"


def test_errors_in_python_name_the_key() -> None:
    with pytest.raises(ConfigError, match=r"^ClipConfig, threshold: it is -1. Give 0 or more"):
        ClipConfig(rule="norm", threshold=-1)
    with pytest.raises(ConfigError, match=r"^ClipConfig, tresold: there is no such key. Did you mean threshold"):
        ClipConfig(rule="norm", tresold=1)
    with pytest.raises(ConfigError, match=r"^the text, line 1, rule: "):
        ClipConfig.loads("rule = 1")


@given(st.lists(st.sampled_from(["a", "b.c", "groups", "x y", "1"]), min_size=1, max_size=3, unique=True), st.data())
def test_each_key_has_its_line(keys: list[str], data: Any) -> None:
    """The line of a key in TOML has comments around it."""
    position = data.draw(st.integers(0, len(keys) - 1))
    text = "".join(f"# {key}\n{json.dumps(key)} = {index}\n" for index, key in enumerate(keys))
    document = documents.parse(text, "toml", "a.toml")
    assert document.line([keys[position]]) == 2 * position + 2
    assert document.line([keys[position], "absent"]) == 2 * position + 2
    assert document.line(["absent"]) is None


# -- the schema


def test_the_published_schema_is_that_of_the_code() -> None:
    assert (DOCS / "clip_config.schema.json").read_text(encoding="utf-8") == json_schema()


@pytest.mark.parametrize(
    "text", [CLIP, 'rule = "global_norm"\nthreshold = 1.0', 'rule = "none"', 'rule = "value"\nmin = -1.0\nmax = 2.0']
)
def test_valid_configurations_fit_the_schema(text: str) -> None:
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(ClipConfig.loads(text).dumps("json")), schema)


@pytest.mark.parametrize(
    "problem", ["a misspelt key", "a negative threshold", "an unknown rule", "an order of 0", "no rule"]
)
def test_the_schema_rejects_invalid_configurations(problem: str) -> None:
    data = documents.parse(BAD[problem][0], "toml", "").data
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(json_schema()))


# -- meanings

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
    with pytest.raises(RuntimeError, match=r"by this object, .* attach_to\(\), clipper\(\) or as_paddle\(\), read"):
        _ = clip.last


def test_a_gradient_that_is_not_among_the_names_is_an_error() -> None:
    clip = ClipConfig(rule="norm", threshold=1.0, exclude=["b"]).clipper(names={"a": np.ones(2)})
    with pytest.raises(TypeError, match=r"position 0 is a gradient alone, and .* Pass gradients as a dict"):
        clip([np.ones(2)])


def test_a_configuration_has_no_hash_and_the_error_has_the_function_to_compile() -> None:
    with pytest.raises(TypeError, match=r"^A ClipConfig has no hash.* jax\.jit\(lambda gradients: clip\(gradients\)\)"):
        hash(ClipConfig(rule="global_norm", threshold=1.0))
