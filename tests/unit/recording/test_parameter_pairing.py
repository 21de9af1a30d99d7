"""`unified-clip compare` pairs the parameters of two runs: by name, by shape and order, or by a map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.recordings import NEW_NAMES, clip_line, per_tensor_line, rename_parameters

from unified_clip.recording import runs
from unified_clip.recording.pairs import parameters
from unified_clip.recording.report import sentences


def test_parameters_without_a_common_name_are_paired_by_shape_and_order(compare_runs: Any) -> None:
    comparison = compare_runs([clip_line(1)], [rename_parameters(clip_line(1), NEW_NAMES)])
    assert comparison.first is None
    assert comparison.pairs[0].names == NEW_NAMES
    moved = rename_parameters(clip_line(1, {"a": 3.0, "b": 4.0, "c": 12.5}, norm=13.0), NEW_NAMES)
    assert compare_runs([clip_line(1)], [moved]).first.parameter == "c"


@pytest.mark.parametrize("line", [clip_line, per_tensor_line])
def test_parameters_beside_common_names_are_paired_by_shape_if_all_have_a_partner(compare_runs: Any, line: Any) -> None:
    new = rename_parameters(line(1), {"a": "x", "b": "b", "c": "z"})
    assert compare_runs([line(1)], [new]).pairs[0].names == {"a": "x", "b": "b", "c": "z"}
    fewer = rename_parameters(line(1, {"a": 3.0, "b": 4.0}), {"a": "x", "b": "b"})
    assert compare_runs([line(1)], [fewer]).pairs[0].names == {"b": "b"}


@pytest.mark.parametrize("names", [["1.weight", "2.weight", "3.weight"], ["0.weight", "2.weight", "3.weight"]])
def test_numbers_that_a_layer_without_parameters_shifts_are_not_paired_as_names(
    compare_runs: Any, names: list[str]
) -> None:
    old = rename_parameters(clip_line(1), dict(zip("abc", ("0.weight", "1.weight", "2.weight"), strict=True)))
    new = rename_parameters(clip_line(1), dict(zip("abc", names, strict=True)))
    comparison = compare_runs([old], [new])
    assert comparison.first is None
    assert comparison.pairs[0].names == dict(zip(old["parameters"], names, strict=True))


def test_numbers_in_another_order_are_paired_as_names(compare_runs: Any) -> None:
    old, new = (
        rename_parameters(clip_line(1), dict(zip("abc", names, strict=True)))
        for names in (["2.weight", "10.weight", "head"], ["10.weight", "2.weight", "last"])
    )
    names = compare_runs([old], [new]).pairs[0].names
    assert names == {"2.weight": "2.weight", "10.weight": "10.weight", "head": "last"}


def test_recordings_of_version_01_have_no_list_indices_and_keep_the_prefixes_of_wrappers(compare_runs: Any) -> None:
    old_names = {"a": "layers.w", "b": "layers.w#2", "c": "module.head/kernel:0"}
    new_names = {"a": "layers.0.w", "b": "layers.1.w", "c": "head.kernel"}
    norms = {"a": 3.0, "b": 4.0, "c": 12.0, "shared": 5.0, "only old": 1.0}  # the shapes alone pair nothing
    old = rename_parameters(clip_line(1, norms), {**{name: name for name in norms}, **old_names})
    norms.pop("only old")
    new = rename_parameters(clip_line(1, norms), {**{name: name for name in norms}, **new_names})
    pairs = {old_names[key]: name for key, name in new_names.items()} | {"shared": "shared"}
    assert compare_runs([old], [new]).pairs[0].names == pairs
    assert compare_runs([new], [old]).pairs[0].names == {name: other for other, name in pairs.items()}


def test_words_in_another_order_are_paired_as_names(compare_runs: Any) -> None:
    parameters = rename_parameters(clip_line(1), {"a": "x", "b": "c", "c": "b"})["parameters"]
    assert compare_runs([clip_line(1)], [clip_line(1, parameters=parameters)]).pairs[0].names["b"] == "b"


def test_a_difference_names_the_parameter_in_both_runs(compare_runs: Any) -> None:
    new = rename_parameters(clip_line(1, {"a": 3.0, "b": 5.0, "c": 12.0}), NEW_NAMES)
    text = "\n".join(sentences.report_lines(compare_runs([clip_line(1)], [new])))
    assert f"the norm of the gradient of 'b' ({NEW_NAMES['b']!r} in b.jsonl) is 4.0 and 5.0" in text
    assert " in b.jsonl)" not in "\n".join(
        sentences.report_lines(compare_runs([clip_line(1)], [clip_line(1, {"a": 3.5})]))
    )


def test_positions_of_gradients_are_not_paired_as_names(compare_runs: Any) -> None:
    weight, bias = {"norm": 3.0, "shape": [4, 2]}, {"norm": 4.0, "shape": [8]}
    old, new = clip_line(1, parameters={"0": weight, "1": bias}), clip_line(1, parameters={"0": bias, "1": weight})
    assert compare_runs([old], [new]).first is None


def test_parameters_that_a_map_lacks_are_paired_by_shape_and_order(compare_runs: Any) -> None:
    crossed = {"a": "y.weight", "b": "x.weight", "c": "z.bias"}
    comparison = compare_runs([clip_line(1)], [rename_parameters(clip_line(1), crossed)], names={"a": "y.weight"})
    assert comparison.first is None
    assert comparison.pairs[0].names == crossed


@pytest.mark.parametrize("reverse", [False, True])
def test_a_map_pairs_parameters_in_either_direction(compare_runs: Any, tmp_path: Path, reverse: bool) -> None:
    crossed = {"a": "y.weight", "b": "x.weight", "c": "z.bias"}
    names = {new_name: name for name, new_name in crossed.items()} if reverse else crossed
    (tmp_path / "map.toml").write_text("".join(f'"{name}" = "{new_name}"\n' for name, new_name in names.items()))
    comparison = compare_runs(
        [clip_line(1)], [rename_parameters(clip_line(1), crossed)], names=parameters.read_names(tmp_path / "map.toml")
    )
    assert comparison.first is None


def test_a_map_with_an_unknown_name_is_rejected(compare_runs: Any) -> None:
    with pytest.raises(
        runs.RunError, match=r"has 'd', which is not a parameter of .*a.jsonl. This run has parameters such as a, b, c"
    ):
        compare_runs([clip_line(1)], [clip_line(1)], names={"d": "a"})
    with pytest.raises(runs.RunError, match=r"has 'd', which is not a parameter of .*b.jsonl"):
        compare_runs([clip_line(1)], [clip_line(1)], names={"a": "d"})


def test_a_map_in_both_directions_is_rejected(compare_runs: Any) -> None:
    new = rename_parameters(clip_line(1), {"a": "x", "b": "y", "c": "z"})
    with pytest.raises(
        runs.RunError, match=r"has 'y', .* The other run has this parameter. On every line, write the name from one run"
    ):
        compare_runs([clip_line(1)], [new], names={"a": "x", "y": "b"})
    with pytest.raises(runs.RunError, match=r"has 'bb', .* of .*a.jsonl\. This run has parameters such as b"):
        compare_runs([clip_line(1)], [new], names={"x": "a", "y": "bb"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "map.toml"),
        ("a = 1", 'map.toml, a: the value is not a string. Put both names in quotes: "a" = "its name'),
        ("fc.weight = 'x'", r'fc: this is a table.* such as "fc.weight" = "its name .* such as \[fc\]\.'),
        ("a = 'c'\nb = 'c'", "several lines have the value 'c'. Keep only one"),
        ("a = " + "[" * 5000, "map.toml: its lists or tables are nested too deep"),
    ],
    ids=["no value", "a number", "a table", "two of one name", "nested"],
)
def test_an_invalid_map_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "map.toml").write_text(text)
    with pytest.raises(runs.RunError, match=message):
        parameters.read_names(tmp_path / "map.toml")


def test_parameters_of_a_shape_that_one_run_leaves_out_are_paired_by_their_gradients(compare_runs: Any) -> None:
    """The biases and the weights of LayerNorm have one shape."""
    norms = {"dense/kernel": 3.0, "dense/bias": 4.0, "norm/gamma": 5.0, "norm/beta": 6.0}
    later = {name: norm + 1 for name, norm in norms.items()}
    kept, other = {"dense.weight": 3.0, "dense.bias": 4.0}, {"dense.weight": 4.5, "dense.bias": 5.5}
    shapes = {"dense/kernel": [4, 8], "dense.weight": [8, 4]}

    def line(step: int, of_call: dict[str, float]) -> dict[str, Any]:
        call = clip_line(step, of_call, weights={})
        return {**call, "parameters": {n: {**p, "shape": shapes.get(n, [8])} for n, p in call["parameters"].items()}}

    comparison = compare_runs([line(1, norms), line(2, later)], [line(1, kept), line(2, other)])
    assert [pair.names for pair in comparison.pairs] == [
        {"dense/kernel": "dense.weight", "dense/bias": "dense.bias"}
    ] * 2
    assert comparison.first is not None
    assert (comparison.first.a, comparison.first.b) == (("norm/beta", "norm/gamma"), ())
    assert str(comparison.findings[0]).startswith(
        "Left out: b.jsonl differs from a.jsonl: 'norm/gamma' and 'norm/beta' are missing."
    )
