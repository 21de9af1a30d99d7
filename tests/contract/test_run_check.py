"""`unified-clip record --check` finds what a script in tests/data/run_check does otherwise than its configuration.

Lines of a script that begin with `#:` are its configuration. Each line with a finding ends with its kind and its steps,
as in `# found: missing 1; drift 2 to 3`.
"""

from __future__ import annotations

import gc
import re
import runpy
from pathlib import Path

import pytest
from support.tiers import where

from unified_clip import ClipConfig, record
from unified_clip.check import run_check
from unified_clip.recording import runs

SCRIPTS = Path(__file__).parents[1] / "data" / "run_check"
FOUND = re.compile(r"# found: (.*)")
STEPS = re.compile(r"Steps? (.*)\.$")


def scripts(framework: str) -> list[Path]:
    return sorted((SCRIPTS / framework).glob("*.py"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    framework = metafunc.config.getoption("--framework").partition("-")[0]
    metafunc.parametrize("script", [pytest.param(path, id=path.stem) for path in scripts(framework)])


@where(lambda kit: bool(scripts(kit.name)))
@pytest.mark.filterwarnings("ignore:.*No clip calls were recorded:unified_clip.ClipWarning")
def test_each_finding_is_at_its_line(script: Path, tmp_path: Path) -> None:
    lines = script.read_text().splitlines()
    clip = tmp_path / "clip.toml"
    clip.write_text("\n".join(line[2:].strip() for line in lines if line.startswith("#:")))
    found = [(number, FOUND.search(line)) for number, line in enumerate(lines, start=1)]
    wanted = [(number, text) for number, match in found if match for text in match[1].split("; ")]
    gc.collect()  # models of earlier scripts, whose parameters have the same names
    with record(tmp_path / "run.jsonl", norms=ClipConfig.load(clip).uses_names):
        runpy.run_path(str(script))
    report = run_check.check(runs.read(tmp_path / "run.jsonl"), ClipConfig.load(clip), clip)
    texts = [f"{each.kind} {STEPS.search(each.effect)[1]}" for each in report.findings]  # type: ignore[index]
    assert sorted(zip([each.line for each in report.findings], texts, strict=True)) == sorted(wanted)
    assert all(each.path.endswith(script.name) for each in report.findings)
