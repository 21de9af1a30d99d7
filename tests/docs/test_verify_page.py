"""docs/verify.md: its example and its correction print the output on the page, and the page has every verdict."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.page_examples import patched, run

from unified_clip.verify.report import VERDICTS

PAGE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_the_port_from_paddle_to_pytorch_has_the_report_on_the_page(tmp_path: Path) -> None:
    if None in (find_spec("torch"), find_spec("paddle")):
        pytest.skip("PyTorch or Paddle is not installed")
    scripts = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
    for name, code in scripts.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    assert ["import paddle" in scripts["old.py"], "import torch" in scripts["new.py"]] == [True, True]
    run(tmp_path, "data.py")
    ((command, printed),) = re.findall(r"```console\n\$ unified-clip (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert without_numbers(run(tmp_path, "-m", "unified_clip", *command.split())) == without_numbers(printed)
    ((name, diff),) = re.findall(r"```diff\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / name).write_text(patched(scripts[name], diff), encoding="utf-8")
    (last,) = re.findall(r"```text\n(.*)\n```", PAGE)
    assert run(tmp_path, "-m", "unified_clip", *command.split()).splitlines()[-1] == last


def without_numbers(text: str) -> list[str]:
    """Return the lines without numbers, which are rounded differently on another processor, and without the frame of
    the table."""
    lines = [re.sub(r"\d[-\d.e]*", "#", line) for line in text.splitlines() if line[0] not in "┏┡└"]
    return [" ".join(line.split()) for line in lines]


def test_the_page_has_every_verdict() -> None:
    section = PAGE.partition("## Verdicts")[2].partition("\n## ")[0]
    assert sorted(" ".join(name.split()) for name in re.findall(r"`([^`]+)`", section)) == sorted(VERDICTS.values())
