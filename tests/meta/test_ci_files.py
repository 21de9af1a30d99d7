"""action.yml, docs/gitlab-ci.yml and the page about them: their shell lines run, on a small suite on NumPy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.parity.cases import ONE_CASE, suite
from support.tiers import sampled

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
JOB = yaml.safe_load((ROOT / "docs" / "gitlab-ci.yml").read_text(encoding="utf-8"))["parity"]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
STEPS = {step.get("name", step.get("uses")): step for step in ACTION["runs"]["steps"]}

RIGHT = "pass"
WRONG = "import numpy as np, unified_clip.numpy as uc; uc.global_norm = lambda *_: np.float32(6)"
CLIPS_AT_TWICE = (
    "import unified_clip.numpy as uc; right = uc.clip_grad_norm_; "
    "uc.clip_grad_norm_ = lambda grads, limit, *more, **options: right(grads, 2 * limit, *more, **options)"
)
CRASHES = "import os; os._exit(7)"


class Machine:
    """An imitation of a CI runner: a workspace with a suite, and programs on the path.

    pip only writes its arguments to a file. `unified-clip` is this package's. Its worker for NumPy first runs a line
    of the test.
    """

    def __init__(self, home: Path) -> None:
        self.workspace, self.programs = home / "workspace", home / "programs"
        self.pip, self.output, self.summary = home / "pip", home / "output", home / "summary"
        for directory in (self.workspace / "parity", self.programs):
            directory.mkdir(parents=True)
        suite(self.workspace / "parity", ONE_CASE)
        self.put("python", f'printf "%s\\n" "$@" > "{self.pip}"')
        self.behave(RIGHT)

    def put(self, name: str, line: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        path.chmod(0o755)

    def behave(self, code: str, frameworks: Sequence[str] = ()) -> None:
        """Set the line that the worker runs first. frameworks: The frameworks that `init` finds."""
        program = self.programs.parent / "program.py"
        program.write_text(
            "import sys\nfrom unified_clip import cli\nfrom unified_clip.parity.workers import run_worker as launch\n"
            f"code = {code!r} + '\\nfrom unified_clip.parity.workers import worker; worker.main()'\n"
            "launch.command = lambda framework, python: [python, '-c', code, framework]\n"
            "from unified_clip.parity.suite import new_suite as begin\n"
            f"begin.PACKAGES = {{name: name for name in {frameworks!r}}} or begin.PACKAGES\nsys.exit(cli.main())\n",
            encoding="utf-8",
        )
        self.put("unified-clip", f'exec "{sys.executable}" -P "{program}" "$@"')

    def run(self, lines: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_OUTPUT": str(self.output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", lines],  # as GitHub does
            cwd=self.workspace,
            env={**os.environ, **variables, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def step(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        values = {key: entry["default"] for key, entry in ACTION["inputs"].items()} | inputs
        environment = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: values[match[1]], text)
            for key, text in STEPS[name]["env"].items()
        }
        return self.run(STEPS[name]["run"], environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


SUITE = "Run the suite"
INSTALL = "Install unified_clip and the frameworks"


# -- GitHub


def test_the_action_uses_the_inputs_that_it_declares_and_no_others() -> None:
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == set(ACTION["inputs"])
    assert all({"description", "default"} == entry.keys() for entry in ACTION["inputs"].values())
    outputs = {name: entry["value"] for name, entry in ACTION["outputs"].items()}
    assert outputs == {"exit-code": "${{ steps.parity.outputs.exit-code }}"}
    assert STEPS[SUITE]["id"] == "parity"


@pytest.mark.parametrize(("code", "status"), sampled([(WRONG, 1), (RIGHT, 0), (CRASHES, 3)], 3))
def test_the_summary_is_written_and_the_exit_status_kept(machine: Machine, code: str, status: int) -> None:
    machine.behave(code)
    completed = machine.step(SUITE)
    assert completed.returncode == status
    assert ("::error title=numpy%2C host path%2C " in completed.stdout) == (status != 0)
    assert machine.output.read_text() == f"exit-code={status}\n"
    assert machine.summary.read_text() == (machine.workspace / "report" / "parity.md").read_text()
    assert machine.summary.read_text().startswith("# Parity report\n")
    assert (machine.workspace / "report" / "parity.xml").exists()


def test_all_inputs_reach_the_command(machine: Machine) -> None:
    machine.put("unified-clip", 'printf "%s\\n" "$@"; mkdir -p "a report"; touch "a report/parity.md"')
    inputs = {"suite": "a suite", "frameworks": "numpy,torch", "out": "a report"}
    completed = machine.step(SUITE, **inputs, **{"extra-args": "--timeout  9"})
    assert completed.stdout.splitlines() == [
        *("parity", "--format", "github", "--timeout", "9", "--suite", "a suite", "--out", "a report"),
        *("--frameworks", "numpy,torch"),
    ]
    completed = machine.step(SUITE, out="a report")
    assert completed.stdout.splitlines() == ["parity", "--format", "github", "--suite", "parity", "--out", "a report"]


@pytest.mark.parametrize("name", ["suite", "frameworks", "out", "extra-args"])
def test_nothing_in_an_input_is_run(machine: Machine, name: str) -> None:
    machine.put("unified-clip", "exit 2")
    machine.step(SUITE, **{name: '"; touch hacked; $(touch hacked) `touch hacked`'})
    assert not list(machine.workspace.glob("**/hacked"))


def test_the_action_installs_its_own_unified_clip_and_the_requested_packages(machine: Machine) -> None:
    own = ["-m", "pip", "install", f"{ROOT}[cli]"]
    assert machine.step(INSTALL).returncode == 0
    assert machine.pip.read_text().splitlines() == own
    assert (
        machine.step(INSTALL, install="-r requirements.txt\n  torch==2.*;touch hacked $(touch hacked)\n").returncode
        == 0
    )
    requested = ["-r", "requirements.txt", "torch==2.*;touch", "hacked", "$(touch", "hacked)"]
    assert machine.pip.read_text().splitlines() == own + requested
    assert not (machine.workspace / "hacked").exists()


# -- GitLab

REPOSITORY = "unified_clip[cli]@git+${UNIFIED_CLIP_URL}"


def gitlab(machine: Machine, **variables: str) -> subprocess.CompletedProcess[str]:
    return machine.run("\n".join(JOB["script"]), JOB["variables"] | variables)


@pytest.mark.nightly
@pytest.mark.parametrize(("code", "status"), sampled([(WRONG, 1), (RIGHT, 0)], 2))
def test_the_gitlab_job_keeps_the_exit_status_and_its_artifacts_exist(machine: Machine, code: str, status: int) -> None:
    machine.behave(code)
    assert gitlab(machine).returncode == status
    installed = machine.pip.read_text().split()
    assert installed == ["-m", "pip", "install", *JOB["variables"]["INSTALL"].split()]
    assert f"{REPOSITORY}@main" in installed
    artifacts = JOB["artifacts"]
    assert artifacts["when"] == "always"
    for path in (*artifacts["paths"], artifacts["reports"]["junit"]):
        assert (machine.workspace / path).exists()


# -- the page


def test_the_workflow_on_the_page_uses_inputs_of_the_action() -> None:
    inputs = inputs_of_the_page()
    assert inputs.keys() <= ACTION["inputs"].keys()


def jobs_of_the_page() -> dict[str, list[dict[str, Any]]]:
    """Return the steps of each job of the workflow."""
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return {name: job["steps"] for name, job in yaml.safe_load(block)["jobs"].items()}


def inputs_of_the_page() -> dict[str, str]:
    (step,) = [step for step in jobs_of_the_page()["parity"] if "unified_clip" in step.get("uses", "")]
    inputs: dict[str, str] = step["with"]
    return inputs


TRAINING = """import sys
import torch
assert sys.argv[1:] == ["--steps", "3"]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(8, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), THRESHOLD)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("threshold", "status"), [("1.0", 0), ("5.0", 1)])
@pytest.mark.parametrize("job", ["config", "training"])
def test_the_other_jobs_of_the_page_find_another_threshold(
    machine: Machine, job: str, threshold: str, status: int
) -> None:
    (machine.workspace / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0\n')
    (machine.workspace / "train.py").write_text(TRAINING.replace("THRESHOLD", threshold))
    machine.put("python", f'exec "{sys.executable}" "$@"')
    *_, install, check = (step.get("run") for step in jobs_of_the_page()[job])
    assert install.startswith('pip install "unified_clip[cli]@git+$UNIFIED_CLIP_URL')
    completed = machine.run(check, {})
    assert completed.returncode == status, completed.stderr
    assert ("::error " in completed.stdout) == (status == 1)


@pytest.mark.nightly
def test_the_steps_of_the_page_run_in_a_new_repository(machine: Machine) -> None:
    shutil.rmtree(machine.workspace / "parity")
    machine.behave(RIGHT, frameworks=("numpy",))
    np.savez(machine.workspace / "gradients.npz", weight=np.ones(3, np.float32))
    begin, accept, update = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert machine.run(begin, {}).returncode == 0
    (known,) = [code for code in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if code.startswith("known")]
    suite_file = machine.workspace / "parity" / "suite.toml"
    text = suite_file.read_text()
    assert f"# {known}" in text
    text = text.replace(f"# {known}", known)
    suite_file.write_text(text)
    assert machine.run(accept, {}).returncode == 0
    assert "Add `report/` to `.gitignore`, and commit `parity` and `gradients.npz`." in PAGE
    git = "git init -q; git config user.name A; git config user.email a@b.c; "
    assert machine.run(f"{git}git add parity gradients.npz; git commit -qm A", {}).returncode == 0
    jobs = {"github": lambda: machine.step(SUITE, **inputs_of_the_page()), "gitlab": lambda: gitlab(machine)}
    assert {name: job().returncode for name, job in jobs.items()} == {"github": 0, "gitlab": 0}
    updated = machine.run(update, {})
    assert (updated.returncode, "0 added" in updated.stdout) == (0, True)
    machine.behave(CLIPS_AT_TWICE, frameworks=("numpy",))
    assert {name: job().returncode for name, job in jobs.items()} == {"github": 1, "gitlab": 1}
