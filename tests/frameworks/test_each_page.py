"""Every example on the framework's own page, docs/<framework>.md, runs and prints what the page says."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from support.kits import Kit, in_a_new_process

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("torch", "tensorflow", "paddle", "jax", "mlx")
RUN = """
import contextlib, io, json

printed = []
for number, code in enumerate({codes!r}, 1):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, f"example {{number}}", "exec"), {{"__name__": "__main__"}})
    printed.append(out.getvalue())
print(json.dumps(printed))
"""
"""Runs all examples in one process, because importing the framework takes long."""

SETTINGS = ("enable_static", "set_logical_device", "disable_v2", "FLAGS", "enable_x64", "XLA_FLAGS")
"""Settings of a whole process. An example with one of these settings needs its own process."""


EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)


@pytest.mark.nightly
@pytest.mark.graphs
@pytest.mark.parametrize("alone", [False, True])
def test_the_examples_run(kit: Kit, request: pytest.FixtureRequest, alone: bool) -> None:
    if request.config.getoption("--framework") not in PAGES:
        pytest.skip("there is no page about it")
    if not kit.exact or os.environ.get("UNIFIED_CLIP_NATIVE") == "0":
        pytest.skip("examples are run as readers run them")
    examples = EXAMPLE.findall((DOCS / f"{kit.name}.md").read_text(encoding="utf-8"))
    assert examples
    own = [example for example in examples if any(setting in example[0] for setting in SETTINGS)]
    groups = [[example] for example in own] if alone else [[example for example in examples if example not in own]]
    for group in groups:
        printed = in_a_new_process(RUN.format(codes=[code for code, _ in group])).splitlines()[-1]
        assert json.loads(printed) == [text for _, text in group]
