"""The Makefile and the workflows: every file of tests belongs to a suite, and wrong arguments are errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").iterdir()
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FRAMEWORKS, NIGHTLY_FRAMEWORKS = (
    names.split() for names in re.findall(r"^(?:ALL|NIGHTLY)_FRAMEWORKS := (.*)$", MAKEFILE, re.MULTILINE)
)
OF_THIS_RUN = ("COVERAGE", "FRAMEWORKS", "MAKE", "MFLAGS", "NIGHTLY", "UNIFIED_CLIP")
"""Prefixes of variables that the calling `make` sets. The tests remove them, because they change what `make` prints."""


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_RUN)}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def make(*arguments: str) -> str:
    done = run_make(*arguments)
    done.check_returncode()
    return done.stdout


def test_every_file_of_a_framework_is_collected_in_its_suite() -> None:
    collected = re.compile(rf"test_({'|'.join([*FRAMEWORKS, *NIGHTLY_FRAMEWORKS, 'each'])})_\w+\.py")
    folders = ("frameworks", "distributed", "integrations")
    files = [path.name for folder in folders for path in ROOT.glob(f"tests/{folder}/test_*.py")]
    assert files
    assert [name for name in files if not collected.fullmatch(name)] == []


def test_test_runs_the_suites_of_the_chosen_frameworks() -> None:
    suites = re.findall(r"progress\.py (suite-\w+)", make("-n", "--always-make", "test", "FRAMEWORKS=torch paddle"))
    assert sorted(suites) == ["suite-paddle", "suite-torch"]


def test_an_unknown_framework_is_an_error_before_anything_runs() -> None:
    done = run_make("parity", "FRAMEWORKS=torch padle")
    assert (done.returncode, done.stdout) == (2, "")
    assert "padle. Choose from: " in done.stderr
    assert all(name in done.stderr for name in FRAMEWORKS)


def test_an_old_python_is_an_error_before_anything_is_installed(tmp_path: Path) -> None:
    (tmp_path / "python").write_text('#!/bin/bash\nexec "$REAL" -c "import sys; sys.version_info = (3, 9); $2"\n')
    (tmp_path / "python").chmod(0o755)
    done = run_make("parity", f"PYTHON={tmp_path}/python", f"VENV={tmp_path}/venv", f"REAL={sys.executable}")
    assert done.returncode == 2
    assert "is Python 3.9. Pass a newer Python, as in: make PYTHON=python3.11" in done.stderr
    assert not (tmp_path / "venv").exists()


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_shell_line_of_a_workflow_contains_an_expression_of_github(name: str) -> None:
    assert not [step["run"] for step in steps(WORKFLOWS[name]) if "${{" in step.get("run", "")]
