"""The folder `parity/old_releases` runs alone, in old environments."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from support import syntax

from unified_clip.parity import old_releases, run_suite
from unified_clip.parity.results import ParityReport
from unified_clip.parity.suite import load
from unified_clip.parity.suite.schema import SuiteError

FILES = sorted(Path(old_releases.__file__).parent.glob("*.py"))

FAKE_TORCH = """
import numpy as np
__version__ = "1.8.1+cpu"

class Tensor(np.ndarray):
    is_sparse = False
    def detach(self): return self
    def numpy(self): return np.asarray(self)
    def is_floating_point(self): return True

def from_numpy(array): return array.view(Tensor)
def as_tensor(array): return np.asarray(array).view(Tensor)
def zeros(shape, dtype="f4"): return np.zeros(shape, dtype).view(Tensor)

bfloat16 = "none"

class Parameter:
    def __init__(self, tensor, requires_grad): self.grad = None

def clip_grad_norm_(parameters, max_norm, norm_type=2):
    gradients = [each.grad for each in parameters if each.grad is not None]
    norm = np.float32(np.sqrt(sum((each.astype("f8") ** 2).sum() for each in gradients)))
    for gradient in gradients:
        gradient *= np.float32(min(1.0, max_norm / (norm + 1e-6)))
    return norm

class nn:
    Parameter = Parameter
    class utils:
        clip_grad_norm_ = staticmethod(clip_grad_norm_)
"""

SUITE = """
known = 'known.toml'
[frameworks.old]
framework = "torch"
python = "python"
{table}

[[gradients]]
name = "g"
tensors = [{{ values = [3.0, 4.0] }}, {{ none = true }}, {{ values = [12.0] }}]

[[cases]]
gradients = ["g"]
{calls}
"""

CLIP = "{ call = 'clip_grad_norm_', max_norm = 1.3 }"
NORM = "{ call = 'get_total_norm' }"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_has_the_syntax_of_python_3_7_and_imports_nothing_of_unified_clip(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 7))
    nodes = [node for node in syntax.nodes(file) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {f"{'.' * node.level}{node.module}" for node in nodes if isinstance(node, ast.ImportFrom)}
    allowed = {*sys.stdlib_module_names, "__future__", "numpy", ".frameworks"}  # the last one for type checkers
    assert {name if name.startswith(".") else name.partition(".")[0] for name in names} <= allowed


def report_of(
    folder: Path,
    calls: str = f"calls = [{CLIP}, {NORM}]",
    table: str = "",
    torch: str = FAKE_TORCH,
    known: str = "",
) -> ParityReport:
    """Run a suite in an environment whose PyTorch is old, and written on NumPy."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(torch, encoding="utf-8")
    python = folder / "python"
    script = f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n'
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    (folder / "known.toml").write_text(known, encoding="utf-8")
    (folder / "suite.toml").write_text(SUITE.format(calls=calls, table=table), encoding="utf-8")
    return run_suite.run(load.read(folder))


def verdicts(report: ParityReport) -> list[Any]:
    return [each.verdict for _, each in [*report.results(), *report.natives()]]


def test_it_calls_the_functions_of_an_old_release_and_says_once_what_the_release_lacks(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    (_, clipped), (_, lacking) = report.natives()
    assert (clipped.function, clipped.verdict) == ("torch.nn.utils.clip_grad_norm_", "close")
    assert (clipped.norm, clipped.kind) == (0.0, "")
    assert lacking.verdict == "not available"
    assert report.notes == ["Not available on old: torch.nn.utils.get_total_norm in torch 1.8.1 (1 result)."]
    assert (report.exit_code, report.versions["torch"]) == (0, "1.8.1")


def test_a_suite_of_which_nothing_ran_fails(tmp_path: Path) -> None:
    report = report_of(tmp_path, f"calls = [{NORM}]")
    assert (verdicts(report), report.exit_code) == (["not available"], 3)
    assert [problem.framework for problem in report.problems] == ["old"]


def test_a_known_difference_that_no_longer_occurs_is_found_although_a_case_is_not_available(tmp_path: Path) -> None:
    known = "[[known]]\nframework = 'old'\nfunction = '*'\nsize = 0.5\ncases = ['*']\nreason = 'so'"
    report = report_of(tmp_path, known=known)
    assert ([bool(entry.problem) for entry in report.known], report.exit_code) == ([True], 1)


def test_a_name_that_is_no_framework_of_the_suite_is_an_error(tmp_path: Path) -> None:
    for names in ("['torch', 'jacks']", "['jax']"):
        with pytest.raises(SuiteError, match=r"has no \[frameworks\."):
            report_of(tmp_path / str(len(names)), f"calls = [{CLIP}]\nframeworks = {names}")


def test_graphs_of_a_release_that_has_none(tmp_path: Path) -> None:
    report = report_of(tmp_path, f"calls = [{CLIP}]", "graph = true")
    assert (report.notes, report.exit_code) == (["Not available on old: graphs in torch 1.8.1 (1 result)."], 3)


@pytest.mark.parametrize(
    ("line", "table", "detail"),
    [
        ("raise ImportError('no libtorch')", "", "no libtorch"),
        ("__version__ = '2.9.0'", "graph = true", "`graph` needs an old release, not torch 2.9.0"),
    ],
)
def test_what_cannot_run_at_all_is_missing(tmp_path: Path, line: str, table: str, detail: str) -> None:
    report = report_of(tmp_path, f"calls = [{CLIP}]", table, f"{FAKE_TORCH}\n{line}")
    assert (verdicts(report), report.exit_code) == (["missing"], 3)
    assert detail in report.problems[0].detail


OWN = """
def clip(gradients, max_norm):
    return [each if each is None else each * 2 for each in gradients], 13.0
"""


def test_a_function_of_the_user_runs_in_an_old_environment(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    suite_head = "[frameworks.old.functions]\nclip_by_global_norm = 'own.py:clip'"
    calls = "calls = [{ call = 'clip_by_global_norm', clip_norm = 1.3 }]"
    report = report_of(tmp_path, calls, suite_head)
    ((_, native),) = report.natives()
    assert (native.function, native.verdict, native.norm) == ("own.py:clip", "different", 0.0)
    assert report.exit_code == 1
