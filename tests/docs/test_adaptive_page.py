"""docs/adaptive.md: its examples print the output on the page, and its table has every rule and key."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from unified_clip import ClipConfig
from unified_clip.adaptive.rules import RULES

PAGE = (Path(__file__).parents[2] / "docs" / "adaptive.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL)
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_the_examples_print_the_output_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    code, output = EXAMPLES[index]
    (tmp_path / "clip.toml").write_text(TOML[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "docs/adaptive.md", "exec"), {})
    assert printed.getvalue() == output


def test_every_block_of_the_page_is_executed() -> None:
    kinds = re.findall(r"```(\w+)\n", PAGE)
    assert {kind: kinds.count(kind) for kind in kinds} == {"toml": 2, "python": len(EXAMPLES), "text": len(EXAMPLES)}
    assert ClipConfig.loads(TOML[0]).is_adaptive
    assert ClipConfig.loads(TOML[1]).needs_parameters


@pytest.mark.parametrize("name", RULES)
def test_the_table_has_every_key_and_its_default(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|.*\| (.*) \|$", PAGE, re.MULTILINE)
    keys = re.findall(r"`(\w+)` ([^ ,]+)", row)
    defaults = {key: json.loads(text.replace("none", "null")) for key, text in keys}
    assert defaults == {field.name: field.default for field in fields(RULES[name])}
