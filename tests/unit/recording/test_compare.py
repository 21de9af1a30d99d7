"""`unified-clip compare`, the command: what it prints, its exit status, and what it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.recordings import clip_line, write_and_compare, write_recording

from unified_clip import cli
from unified_clip.recording import compare
from unified_clip.recording.report import sentences


def test_the_command_prints_the_first_difference_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = str(write_recording(tmp_path / "a.jsonl", [clip_line(1), clip_line(2)]))
    b = str(write_recording(tmp_path / "b.jsonl", [clip_line(1), clip_line(2, threshold=2.0)]))
    assert cli.main(["compare", a, a]) == 0
    assert "The runs are the same: 2 calls." in capsys.readouterr().out
    assert cli.main(["compare", a, b]) == 1
    printed = capsys.readouterr().out
    assert "The runs first differ at step 2: threshold is 1.0 and 2.0." in printed
    assert "Another threshold: b.jsonl differs from a.jsonl as if the threshold were 2.0 instead of 1.0" in printed
    assert "Norms are equal in all 2 calls that were compared." in printed
    assert "To use the same threshold in both runs, change the threshold in b.jsonl." in printed
    assert "Coefficients differ from step 2 on, by at most" in printed
    assert cli.main(["compare", a, b, "--json"]) == 1
    (divergence,) = json.loads(capsys.readouterr().out)["divergences"]
    assert (divergence["step"], divergence["stage"], divergence["findings"][0]["mistake"]) == (
        2,
        "threshold",
        "another threshold",
    )


def test_runs_of_one_file_name_are_named_with_their_folders(tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    a = write_recording(tmp_path / "old" / "run.jsonl", [clip_line(1)])
    b = write_recording(tmp_path / "new" / "run.jsonl", [clip_line(1, threshold=2.0)])
    (cause,) = compare.compare(a, b).findings
    assert cause.sentence.startswith("new/run.jsonl differs from old/run.jsonl as if the threshold were")


@pytest.mark.parametrize("norms", [{"a": 3.0, "b": 4.0, "c": 12.0, "d": 84.0}, {"e": 13.0, "f": 84.0}], ids=len)
def test_recordings_of_other_parameters_are_named_beside_another_threshold(
    tmp_path: Path, norms: dict[str, float]
) -> None:
    lines = [[clip_line(1)], [clip_line(1, norms, threshold=2.0)]]
    comparison = write_and_compare(tmp_path, *lines)
    text = "\n".join(sentences.report_lines(comparison))
    has_sentence = f"a.jsonl clips 3 gradients with 24 elements, and b.jsonl clips {len(norms)} gradients with" in text
    is_left_out = any(cause.kind == "left out" for cause in comparison.findings)
    assert has_sentence != is_left_out, text


def test_other_parameters_are_not_called_unexplained(tmp_path: Path) -> None:
    """For example, a model with LoRA trains other parameters."""
    adapters = clip_line(1, {"lora_A": 5.0, "lora_B": 7.0}, weights={})
    printed = sentences.report_lines(write_and_compare(tmp_path, [clip_line(1)], [adapters]))
    others = [
        line
        for line in printed
        if line.startswith("The runs clip different parameters: at step 1, a.jsonl clips 3 gradients")
    ]
    assert len(others) == 1
    assert not [line for line in printed if line.startswith("Unexplained")]


@pytest.mark.parametrize(
    ("status", "words"),
    [(1, " The recorded command failed with exit status 1."), (-9, " The recorded command was ended by signal 9.")]
    + [(status, "") for status in (None, 0, -2, 130)],
)
def test_a_recording_of_a_failed_command_is_named(tmp_path: Path, status: int | None, words: str) -> None:
    """Ctrl-C may end a recording on purpose."""
    path = write_recording(tmp_path / "a.jsonl", [clip_line(1)], exit_status=status)
    assert sentences.report_lines(compare.compare(path, path))[1] == f"{path}: 1 call.{words}"


def test_calls_that_were_not_compared_are_no_alarm_if_a_cause_explains_them(tmp_path: Path) -> None:
    lines = [clip_line(step) for step in (1, 2, 3)]
    comparison = write_and_compare(tmp_path, lines, lines[:2])
    assert comparison.exit_code == 1
    printed = sentences.report_lines(comparison)
    assert not any(line.startswith("Only") for line in printed), "the cause explains it"
    assert "Norms are equal in all 2 calls that were compared." in printed


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
            "No numbers were compared. Without --norms, no norms are recorded for clips by value. Record both",
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


def test_runs_without_norms_get_a_hint_to_record_norms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:

    a = str(write_recording(tmp_path / "a.jsonl", [clip_line(1, parameters={})], norms=False))
    b = str(write_recording(tmp_path / "b.jsonl", [clip_line(1, parameters={}, norm=14.0)], norms=False))
    assert cli.main(["compare", a, b]) == 1
    printed = capsys.readouterr().out
    assert "Unexplained: the differing numbers fit no known cause, or more than one." in printed
    assert "record both runs with norms=True" in printed


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
    assert comparison.first is None
    assert sentence in sentences.report_lines(comparison)[1]
