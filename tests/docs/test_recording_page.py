"""docs/recording.md: its examples do what the page describes, and it names every cause. docs/recording_fields.md
names every field."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from support.page_examples import run

import unified_clip
from unified_clip.causes.cause import CauseKind
from unified_clip.recording import recorded_run, runs

DOCS, PACKAGE = Path(__file__).parents[2] / "docs", Path(unified_clip.__file__).parent
PAGE = (DOCS / "recording.md").read_text(encoding="utf-8")
FIELDS = (DOCS / "recording_fields.md").read_text(encoding="utf-8")
SCRIPT, TRAINING, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.nightly
def test_the_commands_print_the_output_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    ((commands, printed),) = re.findall(r"```console\n((?:\$ [^\n]*\n)+)(.*?)```", PAGE, re.DOTALL)
    outputs = []
    for command in commands.splitlines():
        arguments = command.removeprefix("$ unified-clip ").split()
        arguments = [sys.executable if argument == "python" else argument for argument in arguments]
        outputs.append(run(tmp_path, "-m", "unified_clip", *arguments))
    texts = [re.sub(r"\d+\.\d{6,}", "#", text) for text in ("".join(outputs), printed)]
    assert texts[0] == texts[1]
    lines = [json.loads(line) for line in (tmp_path / "old.jsonl").read_text(encoding="utf-8").splitlines()[1:]]
    examples = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", FIELDS, re.DOTALL)]
    for example, line in zip([each for each in examples if "step" in each], lines[:2], strict=True):
        assert_is_in(example, line)
    (code,) = re.findall(r"```python\n(.*?)```", FIELDS, re.DOTALL)
    calls = [line for line in lines if "call" in line]
    assert run(tmp_path, "-c", code) == "".join(f"{line['step']} {line['norm']}\n" for line in calls) != ""


def assert_is_in(shortened: Any, line: Any) -> None:
    """Lines on the page leave out fields. Numbers of other processors can differ by rounding."""
    if isinstance(shortened, dict):
        for key, value in shortened.items():
            assert_is_in(value, line[key])
    else:
        assert line == (pytest.approx(shortened, rel=1e-5) if isinstance(shortened, float) else shortened)


@pytest.mark.nightly
def test_the_training_example_records_its_steps(tmp_path: Path) -> None:
    run(tmp_path, "-c", TRAINING)
    recorded = runs.read(tmp_path / "run.jsonl")
    assert [line.step for line in recorded.lines] == [1, 2, 3]
    assert set(recorded.lines[0].parameters) == {"weight", "bias"}
    texts = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()
    clips, steps = ([data for text in texts if key in (data := json.loads(text))] for key in ("call", "optimizer"))
    fields = {"shape", "norm", "weight", "sample", "weight_sample"}
    first, *rest = ([{*each} for each in clip["parameters"].values()] for clip in clips)
    assert (first, rest) == ([fields | {"sums"}, fields], [[fields, fields]] * 2)
    assert [step["cleared"] for step in steps] == [None, True, True]
    assert not any("changed" in step for step in steps)


@pytest.mark.nightly
def test_changed_counts_gradients_from_the_first_step_on(tmp_path: Path) -> None:
    clip = "uc.clip_grad_norm_(model.parameters(), max_norm=1.0)"
    assert clip in TRAINING
    run(tmp_path, "-W", "ignore", "-c", TRAINING.replace(clip, "model.bias.grad.mul_(0.5)"))
    texts = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(text).get("changed", "missing") for text in texts[1:]] == [1, 1, 1]


@pytest.mark.nightly
def test_the_check_of_a_run_prints_the_output_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0', encoding="utf-8")
    command = ["-m", "unified_clip", "record", "--check", "clip.toml", "--", sys.executable, "train.py", "2.0"]
    assert f"```text\n{run(tmp_path, *command)}```" in (DOCS / "config-check.md").read_text(encoding="utf-8")


def test_every_field_is_on_the_page() -> None:
    tables = (runs.RecordedCall, runs.OptimizerStep, runs.LoggedNumbers, recorded_run.RecordedWarning, runs.Header)
    others = (runs.Parameter, recorded_run.RecordedProcess)
    fields = {field.alias or name: field for table in (*tables, *others) for name, field in table.model_fields.items()}
    assert [name for name, field in fields.items() if not field.exclude and f"`{name}`" not in FIELDS] == []


def causes(table: str) -> list[str]:
    """Return the causes in the rows of a table."""
    return [cause for cell in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) for cause in cell.split(", ")]


def kinds_in(*folders: str) -> set[str]:
    """Return the kinds of causes that the code of these packages names."""
    paths = [path for folder in folders for path in (PACKAGE / folder).rglob("*.py") if path.name != "cause.py"]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return {node.value for node in nodes if isinstance(node, ast.Constant)} & {*get_args(CauseKind)}


OTHER_MEANINGS = {"float32", "not clipped"}
"""A dtype, and a value of the field "clip"."""


def test_the_table_has_the_causes_that_compare_and_verify_name() -> None:
    table = PAGE.partition("| cause | what to change |\n|---|---|\n")[2].partition("\n\n")[0]
    listed = causes(table)
    assert sorted(listed) == sorted(kinds_in("recipes", "compare", "verify") - OTHER_MEANINGS)
