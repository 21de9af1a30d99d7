"""Every example on the framework's own page, docs/<framework>.md, runs by itself and prints what the page says."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits import Kit, in_a_new_process

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("torch", "tensorflow", "paddle", "jax")
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


def test_the_examples_run(kit: Kit) -> None:
    if kit.name not in PAGES:
        pytest.skip(f"{kit.name} has no graphs or devices to write a page about")
    examples = EXAMPLE.findall((DOCS / f"{kit.name}.md").read_text(encoding="utf-8"))
    assert examples
    with ThreadPoolExecutor(2) as pool:
        printed = list(pool.map(in_a_new_process, [code for code, _ in examples]))
    assert printed == [text for _, text in examples]
