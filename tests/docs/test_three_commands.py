"""The commands of docs/ci.md: from a repository with one file of gradients to a report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.page_examples import run

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]

# Compiling would take most of the time. The packages of the extra are installed. The 0 switches isolation off.
PIP = {"PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "CXX": "false"}


def commands() -> list[str]:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    return ["pip install '../unified_clip[cli]'", *re.findall("```sh\n(.*?)```", page, re.DOTALL)[0].splitlines()]


def test_three_commands_lead_to_a_report(tmp_path: Path) -> None:
    (tmp_path / "unified_clip").symlink_to(ROOT)
    repository, installed = tmp_path / "repository", tmp_path / "installed"
    repository.mkdir()
    numbers = np.random.default_rng(0)
    weight, bias = (numbers.standard_normal(shape).astype(np.float32) for shape in ((64, 32), 64))
    np.savez(repository / "gradients.npz", weight=weight, bias=bias)
    environment = {name: value for name, value in os.environ.items() if name != "UNIFIED_CLIP_NATIVE"}
    path = os.pathsep.join([str(installed / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment |= {**PIP, "PIP_TARGET": str(installed), "PYTHONPATH": str(installed), "PATH": path}
    assert len(commands()) == 3
    for command in commands():
        subprocess.run(["bash", "-c", command], cwd=repository, env=environment, check=True)
    page = (repository / "report" / "index.html").read_text(encoding="utf-8")
    assert re.search("PASS</strong> <span>\\d+ results of unified_clip are exact", page)
    assert (repository / "parity" / "suite.toml").is_file()


def test_the_tutorial_shows_what_the_commands_print(tmp_path: Path) -> None:
    """docs/ci.md: the first line of a run on PyTorch and Paddle, the last lines of --accept, and a run with reasons."""
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    numbers = np.random.default_rng(0)
    weight, bias = (numbers.standard_normal(shape).astype(np.float32) for shape in ((64, 32), 64))
    np.savez(tmp_path / "gradients.npz", weight=weight, bias=bias)
    suite, known = (tmp_path / "parity" / name for name in ("suite.toml", "known.toml"))

    def printed(*arguments: str) -> list[str]:
        return run(tmp_path, "-m", "unified_clip", "parity", *arguments).splitlines()

    printed("init", "gradients.npz", "--frameworks", "torch,paddle")
    first = printed()[:1]
    suite.write_text(suite.read_text(encoding="utf-8").replace("# known =", "known ="), encoding="utf-8")
    accepted = printed("--accept")[-2:]
    known.write_text(known.read_text(encoding="utf-8").replace('reason = ""', 'reason = "ours"'), encoding="utf-8")
    shown = [line for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL)[:3] for line in block.splitlines()]
    about = [re.sub(r"\d+", "#", line) for line in shown]
    assert [re.sub(r"\d+", "#", line) for line in (*first, *accepted, *printed()[:1])] == about
