"""The README: its figures are those of the measured table, and it has the facts that newcomers need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DIFFERENCES = (ROOT / "docs" / "native_differences.md").read_text(encoding="utf-8")
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def rows(table: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]


def differences() -> list[list[str]]:
    return rows(README.partition("## Why\n")[2].partition("\n## ")[0])[2:]


@pytest.mark.parametrize(("problem", "framework", "result"), differences())
def test_a_difference_is_in_the_measured_table(problem: str, framework: str, result: str) -> None:
    sizes = re.findall(r"[\d.]+ %", result) or ["inf or NaN"]
    for name in framework.split(", "):
        measured = [row[3].split(", ") for row in rows(DIFFERENCES) if len(row) == 6 and name in row[1]]
        assert any(size in cell for cell in measured for size in sizes), (problem, name)


def test_there_are_four_differences() -> None:
    assert len(differences()) == 4


NEVER_RUN = (
    "**unified_clip has never run on other GPUs or on several GPUs. On a GPU, it has never run with PyTorch 2.13, "
    "TensorFlow, Paddle or MLX.**"
)


@pytest.mark.parametrize("fact", [NEVER_RUN, "not on the package index", "loss curve", "docs/install.md"])
def test_a_newcomer_reads_it_first(fact: str) -> None:
    assert fact in " ".join(README.split())


def test_the_readme_fits_on_one_screen() -> None:
    assert len(README.splitlines()) <= 85


def test_the_example_is_that_of_the_quickstart() -> None:
    (example,) = re.findall(r"```python\n.*?```", README, re.DOTALL)
    assert example in QUICKSTART


def test_links_lead_to_files() -> None:
    linked = re.findall(r"\]\(([\w./-]+)\)", README)
    assert len(linked) > 10
    assert [target for target in linked if not (ROOT / target).exists()] == []


def test_every_command_in_the_table_exists() -> None:
    from unified_clip.cli import EXTRAS

    commands = re.findall(r"\| `unified-clip (\w+)", README)
    assert len(commands) >= 5
    assert set(commands) <= set(EXTRAS)
