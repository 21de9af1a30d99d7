"""Recordings that `unified-clip compare` reads, or rejects with a reason."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.recordings import HEADER, clip_line, step_line, write_recording

from unified_clip.compare.report import model
from unified_clip.recording import runs
from unified_clip.recording.lines import READABLE


@pytest.mark.parametrize("schema", READABLE)
def test_numbers_that_json_does_not_have_are_read(tmp_path: Path, schema: int) -> None:
    overflow = {**clip_line(1, {"a": 1.0}, norm="nan", coef="nan", nan=2), "threshold": "inf"}
    run = runs.read(write_recording(tmp_path / "run.jsonl", [overflow, clip_line(2)], schema=schema))
    assert math.isnan(run.lines[0].norms()[0])
    assert run.lines[0].threshold == math.inf
    assert run.lines[1].parameters["c"].norm == 12.0
    assert not run.incomplete_line


def test_an_incomplete_line_of_a_process_is_read_from_the_header(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "run.jsonl", [clip_line(1)], processes=[{"incomplete_line": True}])
    assert runs.read(path).incomplete_line


def test_only_the_logged_numbers_of_the_first_process_are_those_of_the_run(tmp_path: Path) -> None:
    logged = [{"step": 1, "process": process, "logged": {"loss": float(process)}} for process in (1, 0)]
    path = write_recording(tmp_path / "run.jsonl", [clip_line(1), *logged], processes=[{"rank": 0}, {"rank": 1}])
    assert [each.logged for each in runs.read(path).logged] == [{"loss": 0.0}]


def test_the_steps_of_other_processes_are_not_those_of_the_run(tmp_path: Path) -> None:
    steps = [step_line(1, process=process) for process in (1, 0)]
    path = write_recording(tmp_path / "run.jsonl", [clip_line(1), *steps], processes=[{"rank": 0}, {"rank": 1}])
    assert [each.process for each in runs.read(path).optimizer_steps] == [0]


def test_infinite_bounds_are_strings_in_json(compare_runs: Any) -> None:
    bounds = [{"rule": "value", "threshold": ["-inf", high], "norm_type": None} for high in (1.0, 2.0)]
    comparison = compare_runs(*([{"step": 1, "call": "clip", **clip}] for clip in bounds))
    (finding,) = json.loads(json.dumps(model.build(comparison).as_json(), allow_nan=False))["findings"]
    assert (finding["a"], finding["b"]) == (["-inf", 1.0], ["-inf", 2.0])


def test_an_incomplete_last_line_is_not_read(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "run.jsonl", [clip_line(1), clip_line(2)])
    path.write_bytes(path.read_bytes()[:-20])
    run = runs.read(path)
    assert run.incomplete_line
    assert [each.step for each in run.lines] == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no complete line. If a run still writes the file"),
        (
            "{}\n",
            "line 1, unified_clip: Field required. Pass a file from the command `unified-clip record`",
        ),
        ('{"step": 1, "loss": 0.5}\n', "line 1, unified_clip: Field required. Pass a file from the command"),
        ("[1, 2]\n", "line 1 is not the header of a recording. Pass a file from the command"),
        (json.dumps({**HEADER, "schema": 4}) + "\n", r"format version \(schema\) 4, .* install unified_clip 0"),
        (
            json.dumps(HEADER) + "\n{\n",
            "line 2 is not JSON: Expecting property name enclosed in double quotes at column 2. ",
        ),
        (json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "step": 0}) + "\n", "line 2, step: "),
        (json.dumps(HEADER) + "\n" + "[" * 100_000 + "\n", "line 2 is not JSON: maximum recursion depth"),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "norm": None}) + "\n",
            "norm is None, which does not fit the rule 'gl",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "norm": []}) + "\n",
            "line 2: .* which does not fit the rule 'global'",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "rule": "each"}) + "\n",
            "which does not fit the rule 'each'",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "norm_type": None}) + "\n",
            "norm_type is missing, but the rule ",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "norm_type": -1}) + "\n",
            "norm_type is -1.0, but must be above 0. Record",
        ),
        (
            json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "norm_type": "nan"}) + "\n",
            "norm_type is nan, but must be above 0",
        ),
        (json.dumps(HEADER) + "\n" + json.dumps({**clip_line(1), "step": 10**400}) + "\n", "line 2, step: "),
    ],
)
def test_a_file_that_is_no_recording_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.jsonl").write_text(text)
    with pytest.raises(runs.RunError, match=message):
        runs.read(tmp_path / "run.jsonl")


def test_missing_and_binary_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(runs.RunError, match="cannot be read: No such file"):
        runs.read(tmp_path / "run.jsonl")
    (tmp_path / "run.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(runs.RunError, match="cannot be read: byte 0 is not UTF-8, so it is not a recording"):
        runs.read(tmp_path / "run.jsonl")


def test_steps_of_a_graph_have_the_number_of_clips_before_them(tmp_path: Path) -> None:
    lines = [step_line(1, clips=1), clip_line(1), step_line(1, clips=1), clip_line(2)]
    steps = runs.read(write_recording(tmp_path / "a.jsonl", lines)).optimizer_steps
    assert [step.calls for step in steps] == [1, 2]
