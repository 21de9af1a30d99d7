"""Every proof runs in a tier: the table in CONTRIBUTING.md, the Makefile, the test files and the workflows agree."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from support.kits import KITS
from support.tiers import is_collected, leave_variants_to_nightly, where

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Tiers")[2].partition("\n## ")[0]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").iterdir()
}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
FRAMEWORKS, NIGHTLY_FRAMEWORKS = (
    names.split() for names in re.findall(r"^(?:ALL|NIGHTLY)_FRAMEWORKS := (.*)$", MAKEFILE, re.MULTILINE)
)
OF_THIS_RUN = ("COVERAGE", "FRAMEWORKS", "MAKE", "MFLAGS", "NIGHTLY", "UNIFIED_CLIP")
"""Prefixes of variables that the calling `make` sets. The tests remove them, because they change what `make` prints."""


TITLE = re.compile(r"(?:echo \"== |tools/progress\.py (?:--show )?(?!(?:tools|install|kernels) ))([\w,-]+)")
"""The beginning of a recipe, with its name. The set-up of an environment has three names."""


class Proof(NamedTuple):
    subject: str
    targets: tuple[str, ...]
    tests: tuple[str, ...]
    tiers: tuple[str, ...]


def proofs() -> list[Proof]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| ")
    ]
    assert rows[0] == ["proof", "`make`", "tests", "tier"]
    return [
        Proof(subject, *(tuple(re.findall("`([^`]+)`", cell)) for cell in (targets, tests)), tuple(tier.split(", ")))
        for subject, targets, tests, tier in rows[2:]
    ]


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_THIS_RUN)}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def make(*arguments: str) -> str:
    done = run_make(*arguments)
    done.check_returncode()
    return done.stdout


@functools.cache
def commands_of(*goals: str) -> str:
    return make("--always-make", "--dry-run", *goals)


def test_every_test_file_belongs_to_a_proof() -> None:
    claimed = {path for proof in proofs() for pattern in proof.tests for path in ROOT.glob(pattern)}
    assert set(ROOT.glob("tests/**/test_*.py")) - claimed == set()


def test_every_file_of_a_framework_is_collected_in_its_suite() -> None:
    collected = re.compile(rf"test_({'|'.join([*FRAMEWORKS, *NIGHTLY_FRAMEWORKS, 'each'])})_\w+\.py")
    folders = ("frameworks", "distributed", "integrations")
    files = [path.name for folder in folders for path in ROOT.glob(f"tests/{folder}/test_*.py")]
    assert files
    assert [name for name in files if not collected.fullmatch(name)] == []


@pytest.mark.parametrize("proof", proofs(), ids=lambda proof: proof.subject)
def test_every_proof_has_files_and_a_command(proof: Proof) -> None:
    assert proof.targets
    assert all(list(ROOT.glob(pattern)) for pattern in proof.tests)
    assert proof.tiers in {("change",), ("nightly",), ("change", "nightly")}
    commands_of(*proof.targets)


def goals_of_the_change_tier(programs: Path) -> list[str]:
    """Return the arguments of `make` in .ci/run where all files have changed."""
    fake_make = programs / "make"
    fake_make.write_text('#!/bin/bash\nprintf "make:%s\\n" "$@"\n', encoding="utf-8")
    fake_make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "BASE": "no commit"}
    run = subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=True)
    return [line.removeprefix("make:") for line in run.stdout.splitlines() if line.startswith("make:")]


@pytest.mark.parametrize(
    ("tier", "goals"), [("change", [".ci/run"]), ("nightly", ["nightly"])], ids=["change", "nightly"]
)
def test_a_tier_runs_its_proofs(tier: str, goals: list[str], tmp_path: Path) -> None:
    if tier == "change":
        goals = goals_of_the_change_tier(tmp_path)
    all_titles = set(TITLE.findall(commands_of(*goals)))
    recipes, setup = set(commands_of(*goals).splitlines()), set(commands_of(".venv/package").splitlines())
    for proof in proofs():
        for target in proof.targets:
            own = [line for line in commands_of(target).splitlines() if line not in setup]
            titles = set(TITLE.findall("\n".join(own))[:1])  # the other words depend on the tier
            assert own
            assert bool(titles & all_titles if titles else set(own) & recipes) == (tier in proof.tiers), target


def test_the_nightly_tier_runs_the_tests_that_the_change_tier_leaves_out() -> None:
    change, nightly = (
        [line for line in commands_of(goal, "ALSO=").splitlines() if "/pytest " in line] for goal in ("test", "nightly")
    )
    assert all('-m "not nightly"' in line for line in change)
    assert nightly
    of_oldest = [line for line in nightly if "build/oldest-" in line and "UNIFIED_CLIP_PATH" in line]  # to be quick
    assert of_oldest
    assert not any("not nightly" in line for line in nightly if line not in of_oldest)


@pytest.mark.parametrize("names", ["torch paddle", "paddle,torch", "numpy torch paddle torch"])
def test_parity_installs_and_runs_only_the_chosen_frameworks(names: str) -> None:
    printed = make("-n", "--always-make", "parity", f"FRAMEWORKS={names}").replace("\\\n", "")
    (install,) = re.findall(r"progress\.py install .*", printed)
    assert re.findall(r"--extra (\w+)|-r (\S+)", install) == [
        ("", "pyproject.toml"), ("cli", ""), ("paddle", ""), ("torch", ""),
    ]  # fmt: skip
    (command,) = re.findall(r"unified-clip parity .*", printed)
    assert "--frameworks numpy,paddle,torch" in command


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


def test_a_build_that_was_interrupted_is_not_taken_for_a_wheel() -> None:
    folders = re.findall(r"--wheel-dir (\S+)", commands_of(".venv/wheel"))
    assert folders == [".venv/wheel.part"]


@pytest.mark.parametrize(
    ("suite", "path", "native"),
    [
        ("suite-unit", None, "1"),
        ("suite-torch", None, "1"),
        ("suite-jax-x64", None, "1"),
        ("device-torch", "framework", "1"),
        ("device-jax-x64", "framework", "1"),
        ("without-numpy", None, "0"),
        ("without-torch", None, "0"),
    ],
)
def test_a_suite_sets_its_path(suite: str, path: str | None, native: str) -> None:
    printed = make("--assume-old=.venv/package", "RUN=env; true", suite)
    settings = dict(line.split("=", 1) for line in printed.splitlines() if line.startswith("UNIFIED_CLIP"))
    expected = {"UNIFIED_CLIP_NATIVE": native} | ({"UNIFIED_CLIP_PATH": path} if path else {})
    assert settings == expected


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def test_workflows_call_targets_that_exist() -> None:
    called = [
        line for workflow in WORKFLOWS.values() for step in steps(workflow) for line in step.get("run", "").splitlines()
    ]
    targets = [goal for line in called for goal in re.findall(r'\bmake "?([\w$-]+)', line)]
    assert sorted(targets) == ["docs", "nightly", "test-$FRAMEWORK", "wheel-test"]
    commands_of("nightly", "wheel-test")


def test_the_workflow_of_the_change_tier_tests_each_framework_alone() -> None:
    matrix = WORKFLOWS["ci"]["jobs"]["framework"]["strategy"]["matrix"]["framework"]
    assert matrix == FRAMEWORKS
    commands_of(*(f"test-{framework}" for framework in matrix))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_shell_line_of_a_workflow_contains_an_expression_of_github(name: str) -> None:
    assert not [step["run"] for step in steps(WORKFLOWS[name]) if "${{" in step.get("run", "")]


class Variant:
    """An imitation of a collected test, with the members that tiers read."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, [getattr(pytest.mark, mark) for mark in marks]

    def get_closest_marker(self, name: str) -> Any:
        return next((mark for mark in self.marks if mark.name == name), None)

    def add_marker(self, mark: Any) -> None:
        self.marks.append(mark)


def in_the_change_tier(suite: str, items: list[Variant]) -> list[str]:
    leave_variants_to_nightly(items, suite)  # type: ignore[arg-type]
    return sorted(item.nodeid for item in items if item.get_closest_marker("nightly") is None)


def test_a_third_of_many_variants_runs_in_the_change_tier_another_in_each_suite() -> None:
    many = [f"test_x.py::test_many[{number}]" for number in range(30)]
    chosen = {suite: in_the_change_tier(suite, list(map(Variant, many))) for suite in FRAMEWORKS}
    assert {len(kept) for kept in chosen.values()} == {10}
    assert len(set(map(tuple, chosen.values()))) == len(FRAMEWORKS)
    assert chosen["torch"] == in_the_change_tier("torch", list(map(Variant, reversed(many))))
    assert len(in_the_change_tier("torch", list(map(Variant, many[:5])))) == 1


def test_few_variants_and_those_that_the_test_chooses_run_in_the_change_tier() -> None:
    few = [Variant(f"test_x.py::test_few[{number}]") for number in range(3)]
    alone = Variant("test_x.py::test_alone")
    chosen = [Variant(f"test_x.py::test_quick[{n}]", *([] if n < 3 else ["nightly"])) for n in range(9)]
    assert in_the_change_tier("torch", [*few, alone, *chosen]) == sorted(
        item.nodeid for item in (*few, alone, *chosen[:3])
    )


def test_a_test_is_collected_for_the_kits_and_parameters_that_it_is_for() -> None:
    class Collected:
        callspec = SimpleNamespace(params={"dtype": "float64", "other": 1})
        marks = (where(lambda kit: kit.differentiates), where(lambda kit, dtype: dtype in kit.floating))

        def iter_markers(self, name: str) -> Iterator[pytest.Mark]:
            return (each.mark for each in self.marks if each.name == name)

    collected = [name for name in ("numpy", "torch", "paddle") if is_collected(Collected(), KITS[name])]
    assert collected == ["torch", "paddle"]
    Collected.callspec.params["dtype"] = "float8"
    assert not is_collected(Collected(), KITS["torch"])
