"""Documents that are merged from several files: the file that sets a key, and limits of size."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.format_samples import DATA

from unified_clip import ConfigError
from unified_clip.config import documents
from unified_clip.config.documents import Document, PartialTable, Unknown, UnreadFile
from unified_clip.config.documents.inheritance.base_class import MOST_FILES
from unified_clip.config.documents.interpolation import resolve
from unified_clip.config.documents.merge import MergeRules
from unified_clip.config.formats import convert


def test_a_merged_document_lists_its_files_and_the_file_of_each_key() -> None:
    path = DATA / "detectron2" / "inherited_value.yaml"
    document = convert.named(path, "detectron2")[1]
    assert [file.name for file in document.files] == ["inherited_value.yaml", "rcnn.yaml", "rcnn_clipped.yaml"]
    keys = ("SOLVER", "CLIP_GRADIENTS", "CLIP_VALUE")
    assert document.origin(keys)[0].path == path
    assert document.line(keys) == 4
    base = document.origin(("SOLVER", "CLIP_GRADIENTS", "ENABLED"))[0]
    assert base.name == "bases/rcnn_clipped.yaml"
    assert document.place(("SOLVER", "CLIP_GRADIENTS", "ENABLED")).startswith("bases/rcnn_clipped.yaml, line 4, ")


def test_the_file_of_a_key_is_that_of_the_key_it_names_in_deepspeeds_file() -> None:
    document = convert.named(DATA / "hf" / "zero3.yaml", "hf")[1]
    assert document.origin(("deepspeed", "gradient_clipping"))[0].name == "bases/zero3.json"
    assert document.line(("deepspeed", "gradient_clipping")) == 3
    assert document.origin(("deepspeed",))[0].name == "zero3.yaml"


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


def test_a_value_that_files_do_not_show_is_an_error_with_its_own_code() -> None:
    unread = UnreadFile("a.yaml, line 1, base", "cannot find b.yaml.", "Add it.")
    data = MergeRules().merge(unread, {"known": {"x": 1}, "unknown": Unknown("!env X", "Write it.")})
    document = Document("a.yaml", "", "yaml", data)
    assert document.get("known", "x") == 1
    assert isinstance(data["known"], PartialTable)
    for keys in (("known", "y"), ("other",), ("unknown",), ("unknown", "x")):
        with pytest.raises(ConfigError) as caught:
            document.get(*keys)
        assert caught.value.code == "UC106"
    with pytest.raises(
        ConfigError,
        match=r"^a\.yaml, line 1, base: cannot find b\.yaml\. A file that was not read might set other\. Add it\.$",
    ):
        document.has("other")
    assert not document.shows("other")


def test_a_configuration_of_too_many_files_is_rejected(tmp_path: Path) -> None:
    """Each file names the next one twice, which would be read 2 ** 30 times."""
    for index in range(30):
        (tmp_path / f"{index}.yml").write_text(f"_BASE_: ['{index + 1}.yml', '{index + 1}.yml']\nlr: 1\n")
    (tmp_path / "30.yml").write_text("OptimizerBuilder: {clip_grad_by_norm: 1.0}\n")
    with pytest.raises(ConfigError, match=rf"the configuration has more than {MOST_FILES} base files"):
        convert.named(tmp_path / "0.yml", "paddledetection")


@pytest.mark.parametrize("table", ["${%s}${%s}", ["${%s}", "${%s}"]])
def test_interpolations_do_not_fill_the_memory(table: str | list[str]) -> None:
    data: dict[str, object] = {"k0": "text" if isinstance(table, str) else [1, 2]}
    for index in range(60):
        name = f"k{index}"
        parts = [part.replace("%s", name) for part in ([table] if isinstance(table, str) else table)]
        data[f"k{index + 1}"] = parts[0] if isinstance(table, str) else parts
    resolved = resolve(data)
    assert isinstance(resolved if isinstance(table, list) else resolved["k60"], Unknown)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${a.b}", 1),
        ("${a.list[1]}", 3),
        ("${a.list.0}", 2),
        ("x${a.b}-${a.list[0]}", "x1-2"),
        ("${${name}.b}", 1),
        ("${a}", {"b": 1, "list": [2, 3]}),
        ("${ a.b }", 1),
        ("plain", "plain"),
        ("$a", "$a"),
    ],
)
def test_an_interpolation_is_the_value_that_it_names(text: str, expected: object) -> None:
    assert resolve({"a": {"b": 1, "list": [2, 3]}, "name": "a", "x": text})["x"] == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${b.c}", "${b.c} names a key that does not exist."),
        ("${x}", "${x} refers to itself."),
        ("${oc.env:A}", "is only known at run time. The value needs the resolver oc.env."),
        ("${oc.env:A,1}", "is only known at run time. The value needs the resolver oc.env."),
        ("${a.b.c}", "${a.b.c} names a key that does not exist."),
        ("${a", "${a has braces that do not match."),
        ("${}", "${} does not name a key."),
        ("\\${a.b}", "\\${a.b} has an escaped ${, which is not supported."),
        ("${a.list[7]}", "${a.list[7]} names a key that does not exist."),
        ("the list ${a.list}", "the list ${a.list} inserts a table or a list into a text."),
        ("${long}${long}", "${long}${long} has more than 10000 characters with its values inserted."),
    ],
)
def test_an_interpolation_that_is_not_static_is_unknown(text: str, problem: str) -> None:
    value = resolve({"a": {"b": 1, "list": [2, 3]}, "long": "-" * 6000, "x": text})["x"]
    assert isinstance(value, Unknown)
    assert problem in value.problem


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
