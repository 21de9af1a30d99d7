"""docs/recording.md: its examples print the output on the page, and it names every field and cause."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.page_examples import run

import unified_clip
from unified_clip.recording import recorded_run, runs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "recording.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_training_example_records_its_steps(tmp_path: Path) -> None:
    training, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(tmp_path, "-c", training)
    recorded = runs.read(tmp_path / "run.jsonl")
    assert [line.step for line in recorded.lines] == [1, 2, 3]
    assert set(recorded.lines[0].parameters) == {"weight", "bias"}
    texts = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()
    clips, steps = ([data for text in texts if key in (data := json.loads(text))] for key in ("call", "optimizer"))
    first, *_ = ({name: {*fields} for name, fields in clip["parameters"].items()} for clip in clips)
    assert (first["weight"] - first["bias"], first["bias"] & {"sums", "fingerprints"}) == ({"sums"}, {"fingerprints"})
    assert [[*fields] for fields in clips[1]["parameters"].values()] == [["shape", "norm", "weight"]] * 2
    assert [step["cleared"] for step in steps] == [None, True, True]
    assert not any("changed" in step for step in steps)


@pytest.mark.nightly
def test_changed_counts_gradients_from_the_first_step_on(tmp_path: Path) -> None:
    training, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    clip = "uc.clip_grad_norm_(model.parameters(), max_norm=1.0)"
    assert clip in training
    run(tmp_path, "-W", "ignore", "-c", training.replace(clip, "model.bias.grad.mul_(0.5)"))
    texts = (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(text).get("changed", "missing") for text in texts[1:]] == [1, 1, 1]


@pytest.mark.nightly
def test_the_comparison_prints_the_output_on_the_page(tmp_path: Path) -> None:
    *_, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(tmp_path, "-c", example)
    ((command, printed),) = re.findall(r"```console\n\$ unified-clip (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert run(tmp_path, "-m", "unified_clip", *command.split()) == printed


TRAINING = """
import torch

models = [torch.nn.Linear(4, 1) for _ in range(2)]
steps = [torch.optim.Adam(each.parameters()) for each in models]
for _ in range(3):
    models[0](torch.ones(8, 4)).sum().backward()
    {clip}
    steps[0].step()
    models[1](torch.ones(8, 4)).sum().backward()

    steps[1].step()
"""


@pytest.mark.nightly
def test_the_check_of_a_run_prints_the_output_on_the_page(tmp_path: Path) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(models[0].parameters(), 5.0)"
    (tmp_path / "train.py").write_text(TRAINING.format(clip=clip).removeprefix("\n"), encoding="utf-8")
    (tmp_path / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0', encoding="utf-8")
    printed = run(tmp_path, *["-m", "unified_clip", "record", "--check", "clip.toml", "--"], sys.executable, "train.py")
    assert f"```text\n{printed}```" in PAGE


@pytest.mark.parametrize(
    "model", [runs.RecordedCall, runs.OptimizerStep, runs.LoggedNumbers, runs.Header, runs.Parameter]
)
def test_every_field_is_on_the_page(model: type[recorded_run.RecordedTable]) -> None:
    for name, field in model.model_fields.items():
        if model is not runs.OptimizerStep or name not in ("calls", "run"):  # the file does not have these fields
            assert f"`{field.alias or name}`" in PAGE


def test_every_cause_is_on_a_page() -> None:
    package, parity_page = Path(unified_clip.__file__).parent, DOCS / "parity.md"
    sources = [
        path.read_text(encoding="utf-8") for path in [*package.glob("causes/*.py"), *package.glob("recording/**/*.py")]
    ]
    named = r'(?:(?:Cause|Hypothesis|Setting|\.cause)\(\s*|kind = |kind, sentence = )"([^"]+)"'
    kinds = {kind for source in sources for kind in re.findall(named, source)}
    assert len(kinds) > 20
    listed = re.findall(r"^\| ([^|]+) \|", PAGE + parity_page.read_text(encoding="utf-8"), re.MULTILINE)
    assert kinds <= {kind for cell in listed for kind in cell.split(", ")}
