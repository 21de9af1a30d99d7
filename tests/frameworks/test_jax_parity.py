"""`unified-clip parity` where optax, which has JAX's own functions, cannot be imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.parity.cases import suite

from unified_clip import cli
from unified_clip.parity import run_suite
from unified_clip.parity.results import ParityReport
from unified_clip.parity.suite import load as suites

CASES = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }]
    [[cases]]
    gradients = ["worked example"]
    update = true
    calls = [{ call = "clip_by_global_norm", clip_norm = 1.0 }, { call = "clip_by_norm", clip_norm = 1.0 }]
"""
KNOWN = """
    [[known]]
    framework = "jax"
    function = "optax.clip_by_global_norm"
    size = 0.5
    cases = ["*"]
    reason = "it is so"
"""


@pytest.fixture
def with_optax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A function that makes optax a module with this source, and returns a suite with JAX."""

    def make(source: str) -> Path:
        modules = tmp_path / "modules"
        modules.mkdir()
        (modules / "optax.py").write_text(source, encoding="utf-8")
        # Workers search the directory of an installed unified_clip first, which has optax too.
        before = f"import sys\nsys.path.insert(0, {str(modules)!r})\n"
        (modules / "sitecustomize.py").write_text(before, encoding="utf-8")
        path = os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", path)
        return suite(tmp_path, CASES, KNOWN, frameworks="[frameworks.jax]\nmodes = ['host', 'native']")

    return make


def test_functions_that_cannot_be_imported_fail_the_run_and_leave_the_list_of_known_differences(
    with_optax: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, out = with_optax("import chex_that_is_missing"), tmp_path / "report"
    assert cli.main(["parity", "--suite", str(where), "--out", str(out), "--accept"]) == 3
    assert "known.toml was not changed" in capsys.readouterr().err
    assert (where / "known.toml").read_text(encoding="utf-8") == KNOWN
    report = ParityReport.model_validate_json((out / "parity.json").read_text(encoding="utf-8"))
    assert "jax" in report.versions
    assert "optax" not in report.versions
    (problem,) = report.problems
    assert problem.what == "jax, framework's function, missing"
    assert problem.cases == ["worked example: clip_by_global_norm(clip_norm=1.0)"]  # optax does not clip by each norm
    assert problem.detail.startswith(
        "the suite needs optax for JAX, but optax cannot be imported: ModuleNotFoundError: No module named "
        "'chex_that_is_missing'. Install optax and its dependencies. "
    )
    text = (out / "parity.md").read_text(encoding="utf-8")
    assert "Compared with exact arithmetic in 2 cases on jax: unified_clip.\n" in text


def test_an_optax_that_is_too_old_is_named_with_the_needed_version(with_optax: Callable[[str], Path]) -> None:
    report = run_suite.run(suites.read(with_optax("__version__ = '0.2.4'")))
    assert report.exit_code == 3
    (problem,) = report.problems
    assert problem.what == "jax, framework's function, missing"
    assert problem.detail.startswith("optax 0.2.4 is too old: the suite needs optax>=0.2.5. Install a newer optax. To ")
