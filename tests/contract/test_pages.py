"""Every example on the framework's own page, docs/<framework>.md, runs by itself and prints what the page says."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits import Kit, in_a_new_process

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("torch", "tensorflow", "paddle", "jax")
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


def test_the_examples_run(kit: Kit, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--framework") not in PAGES:
        pytest.skip("there is no page about it")
    if not kit.exact or os.environ.get("UNIFIED_CLIP_NATIVE") == "0":
        pytest.skip("examples are run as readers run them")
    examples = EXAMPLE.findall((DOCS / f"{kit.name}.md").read_text(encoding="utf-8"))
    assert examples
    with ThreadPoolExecutor(2) as pool:
        printed = list(pool.map(in_a_new_process, [code for code, _ in examples]))
    assert printed == [text for _, text in examples]
