"""docs/recording.md: its examples run and print what it says, and it names every field and mistake there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unified_clip.recording import runs

PAGE = (Path(__file__).parents[2] / "docs" / "recording.md").read_text(encoding="utf-8")


def run(folder: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_the_training_example_records_its_steps(tmp_path: Path) -> None:
    training, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(tmp_path, "-c", training)
    found = runs.read(tmp_path / "run.jsonl")
    assert [line.step for line in found.lines] == [1, 2, 3]
    assert set(found.lines[0].parameters) == {"weight", "bias"}


def test_the_comparison_prints_what_the_page_says(tmp_path: Path) -> None:
    _, example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    run(tmp_path, "-c", example)
    ((command, printed),) = re.findall(r"```console\n\$ unified-clip (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert run(tmp_path, "-m", "unified_clip", *command.split()) == printed


@pytest.mark.parametrize("model", [runs.RecordedCall, runs.Header, runs.Parameter])
def test_every_field_is_on_the_page(model: type[runs.Table]) -> None:
    for name, field in model.model_fields.items():
        assert f"`{field.alias or name}`" in PAGE


def test_every_mistake_is_on_the_page() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (Path(runs.__file__).parent / "causes").glob("*.py")]
    mistakes = [mistake for source in sources for mistake in re.findall(r'return Finding\(\s*"([^"]+)"', source)]
    assert len(mistakes) >= 10
    for mistake in set(mistakes):
        assert f"| {mistake} |" in PAGE
