"""Suites: the cases that are read, and the modes, frameworks and workers that run them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.parity.cases import suite
from support.parity.suites import CASES, GRADIENTS, SUITE, cases_toml

from unified_clip.parity import run_suite
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import public_calls, select
from unified_clip.parity.suite.call_form import CONTAINERS, CallForm, leaves, structure
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.load import Suite
from unified_clip.parity.suite.schema import FrameworkTable
from unified_clip.tensors.types import Dense, Sparse


@pytest.fixture(scope="module")
def repository_suite() -> Suite:
    return suites.read(SUITE)


def test_the_suite_of_this_repository_is_read(repository_suite: Suite) -> None:
    assert len(repository_suite.cases) > 400
    assert {case.call_name for case in repository_suite.cases} == set(public_calls.CALLS)
    assert any(isinstance(gradient, Sparse) for case in repository_suite.cases for gradient in case.gradients)
    assert {case.call_form.container for case in repository_suite.cases} == set(CONTAINERS)
    assert len(repository_suite.known) >= 30


@pytest.mark.parametrize(
    ("framework", "mode"),
    [
        ("torch", "compiled"),
        ("tensorflow", "graph"),
        ("tensorflow", "compiled"),
        ("paddle", "static"),
        ("jax", "compiled"),
    ],
)
def test_cases_in_graphs_cover_every_rule_of_eager_cases(repository_suite: Suite, framework: str, mode: str) -> None:
    left_out = repository_suite.frameworks[framework].left_out.get(mode, ())
    in_graphs = {run.case for run in run_suite.work_items(repository_suite, framework) if run.mode == mode}
    possible = {case for case in repository_suite.cases if not case.options.frameworks and case.is_for_graphs(left_out)}
    for aspect in (case_rule, case_dtypes, lambda case: case.options.update, lambda case: case.call_form.container):
        assert set(map(aspect, possible)) == set(map(aspect, in_graphs & possible))
    assert len(in_graphs) < len(possible)


def case_rule(case: Case) -> tuple[str, float, bool]:
    return case.call_name, case.arguments.get("norm_type", 2), bool(case.options.raises)


def case_dtypes(case: Case) -> frozenset[str]:
    return frozenset(gradient.dtype for gradient in case.gradients if gradient is not None)


def test_the_workers_run_every_item_of_the_suite_once(repository_suite: Suite) -> None:
    items = [
        (name, item) for name in repository_suite.frameworks for item in run_suite.work_items(repository_suite, name)
    ]
    jobs = [(name, item) for name, job in run_suite.worker_jobs(repository_suite) for item in job]
    assert len(jobs) > 1000
    assert sorted((name, item.mode, item.case.name) for name, item in jobs) == sorted(
        (name, item.mode, item.case.name) for name, item in items
    )
    assert all(len({item.mode for item in job}) == 1 for _, job in run_suite.worker_jobs(repository_suite))


MODES = """[frameworks.torch]
modes = ['host', 'processes_2', 'compiled']
left_out = { processes_2 = ['raises'], compiled = ['sparse'] }"""
SPARSE = GRADIENTS.replace("values = [1.0]", "values = [1.0], rows = [0], shape = [2, 1]")
BY_NORM = "{ call = 'clip_by_norm', clip_norm = 1.0 }"


@pytest.mark.parametrize(
    ("cases", "modes"),
    [
        (cases_toml(BY_NORM), ["host", "processes_2", "compiled"]),
        (cases_toml(BY_NORM, "modes = ['native', 'compiled']"), ["compiled"]),
        (cases_toml(BY_NORM, "warns = true"), ["host", "processes_2"]),
        (cases_toml(BY_NORM.replace(" }", ", axes = [0] }")), ["host", "compiled"]),
        (cases_toml(BY_NORM, "raises = 'ValueError'"), ["host", "compiled"]),
        (cases_toml(BY_NORM, "raises = 'ValueError'\nexpanded = true"), ["host"]),
        (SPARSE + CASES, ["host", "processes_2"]),
    ],
)
def test_a_case_runs_in_the_modes_that_it_allows(tmp_path: Path, cases: str, modes: list[str]) -> None:
    read_suite = suites.read(suite(tmp_path, cases, frameworks=MODES))
    assert [run.mode for run in run_suite.work_items(read_suite, "torch")] == modes


def test_gradients_are_made_as_described(tmp_path: Path) -> None:
    text = """
        [[gradients]]
        name = "a"
        tensors = [
          { values = [1.0, "0x1p-149", [2, 0.1]] },
          { values = [5.0], shape = [], dtype = "float64", copies = 2 },
          { none = true },
          { random = 7, exponents = [-2, 1], shape = [2, 2] },
          { values = [1.0, 2.0], rows = [1, 1], shape = [3, 1] },
        ]
        [[cases]]
        gradients = ["a"]
        dtypes = ["float32", "bfloat16"]
        calls = [{ call = "global_norm" }]
    """
    plain, short = suites.read(suite(tmp_path, text)).cases
    assert (plain.name, short.name) == ("a as float32: global_norm()", "a as bfloat16: global_norm()")
    first, *zero_d, none, random, sparse = plain.gradients
    assert isinstance(first, Dense)
    assert first.values().tolist() == [1.0, 2.0**-149, *[float(np.float32(0.1))] * 2]
    assert [(each.shape, each.dtype) for each in zero_d if isinstance(each, Dense)] == [((), "float32")] * 2
    assert none is None
    assert isinstance(random, Dense)
    assert random.values().tolist() == [
        [0.6476655006408691, 0.7896469831466675],
        [-0.1448725461959839, -0.047065019607543945],
    ]
    assert isinstance(sparse, Sparse)
    assert sparse.shape == (3, 1)
    assert all(gradient is None or gradient.dtype == "bfloat16" for gradient in short.gradients)


def test_a_framework_may_have_its_own_interpreter_and_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    frameworks = "[frameworks.numpy]\n[frameworks.torch]\npython = 'env/bin/python'\nmissing = 'allowed'\n"
    frameworks += "[frameworks.jax]\npython = 'venv'"
    read = suites.read(suite(tmp_path, GRADIENTS + CASES, frameworks=frameworks)).frameworks
    assert read["numpy"] == FrameworkTable(framework="numpy", modes=["host"])
    assert read["torch"] == FrameworkTable(
        framework="torch", python=str(tmp_path / "env/bin/python"), missing="allowed"
    )
    assert Path(read["jax"].python).relative_to(tmp_path / "venv").stem == "python"


def test_modes_can_be_left_out() -> None:
    remaining = select.without(suites.read(SUITE), ["compiled", "native", "jax:device"])
    assert {name: list(framework.modes) for name, framework in remaining.frameworks.items()} == {
        "numpy": ["host"],
        "torch": ["host", "processes_2", "processes_4", "device"],
        "tensorflow": ["host", "device", "graph"],
        "paddle": ["host", "device", "static"],
        "jax": ["host"],
        "mlx": ["host", "device"],
    }


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_has_the_leaves_that_were_put_into_it(container: str) -> None:
    contained = CallForm(container=container, listed=[1, 0, 2]).contain([2.0, 1.0, None])
    if container in ("generator", "dict values"):
        contained = list(contained)
    assert list(leaves(contained)) == ([1.0] if container == "tensor" else [1.0, 2.0, None])
    if container not in ("tuple", "dict values", "generator"):  # the result is a list
        assert structure(contained) == CallForm(container=container).structure


def test_the_suites_of_the_documentation_are_read(tmp_path: Path) -> None:
    pages = [(SUITE.parent / "docs" / name).read_text(encoding="utf-8") for name in ("parity.md", "suite.md")]
    old, described, cases_ = (block.split("```")[0] for page in pages for block in page.split("```toml\n")[1:])
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "suite.toml").write_text(old + cases_, encoding="utf-8")
    assert suites.read(tmp_path / "old").frameworks["paddle-1.8"].modes == ["native"]
    (tmp_path / "cases").mkdir()
    for name, content in (("suite.toml", described), ("cases/a.toml", cases_), ("known.toml", "")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    read_suite = suites.read(tmp_path)
    assert list(read_suite.frameworks) == ["numpy", "torch", "tensorflow", "paddle"]
    assert [case.options.raises for case in read_suite.cases] == ["", "", "ValueError"]
