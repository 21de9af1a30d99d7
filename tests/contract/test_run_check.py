"""`unified-clip record --check` finds what a script in tests/data/run_check does otherwise than its configuration.

A file has the script of most cases, and then, for each case, the lines that take the place of `...`: first those that
are not indented, then the indented ones. After `@@`, a case is a whole script.

A line that begins with `@ ` belongs to the case's configuration. What it does not set, if it sets no rule, is the
global norm with the threshold 1.0 and the framework's family. Each line with a finding ends with its kind and its
steps, as in `# found: missing 1; drift 2 to 3`.
"""

from __future__ import annotations

import gc
import re
import runpy
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.kits import Kit
from support.tiers import quick_on, where

from unified_clip import ClipConfig, record
from unified_clip.check import run_check
from unified_clip.recording import runs

FILES = {path.stem: path for path in (Path(__file__).parents[1] / "data" / "run_check").iterdir()}
FAMILIES = {"torch": "pytorch", "tensorflow": "tensorflow", "paddle": "paddle", "jax": "paddle"}
FOUND = re.compile(r"# found: (.*)")
STEPS = re.compile(r"Steps? (.*)\.$")


class Case(NamedTuple):
    title: str
    config: ClipConfig
    script: list[str]


def cases(framework: str) -> Iterator[Case]:
    common, *blocks = FILES[framework].read_text().split("\n== ")
    before, between, after = (part.splitlines() for part in re.split(r"\n *\.\.\.\n", common))
    for title, *lines in (block.splitlines() for block in blocks):
        config = tomllib.loads("\n".join(line[2:] for line in lines if line.startswith("@ ")))
        if "rule" not in config:
            config = {"rule": "global_norm", "threshold": 1.0, "family": FAMILIES[framework], **config}
        script = [line for line in lines if not line.startswith("@ ")]
        if script[0] == "@@":
            script = script[1:]
        else:
            inner = [line for line in script if line.startswith(" ")]
            script = [*before, *(line for line in script if line not in inner), *between, *inner, *after]
        yield Case(title, ClipConfig.model_validate(config), script)


@quick_on("torch", "tensorflow", "paddle")
@where(lambda kit: kit.name in FILES)
@pytest.mark.filterwarnings("ignore:.*No clip calls were recorded:unified_clip.ClipWarning")
def test_each_finding_is_at_its_line(kit: Kit, tmp_path: Path) -> None:
    """One test, because the change tier runs only a third of many variants."""
    wrong = {}
    for number, case in enumerate(cases(kit.name)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, wanted = findings(case, folder), sorted(annotated(case.script))
        if found != wanted:
            wrong[case.title] = found, wanted
    assert wrong == {}


def annotated(script: list[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(script, start=1):
        if match := FOUND.search(line):
            yield from ((number, text) for text in match[1].split("; "))


def findings(case: Case, folder: Path) -> list[tuple[int, str]]:
    script = folder / "train.py"
    script.write_text("\n".join(case.script))
    gc.collect()  # models of earlier scripts, whose parameters have the same names
    with warnings.catch_warnings(), record(folder / "run.jsonl", norms=case.config.uses_names):
        runpy.run_path(str(script))
    report = run_check.check(runs.read(folder / "run.jsonl"), case.config, Path("clip.toml"))
    assert all(each.path.endswith(script.name) for each in report.findings)
    texts = [f"{each.kind} {STEPS.search(each.effect)[1]}" for each in report.findings]  # type: ignore[index]
    return sorted(zip([each.line for each in report.findings], texts, strict=True))
