"""`unified-clip compare`, the command: what it prints, its exit status, and what it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.recordings import cause_kinds, clip_line, write_and_compare, write_recording

from unified_clip import cli
from unified_clip.compare import recordings as compare
from unified_clip.compare.report import sentences


def test_the_command_prints_the_differences_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = str(write_recording(tmp_path / "a.jsonl", [clip_line(1), clip_line(2)]))
    b = str(write_recording(tmp_path / "b.jsonl", [clip_line(1), clip_line(2, threshold=2.0)]))
    assert cli.main(["compare", a, a]) == 0
    assert "The runs follow the same recipe in 2 steps, with 3 parameters" in capsys.readouterr().out
    assert cli.main(["compare", a, b]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("The runs differ from step 2 on: another threshold.\n")
    assert "Another threshold: the threshold is 2 in b.jsonl instead of 1 (step 2).\n  Pass 1 in b.jsonl." in printed
    assert cli.main(["compare", a, b, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    (finding,) = data["findings"]
    assert {key: finding[key] for key in ("step", "mistake", "field", "a", "b")} == {
        "step": 2, "mistake": "another threshold", "field": "threshold", "a": 1.0, "b": 2.0
    }  # fmt: skip
    assert (data["same"], data["steps"]) == (False, 2)
    assert data["parameters"] == {"a": "a", "b": "b", "c": "c"}


def test_runs_of_one_file_name_are_named_with_their_folders(tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    a = write_recording(tmp_path / "old" / "run.jsonl", [clip_line(1)])
    b = write_recording(tmp_path / "new" / "run.jsonl", [clip_line(1, threshold=2.0)])
    (finding,) = compare.compare(a, b).findings
    assert "in new/run.jsonl instead of" in finding.sentence


def test_parameters_that_only_one_run_has_are_listed(tmp_path: Path) -> None:
    """For example, a model with LoRA trains other parameters."""
    with_adapter = [clip_line(1, {"a": 3.0, "b": 4.0, "lora_A": 12.0})]
    comparison = write_and_compare(tmp_path, [clip_line(1, {"a": 3.0, "b": 4.0})], with_adapter, max_ulp=None)
    assert comparison.recipes.unpaired == ([], ["lora_A"])


@pytest.mark.parametrize("key_is_old", [True, False])
def test_a_map_pairs_parameters_in_either_direction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key_is_old: bool
) -> None:
    """By their order, "x" would be paired with "q"."""
    norms = {"x": 3.0, "y": 4.0}
    a = write_recording(tmp_path / "a.jsonl", [clip_line(1, norms, weights={})])
    b = write_recording(tmp_path / "b.jsonl", [clip_line(1, {"p": 3.0, "q": 4.0}, weights={})])
    pairs = {"x": "q", "y": "p"} if key_is_old else {"q": "x", "p": "y"}
    (tmp_path / "names").write_text("".join(f'{left} = "{right}"\n' for left, right in pairs.items()))
    assert cli.main(["compare", str(a), str(b), "--json", "--map", str(tmp_path / "names")]) == 1
    assert json.loads(capsys.readouterr().out)["parameters"] == {"x": "q", "y": "p"}


def test_a_map_may_name_a_parameter_that_no_call_clips(tmp_path: Path) -> None:
    runs = [
        [clip_line(1, {clipped: 3.0}), {"step": 1, "optimizer": "torch.optim.SGD", "instance": 1, "parameters": both}]
        for clipped, *both in (("x", "x", "y"), ("p", "p", "q"))
    ]
    comparison = write_and_compare(tmp_path, *runs, names={"y": "q"})
    assert [(pair.old, pair.new) for pair in comparison.recipes.pairs] == [(("x",), ("p",)), (("y",), ("q",))]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [({"none": "p"}, "none"), ({"x": "p", "q": "y"}, "q"), ({"x": "none"}, "none")],
)
def test_a_map_of_unknown_names_or_in_both_directions_is_an_error(
    tmp_path: Path, pairs: dict[str, str], message: str
) -> None:
    a = write_recording(tmp_path / "a.jsonl", [clip_line(1, {"x": 3.0, "y": 4.0})])
    b = write_recording(tmp_path / "b.jsonl", [clip_line(1, {"p": 3.0, "q": 4.0})])
    with pytest.raises(compare.RunError, match=message):
        compare.compare(a, b, names=pairs)


@pytest.mark.parametrize(
    ("status", "words"),
    [(1, " The recorded command failed with exit status 1."), (-9, " The recorded command was ended by signal 9.")]
    + [(status, "") for status in (None, 0, -2, 130)],
)
def test_a_recording_of_a_failed_command_is_named(tmp_path: Path, status: int | None, words: str) -> None:
    """Ctrl-C may end a recording on purpose."""
    path = write_recording(tmp_path / "a.jsonl", [clip_line(1)], exit_status=status)
    assert sentences.report_lines(compare.compare(path, path))[1] == f"{path}: 1 call.{words}"
    longer = write_recording(tmp_path / "b.jsonl", [clip_line(1), clip_line(2)])
    kinds = [] if status in (-2, 130) else ["one run is shorter"]
    assert all(cause_kinds(compare.compare(*runs)) == kinds for runs in ((path, longer), (longer, path)))


def test_the_command_rejects_missing_files_and_invalid_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = str(write_recording(tmp_path / "a.jsonl", [clip_line(1)]))
    assert cli.main(["compare", a, str(tmp_path / "none")]) == 2
    assert cli.main(["compare", a, a, "--map", str(tmp_path / "none")]) == 2
    assert cli.main(["compare", a, a, "--max-ulp", "nan"]) == 2
    assert "--max-ulp is nan. Pass 0 or more." in capsys.readouterr().err


EMPTY = {"step": 1, "call": "clip_grad_norm_", "seconds": 0.1}

BOUNDED = {**clip_line(1, rule="value", norm_type=None, norm=None, coef=None, parameters={}), "threshold": [-1.0, 1.0]}


@pytest.mark.parametrize("json_option", [[], ["--json"], ["--format", "json"]])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (
            [],
            [],
            "a.jsonl: No clip calls were recorded. Recordings contain the calls of unified_clip and of",
        ),
        ([], [clip_line(1)], "a.jsonl: No clip calls were recorded"),
        (
            [clip_line(1)],
            [],
            "b.jsonl: No clip calls were recorded. Recordings",
        ),
        ([EMPTY], [EMPTY], "a.jsonl: None of the 1 recorded calls has a result: 1 got no gradient. Clip after"),
        (
            [clip_line(1)],
            [EMPTY, {**EMPTY, "error": "ValueError: no"}],
            "b.jsonl: None of the 2 recorded calls has a result: 1 raised an error (ValueError: no), 1 got no",
        ),
        (
            [BOUNDED],
            [BOUNDED],
            "Nothing was compared, because no gradient of one run matches one of the other. Record both runs with",
        ),
    ],
)
def test_runs_without_comparable_calls_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], a: Any, b: Any, message: str, json_option: list[str]
) -> None:
    files = [str(write_recording(tmp_path / name, lines)) for name, lines in (("a.jsonl", a), ("b.jsonl", b))]
    assert cli.main(["compare", *files, *json_option]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            [clip_line(1, process=1), clip_line(2, process=1)],
            "The run has 2 processes, with the same norms and coefficients.",
        ),
        (
            [clip_line(1, process=1), clip_line(2, process=1, norm=5.0)],
            "At step 2, the norm is 13.0 in the first process, and 5.0 in process 1.",
        ),
        ([clip_line(1, process=1)], "Another process has 1 call."),
    ],
)
def test_processes_of_a_run_are_compared_with_its_first_process(
    tmp_path: Path, more: list[dict[str, Any]], sentence: str
) -> None:
    processes = [{"rank": 0, "ranks": 2}, {"rank": 1, "ranks": 2}]
    path = write_recording(tmp_path / "a.jsonl", [clip_line(1), clip_line(2), *more], processes=processes)
    comparison = compare.compare(path, path)
    assert not comparison.findings
    assert sentence in sentences.report_lines(comparison)[1]
