"""Documents: the lines of keys, unknown values, and files that inherit from other files."""

from __future__ import annotations

import pytest

from unified_clip import ConfigError
from unified_clip.config import documents
from unified_clip.config.documents import Document, Unknown


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("_BASE_: a.yaml\n", ("_BASE_",)),
        ("_base_: [a.yaml, b.yaml]\n", ("_base_",)),
        ("_base_: [1]\n", None),
        ("defaults:\n- trainer: gpu\n", ("defaults",)),
        ("defaults:\n- _self_\n- override /trainer: gpu\n", ("defaults",)),
        ("defaults:\n- _self_\n- override hydra/launcher: joblib\n- /hydra/sweeper: ax\n", None),
        ("defaults:\n  lr: 0.1\n", None),
        ("defaults:\n- {a: 1, b: 2}\n", None),
        ("# @package _global_\nlr: 0.1\n", ()),
        ("# A comment.\n\n# @package trainer\nlr: 0.1\n", ()),
        ("# @package _group_\nlr: 0.1\n", None),
        ("lr: 0.1  # @package trainer\n", None),
    ],
)
def test_a_file_inherits_by_a_key_or_by_a_comment_of_hydra(text: str, keys: tuple[str, ...] | None) -> None:
    assert documents.inheriting(documents.parse(text, "yaml", "a.yaml")) == keys


def test_the_line_of_a_merged_yaml_key_is_that_of_its_anchor() -> None:
    text = "base: &base\n  clip: 1\nother:\n  <<: *base\n  lr: 2\n"
    document = documents.parse(text, "yaml", "a.yaml")
    assert document.get("other", "clip") == 1
    assert document.line(("other", "clip")) == 2
    assert document.line(("other", "lr")) == 5


@pytest.mark.parametrize(
    ("merged", "clip", "line"),
    [
        ("  <<:\n    - {clip: 1}\n    - {clip: 2}\n", 1, 3),
        ("  <<: {clip: 1}\n  <<: {clip: 2}\n", 2, 3),
        ("  <<: [{<<: [{clip: 1}, {clip: 2}]},\n   {clip: 3}]\n", 1, 2),
    ],
    ids=["list", "two merges", "nested"],
)
def test_of_several_merged_yaml_tables_the_first_in_a_list_sets_a_key(merged: str, clip: int, line: int) -> None:
    document = documents.parse(f"other:\n{merged}", "yaml", "a.yaml")
    assert document.get("other", "clip") == clip
    assert document.line(("other", "clip")) == line


@pytest.mark.parametrize("value", ["3", "[3]", "null"])
def test_a_yaml_merge_of_a_value_that_is_not_a_table_is_an_error(value: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.yaml, line 2: << merges a value that is not a table\. Name a table"):
        documents.parse(f"other:\n  <<: {value}\n", "yaml", "a.yaml")


@pytest.mark.parametrize("kind", ["yaml", "json"])
def test_duplicate_keys_are_reported_with_their_line_and_the_last_one_counts(kind: str) -> None:
    text = '{"a": {"b": 1},\n"c": [{"d": 2, "e": 3,\n"d": 4}],\n"a": {"b": 5}}'
    document = documents.parse(text, kind, "a")
    assert document.data == {"a": {"b": 5}, "c": [{"d": 4, "e": 3}]}
    assert {(duplicate.keys, duplicate.line) for duplicate in document.duplicates} == {(("a",), 1), (("c", 0, "d"), 2)}
    assert document.line(("a", "b")) == 4


@pytest.mark.parametrize("value", ["${clip}", "x-${clip}", "${oc.env:CLIP}", Unknown("!env X", "Write it.")])
def test_an_unknown_value_is_an_error_with_its_own_code(value: object) -> None:
    document = Document("a.yaml", "", "yaml", {"known": {"x": 1}, "unknown": value})
    assert document.get("known", "x") == 1
    assert document.shows("unknown")
    for keys in (("unknown",), ("unknown", "x")):
        with pytest.raises(ConfigError) as caught:
            document.get(*keys)
        assert caught.value.code == "UC106"
    with pytest.raises(ConfigError):
        document.has("unknown", "x")


def test_a_variable_of_a_shell_script_is_no_interpolation() -> None:
    assert Document("a.sh", "", "args", {"clip": "${CLIP}"}).get("clip") == "${CLIP}"


def test_an_ordered_dict_is_a_table_if_its_entries_are_pairs() -> None:
    tag = "!!python/object/apply:collections.OrderedDict"
    assert documents.parse(f"{tag}\n- - - b\n    - 1\n  - - a\n    - [2]\n", "yaml", "a.yml").data == {"b": 1, "a": [2]}
    for entries in ("- - [1, 2]\n", "- - [a]\n", "- []\n- []\n", "- 1\n"):
        assert isinstance(documents.parse(f"{tag}\n{entries}", "yaml", "a.yml").data, Unknown)


def test_a_key_is_a_text_as_in_yaml_12() -> None:
    document = documents.parse("off: [a]\nNo: off\ntrue: 1\n3: b\n", "yaml", "a.yml")
    assert document.data == {"off": ["a"], "No": False, True: 1, 3: "b"}
    assert [document.line([key]) for key in document.data] == [1, 2, 3, 4]


def test_a_key_that_replaces_a_merged_key_is_no_duplicate() -> None:
    text = "base: &base\n  a: 1\nown:\n  <<: *base\n  a: 2\ntwice:\n  a: 3\n  a: 4\n"
    document = documents.parse(text, "yaml", "a.yml")
    assert document.data["own"] == {"a": 2}
    assert [(each.keys, each.line, each.value) for each in document.duplicates] == [(("twice", "a"), 7, 3)]
    assert [document.line(keys) for keys in (["own", "a"], ["twice", "a"])] == [5, 8]


def test_documents_with_the_same_text_do_not_share_their_tables() -> None:
    documents.parse("a:\n  b: 1\n", "yaml", "first.yaml").data["a"]["b"] = 2
    assert documents.parse("a:\n  b: 1\n", "yaml", "second.yaml").data == {"a": {"b": 1}}
