"""The README's example for this framework runs, and prints what it says it clips."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.kits import KITS, Kit

README = Path(__file__).parent.parent.parent / "README.md"


CONFIGURATION = "## One configuration for all teams"


def examples_under(heading: str) -> list[str]:
    section = README.read_text().partition(f"{heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_example_runs(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    every = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    blocks = [block for block in every if block not in examples_under(CONFIGURATION)]
    examples = [block for block in blocks if f"import {kit.name}" in block.splitlines()[0]]
    assert len(examples) == 1
    assert len(blocks) == len({each.name for each in KITS.values()})
    namespace: dict[str, object] = {}
    exec(examples[0], namespace)
    printed = r"5\.4772" if kit.name == "numpy" else r"\d+\.\d"
    assert re.fullmatch(printed, capsys.readouterr().out.strip())
    if "same_norm" in namespace:
        assert kit.bits(namespace["same_norm"]) == kit.bits(namespace["norm"])


def test_the_example_of_a_configuration_runs(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pydantic")
    (example,) = examples_under(CONFIGURATION)
    exec(example, {})
    assert re.findall(r"# prints (.*)", example) == [capsys.readouterr().out.strip()]


def test_what_the_readme_names_is_there() -> None:
    linked = re.findall(r"\]\(([\w./-]+)\)", README.read_text())
    assert linked
    for target in linked:
        assert (README.parent / target).exists(), target
