"""tools/progress.py: what `make` prints of a command that passes, fails, takes long, or is ended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "progress.py"
TESTS = """
import pytest

def test_a(): pass
def test_skipped(): pytest.skip("a reason")
"""
FAILING = TESTS + "def test_wrong(): assert 'a' == 'b'\n"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "--noconftest", "--rootdir")


def start(*command: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    arguments = [sys.executable, str(SCRIPT), "name", "a note", *command]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment)


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    return process.communicate()[0].splitlines()


def suite(folder: Path, text: str, *options: str) -> tuple[int, list[str]]:
    (folder / "test_it.py").write_text(text)
    process = start(*PYTEST, str(folder), "-p", "no:cacheprovider", *options, str(folder / "test_it.py"))
    lines = lines_of(process)
    return process.returncode, [line for line in lines if not line.startswith("   name: ")]


def test_a_suite_that_passes_is_two_lines_without_skips(tmp_path: Path) -> None:
    status, (first, last) = suite(tmp_path, TESTS)
    assert (status, first) == (0, "== name: a note")
    assert re.fullmatch(r"== name: 1 passed, 1 skipped in [\d.]+s", last)


def test_a_failure_is_printed_before_the_result(tmp_path: Path) -> None:
    status, lines = suite(tmp_path, FAILING)
    assert status == 1
    assert any("assert 'a' == 'b'" in line for line in lines)
    assert re.match("== name: FAILED, 1 failed, 1 passed, 1 skipped in ", lines[-1])


@pytest.mark.parametrize("status", [0, 3])
def test_other_commands_print_only_if_they_fail(status: int) -> None:
    process = start(sys.executable, "-c", f"print('output'); raise SystemExit({status})")
    lines = lines_of(process)
    assert process.returncode == status
    assert ("output" in lines) == bool(status)
    assert re.fullmatch(rf"== name: {'FAILED' if status else 'passed'} in \d+ s", lines[-1])
