"""docs/recording.md: its examples print the output on the page, and it names every field and cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.page_examples import run

import unified_clip
from unified_clip.recording import runs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "recording.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_training_example_records_its_steps(tmp_path: Path) -> None:
    training, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(tmp_path, "-c", training)
    recorded = runs.read(tmp_path / "run.jsonl")
    assert [line.step for line in recorded.lines] == [1, 2, 3]
    assert set(recorded.lines[0].parameters) == {"weight", "bias"}


@pytest.mark.nightly
def test_the_comparison_prints_the_output_on_the_page(tmp_path: Path) -> None:
    _, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(tmp_path, "-c", example)
    ((command, printed),) = re.findall(r"```console\n\$ unified-clip (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert run(tmp_path, "-m", "unified_clip", *command.split()) == printed


@pytest.mark.parametrize(
    "model", [runs.RecordedCall, runs.OptimizerStep, runs.LoggedNumbers, runs.Header, runs.Parameter]
)
def test_every_field_is_on_the_page(model: type[runs.Table]) -> None:
    for name, field in model.model_fields.items():
        if model is not runs.OptimizerStep or name not in ("calls", "run"):  # which the file does not have
            assert f"`{field.alias or name}`" in PAGE


def test_every_cause_is_on_a_page() -> None:
    package, parity_page = Path(unified_clip.__file__).parent, DOCS / "parity.md"
    sources = [
        path.read_text(encoding="utf-8") for path in [*package.glob("causes/*.py"), *package.glob("recording/**/*.py")]
    ]
    named = r'(?:(?:Cause|Hypothesis|\.cause)\(\s*|kind = |kind, sentence = )"([^"]+)"'
    kinds = {kind for source in sources for kind in re.findall(named, source)}
    assert len(kinds) > 20
    listed = re.findall(r"^\| ([^|]+) \|", PAGE + parity_page.read_text(encoding="utf-8"), re.MULTILINE)
    assert kinds <= {kind for cell in listed for kind in cell.split(", ")}
