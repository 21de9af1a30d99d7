"""docs/config.md: its examples print the output on the page, and its table has every key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from unified_clip import ClipConfig
from unified_clip.config.families import family_difference
from unified_clip.config.schema import Settings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "config.md").read_text(encoding="utf-8")
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_the_examples_print_the_output_on_the_page(tmp_path: Path, index: int) -> None:
    code, printed = EXAMPLES[index]
    if "import torch" in code and find_spec("torch") is None:
        pytest.skip("the example needs PyTorch")
    (tmp_path / "clip.toml").write_text(TOML[0], encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert done.stdout == printed


@pytest.mark.parametrize("text", TOML)
def test_the_files_are_read(text: str) -> None:
    ClipConfig.loads(text)


def names_of_rows(heading: str) -> set[str]:
    section = PAGE.partition(f"\n{heading}\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_the_table_has_every_key() -> None:
    assert names_of_rows("## The keys") == set(Settings.model_fields)


def test_the_page_has_every_attribute_of_the_last_clip() -> None:
    clip = ClipConfig(rule="none")
    clip([])
    assert names_of_rows("## Logging and monitoring") == {name for name in dir(clip.last) if name[0] != "_"} - {
        "metrics"
    }


def test_every_block_of_the_page_is_executed() -> None:
    kinds = re.findall(r"```(\w+)\n", PAGE)
    assert kinds.count("python") == len(EXAMPLES)
    assert kinds.count("toml") == len(TOML)
    assert kinds.count("text") == len(EXAMPLES) + 1  # an error
    assert kinds.count("console") == 1


COMMANDS = re.findall(r"^\$ (.*)", PAGE, re.MULTILINE)


@pytest.mark.nightly
def test_the_commands_run_as_printed(tmp_path: Path) -> None:
    (tmp_path / "clip.toml").write_text(TOML[0], encoding="utf-8")
    assert len(COMMANDS) >= 4
    (explained,) = re.findall(r"explain clip\.toml\n(clip\.toml\n.*?)```", PAGE, re.DOTALL)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONSAFEPATH": "1",
        "PYTHON": sys.executable,
    }
    begin = 'unified-clip() { "$PYTHON" -m unified_clip "$@"; }; '
    printed = ""
    for command in COMMANDS:
        run = ["bash", "-c", begin + command]
        done = subprocess.run(run, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.returncode == 0, done.stderr
        printed += done.stdout + done.stderr
    assert ClipConfig.load(tmp_path / "ds.toml").threshold == 0.5
    for text in (
        "max_grad_norm: 0.5",
        explained,
    ):
        assert text in printed


def test_the_refusal_is_the_one_that_is_shown() -> None:
    (shown,) = re.findall(r"clip\.toml, (line 2, .*)", PAGE)
    with pytest.raises(ValueError, match=re.escape(shown)):
        ClipConfig.loads('rule = "norm"\ntreshold = 1.0')


def test_the_differences_of_families_are_those_that_are_computed() -> None:
    sentence = " ".join(PAGE.partition("largest at the threshold:")[2].partition("\n- ")[0].split())
    assert sentence == "0.0001 % with a threshold of 1, 0.01 % with 0.01, and 9 % with 1e-5."
    for threshold, relative in ((1.0, 1e-6), (0.01, 1e-4), (1e-5, 0.09)):
        a, b = (ClipConfig(rule="global_norm", threshold=threshold, family=name) for name in ("pytorch", "paddle"))
        difference = family_difference(a, b)
        assert difference is not None
        assert difference.relative == pytest.approx(relative, rel=0.02)
