"""docs/config.md: its examples run and print what it says, and its table has every key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
def test_the_examples_print_what_the_page_says(tmp_path: Path, index: int) -> None:
    code, printed = EXAMPLES[index]
    (tmp_path / "clip.toml").write_text(TOML[0], encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert done.stdout == printed


@pytest.mark.parametrize("text", TOML)
def test_the_files_are_read(text: str) -> None:
    ClipConfig.loads(text)


def test_every_key_is_there() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == set(Settings.model_fields)


def test_the_refusal_is_the_one_that_is_shown() -> None:
    (shown,) = re.findall(r"clip\.toml, (line 2, .*)", PAGE)
    with pytest.raises(ValueError, match=re.escape(shown)):
        ClipConfig.loads('rule = "norm"\ntreshold = 1.0')


def test_the_differences_of_families_are_those_that_are_computed() -> None:
    rows = re.findall(r"^\| (1\S*|0\S*) \| ([\de.-]+)", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for threshold, relative in rows:
        a, b = (
            ClipConfig(rule="global_norm", threshold=float(threshold), family=name) for name in ("pytorch", "paddle")
        )
        difference = family_difference(a, b)
        assert difference is not None
        assert difference.relative == float(relative)
