"""Errors of clip configurations name the file, the line, the key and the remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.config.clip_configs import BAD, write_config

from unified_clip import ClipConfig, ConfigError
from unified_clip.config import documents


@pytest.mark.parametrize("threshold", [np.bool_(True), np.array(1.0), True, 1j])
def test_a_threshold_that_is_no_number_is_rejected(threshold: Any) -> None:
    with pytest.raises(ConfigError, match="Give a number"):
        ClipConfig(rule="global_norm", threshold=threshold)


@pytest.mark.parametrize("large", [10**400, -(10**400)])
def test_an_integer_beyond_all_floats_is_rejected(large: int) -> None:
    with pytest.raises(ConfigError, match="a float cannot be that large"):
        ClipConfig(rule="value", threshold=large)


@pytest.mark.parametrize("problem", BAD)
def test_errors_name_the_place_and_the_remedy(tmp_path: Path, problem: str) -> None:
    text, message = BAD[problem]
    with pytest.raises(ConfigError) as error:
        ClipConfig.load(write_config(tmp_path, text))
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
        ("yaml", "- rule: norm", "clip.yaml contains [{'rule': 'norm'}], which is not a table. Give keys and"),
        ("yaml", "rule: off\n", "line 1, rule: it is False. Give 'none'"),
        ("yaml", "!!python/object:os.system x", "clip.yaml contains !!python/object:os.system x, which is not a table"),
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
        ("yaml", "rule: norm\n1: 2", "clip.yaml, line 2, 1: the key 1 is not a string. Write it in quotes"),
        ("yaml", "rule: norm\nthreshold: 1:30", "line 2, threshold: it is '1:30'. Give a number"),
        ("yaml", "rule: norm\ngroups: &a [*a]", "line 2: an alias refers to a value that contains the alias"),
        ("yaml", "rule: norm\ngroups:\n - {name: a, include: [x]}\n - {name: a, include: [x]}\nthreshold: 1",
         "clip.yaml, line 4, groups 2, name: two groups are named 'a'"),
        ("yaml", "rule: none\ngroups:\n - {name: a, include: [x]}\n - {name: b, include: [x], rule: norm}",
         "clip.yaml, line 4, groups 2: group 'b': rule = 'norm' needs a threshold"),
        ("toml", "rule = 'none'\n[[groups]]\nname = 'a'\ninclude = ['x']\n[[groups]]\nname = 'a'\ninclude = ['x']",
         "clip.toml, line 6, groups 2, name: two groups are named 'a'"),
        ("toml", "rule = 'norm'\nthreshold = " + "9" * 5000, "clip.toml, line 2: a number has 5000 characters"),
        ("toml", "rule = 'norm'\ngroups = [\n\n", "clip.toml, line 2: this is not TOML: "),
        ("json", '{"rule": "norm", "threshold": "-inf"}', "line 1, threshold: it is '-inf'. Give 0 or more"),
        ("toml", "rule = 'norm'\nmax_norm = 1.0", "line 2, max_norm: there is no such key. Did you mean threshold?"),
        ("json", '{"rule": ', "clip.json, line 1: this is not JSON: Expecting value. Correct it."),
        ("json", "[" * 100_000, "clip.json: its lists or tables are nested too deep"),
        ("ini", "rule = norm", "the suffix is not one of .toml, .yaml, .yml, .json"),
    ],
)  # fmt: skip
def test_errors_in_yaml_and_json_name_the_place(tmp_path: Path, kind: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ClipConfig.load(write_config(tmp_path, text, kind))


@pytest.mark.parametrize("top", ["{}", "rule: {}", "<<: {}", "rule: norm\nthreshold: {}", "rule: norm\nx: {}"])
@pytest.mark.parametrize("seed", ["lol", "&x {a: b}", "z" * 2000])
def test_aliases_do_not_eat_memory(top: str, seed: str) -> None:
    """The lists are nested, so that the values of all aliases together have 10**9 elements."""
    lists = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}' if i else seed] * 10)}]\n" for i in range(9))
    lists = lists.replace(f"[{', '.join([seed] * 10)}]", f"[{seed}]")
    text = f"{lists}{top.format('*l8')}" if top != "{}" else lists
    with pytest.raises(ConfigError, match="the text, line 1: the values of all aliases together are too large"):
        ClipConfig.loads(text, "yaml")


def test_large_values_are_shown_in_part() -> None:
    with pytest.raises(ConfigError, match=r"threshold: it is 'x.{1,70}. Give a number"):
        ClipConfig(rule="norm", threshold="x" * 10**7)
    with pytest.raises(ConfigError, match=r"threshold: it is .{1,80}. Give a smaller number"):
        ClipConfig(rule="norm", threshold=10**5000)


@pytest.mark.parametrize("kind", ["yml", "xml", ""])
def test_unknown_kinds_are_rejected(kind: str) -> None:
    message = f"'{kind}' is not a kind of file. Pass one of toml, yaml, json"
    with pytest.raises(ConfigError, match=message):
        ClipConfig.loads("rule: none", kind)
    with pytest.raises(ConfigError, match=message):
        ClipConfig(rule="none").dumps(kind)


def test_files_that_cannot_be_read_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read: No such file"):
        ClipConfig.load(tmp_path / "absent.toml")
    (tmp_path / "clip.toml").write_bytes(b"rule = \xff")
    with pytest.raises(ConfigError, match=r"clip\.toml cannot be read: byte 7 is not UTF-8"):
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
    position = data.draw(st.integers(0, len(keys) - 1))
    text = "".join(f"# {key}\n{json.dumps(key)} = {index}\n" for index, key in enumerate(keys))
    document = documents.parse(text, "toml", "a.toml")
    assert document.line([keys[position]]) == 2 * position + 2
    assert document.line([keys[position], "absent"]) == 2 * position + 2
    assert document.line(["absent"]) is None
