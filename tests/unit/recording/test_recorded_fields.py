"""Recordings have all fields of the format, and unknown and missing fields are errors."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.recordings import HEADER, SHAPES, clip_line, complete, per_tensor_line, write_and_compare, write_recording

from unified_clip.compare.recordings import compare
from unified_clip.recorder.clips import rounded_bound
from unified_clip.recorder.samples import positions
from unified_clip.recorder.steps import count_changed
from unified_clip.recording import recorded_run, runs
from unified_clip.recording.lines import READABLE
from unified_clip.recording.recorded_run import (
    OF_A_CLIP,
    LoggedNumbers,
    OptimizerStep,
    Parameter,
    RecordedCall,
    RecordedTable,
    RecordedWarning,
)

SETTINGS = {
    "lr": 0.1, "momentum": 0.9, "dampening": 0.1, "nesterov": True, "weight_decay": 0.01, "betas": [0.9, 0.99],
    "alpha": 0.9, "centered": True, "eps": 1e-8, "eps_in_sqrt": True, "amsgrad": True, "maximize": True,
    "initial_accumulator_value": 0.1,
}  # fmt: skip

SAMPLE = [3.0] * len(positions(tuple(SHAPES["a"])))

CALL = {
    "seconds": 0.1, "gradients": "run.safetensors", "ranks": 2, "rank": 0, "layout": {"plain": 3}, "loss_scale": 8.0,
    "repeated": 1, "sparse": 1, "watched": True, "returned_norm": 13.0, "passed_norm": 13.0, "stored_norm": 13.0,
    "after": "clipped.safetensors", "is_gradient": True, "count": 3, "framework": "numpy", "late": True,
}  # fmt: skip

STEP = {
    "optimizer": "torch.optim.Adam", "settings": SETTINGS, "backward_calls": 1, "cleared": True, "changed": 1,
    "changed_after_clip": 1, "norm_at_step": 1.0, "empty_clips": 1, "empty_because": "no parameters", "hooks": 1,
    "decayed": [16, 24], "undecayed": ["c"], "rates": {"a": 0.1, "b": 0.2}, "repeated_rows": 1, "losses": [1.0],
    "gradients": 3, "clip_counts": {"1": 2, "0": 1}, "unclipped": ["c"], "clipped_early": 1,
    "clip_calls": 2, "instance": 1, "lost_clips": 1, "parameters": ["a", "b", "c"],
    "tensors": {"a": {"shape": SHAPES["a"], "norm": 3.0, "sample": SAMPLE}},
}  # fmt: skip

OF_A_LINE = {
    "step", "process",  # places of the line
    "place", "error", "calls", "clips",
}  # fmt: skip
"""Fields that the lines below lack: with an error, a call has no other fields, and `runs.read` computes some fields."""


def recorded_lines() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step in (1, 2, 3):
        clip = complete(clip_line(step, **CALL))
        for each in clip["parameters"].values():
            sample = [1.0] * len(positions(tuple(each["shape"])))
            each |= {"sums": [1.0, 2.0], "sample": sample, "weight_sample": sample, "update_sample": sample}
            each |= {"raw_sample": sample, "raw_norm": 1.0}
            each |= {"fingerprints": [1.0, 2.0]}
        logged = {"step": step, "logged": {"val_loss": 0.5, "accuracy": 0.9}}
        lines += [clip, {"step": step, **copy.deepcopy(STEP)}, logged, {"step": step, "warning": "a warning"}]
    return lines


def test_the_lines_have_all_fields() -> None:
    clip, step, logged, warning = recorded_lines()[:4]
    tables: list[tuple[type[RecordedTable], Any]] = [
        (RecordedCall, clip), (OptimizerStep, step), (LoggedNumbers, logged), (RecordedWarning, warning),
        (Parameter, clip["parameters"]["a"]),
    ]  # fmt: skip
    for table, line in tables:
        assert {*table.model_fields} - {*line} <= OF_A_LINE
    assert {*SETTINGS} == {*recorded_run.SETTINGS}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_bound_is_rounded_to_the_dtype_of_the_gradient(dtype: str) -> None:
    numbers = [0.3, 1 + 2.0**-8, 1 + 3 * 2.0**-8, -0.0, 1e300, -math.inf]  # with ties of bfloat16
    with np.errstate(over="ignore"):
        expected = np.array(numbers, np.float32).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    assert [rounded_bound(number, dtype) for number in numbers] == expected.astype(float).tolist()


def test_a_gradient_that_stays_nan_is_not_changed() -> None:
    tensors = {"a": {"sample": [math.nan, 1.0]}}
    assert count_changed(tensors, {"a": [math.nan, 1.0, math.nan]}) == 0
    assert count_changed(tensors, {"a": [2.0, 1.0, math.nan]}) == 1


@pytest.mark.parametrize("max_ulp", [None, 0])
@pytest.mark.parametrize("schema", READABLE)
def test_a_recording_with_all_fields_follows_its_own_recipe(tmp_path: Path, max_ulp: float | None, schema: int) -> None:
    """Version 1 has no lines for optimizer steps, and version 2 has no samples."""
    path = write_recording(tmp_path / "run.jsonl", recorded_lines(), schema=schema)
    assert compare(path, path, max_ulp=max_ulp).exit_code == 0


def test_a_loss_may_differ_by_rounding_after_a_step_with_equal_losses(tmp_path: Path) -> None:
    lines = [*recorded_lines(), *({"step": step, "logged": {"my_loss": 1.0}} for step in (1, 2))]
    rounded = [*lines[:-1], {"step": 2, "logged": {"my_loss": 1.0 + 2.0**-23}}]
    assert not write_and_compare(tmp_path, lines, rounded, max_ulp=None).findings


def test_nan_losses_and_learning_rates_are_differences(tmp_path: Path) -> None:
    a = write_recording(tmp_path / "a", recorded_lines())
    for key, value, field in (("losses", ["nan"], "loss"), ("settings", {**SETTINGS, "lr": 0.2}, "learning rate")):
        lines = [{**line, key: value} if "optimizer" in line else line for line in recorded_lines()]
        (finding,) = compare(a, write_recording(tmp_path / "b", lines)).findings
        assert (finding.step, finding.field) == (1, field)


PLACES: list[tuple[int, tuple[str, ...]]] = [
    *((number, ()) for number in range(5)), (1, ("parameters", "a")), (2, ("settings",)),
]  # fmt: skip


@pytest.mark.parametrize(("number", "keys"), PLACES)
def test_an_unknown_field_is_an_error_with_its_line(tmp_path: Path, number: int, keys: tuple[str, ...]) -> None:
    lines = [dict(HEADER), *recorded_lines()]
    place = lines[number]
    for key in keys:
        place = place[key]
    place["epss"] = 1.0
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(runs.RunError, match=rf"run.jsonl, line {number + 1}, (.*, )?epss: ") as caught:
        runs.read(tmp_path / "run.jsonl")
    assert caught.value.code == "UC501"


@pytest.mark.parametrize("name", OF_A_CLIP)
@pytest.mark.parametrize("make_line", [clip_line, per_tensor_line])
def test_a_missing_field_is_an_error_with_its_line(tmp_path: Path, make_line: Any, name: str) -> None:
    line = complete(make_line(1))
    del line[name]
    (tmp_path / "run.jsonl").write_text(f"{json.dumps(HEADER)}\n{json.dumps(line)}\n")
    with pytest.raises(runs.RunError, match=rf"run.jsonl, line 2[,:] {name}[: ]"):
        runs.read(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    ("number", "name"), [(2, "settings"), (2, "step"), (3, "step"), (4, "step"), (1, "call"), (0, "norms")]
)
def test_a_line_without_a_required_field_is_an_error(tmp_path: Path, number: int, name: str) -> None:
    lines = [dict(HEADER), *recorded_lines()]
    del lines[number][name]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(runs.RunError, match=rf"run.jsonl, line {number + 1}, {name}: "):
        runs.read(tmp_path / "run.jsonl")
