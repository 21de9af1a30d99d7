"""Suites: the cases that are read, and the modes, frameworks and workers that run them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.parity.cases import suite
from support.parity.suites import CASES, GRADIENTS, NORM, SUITE, cases_toml

from unified_clip.parity import modes, run_suite
from unified_clip.parity.known import entries
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import public_calls, schema, select
from unified_clip.parity.suite.call_form import CONTAINERS, CallForm, leaves, structure
from unified_clip.parity.suite.case import Case
from unified_clip.parity.suite.load import Suite
from unified_clip.parity.suite.schema import CaseOptions, FrameworkTable, SuiteError
from unified_clip.parity.workers import worker_files
from unified_clip.parity.workers.worker_files import WorkItem
from unified_clip.tensors.types import Dense, Sparse


def float32s(*values: float) -> list[float]:
    return [float(np.float32(value)) for value in values]


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


def test_a_case_is_run_in_the_modes_it_names(tmp_path: Path) -> None:
    frameworks = "[frameworks.torch]\nmodes = ['host', 'device', 'graph']"
    where = suite(tmp_path, cases_toml(NORM, "modes = ['native', 'device']"), frameworks=frameworks)
    assert [run.mode for run in run_suite.work_items(suites.read(where), "torch")] == ["device"]


def test_every_mode_runs_in_exactly_one_worker_and_has_a_title() -> None:
    assert sorted(mode for group in run_suite.TOGETHER for mode in group) == sorted(get_args(modes.Mode))
    assert modes.TITLES.keys() == {*get_args(modes.Mode)}


def test_the_workers_run_every_item_of_the_suite_once(repository_suite: Suite) -> None:
    items = [
        (name, item) for name in repository_suite.frameworks for item in run_suite.work_items(repository_suite, name)
    ]
    jobs = [(name, item) for name, job in run_suite.worker_jobs(repository_suite) for item in job]
    assert len(jobs) > 1000
    assert sorted((name, item.mode, item.case.name) for name, item in jobs) == sorted(
        (name, item.mode, item.case.name) for name, item in items
    )


def test_every_option_of_a_cases_table_reaches_the_case_and_its_worker(tmp_path: Path) -> None:
    options = CaseOptions(
        frameworks=["numpy"], modes=["host"], raises="ValueError", warns=True, update=True, subnormal=True
    )
    assert options.model_fields_set == CaseOptions.model_fields.keys()
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options)
    (case,) = suites.read(suite(tmp_path, cases_toml(NORM, keys))).cases
    worker_files.write_job(tmp_path, {0: WorkItem("host", case)})
    (written,) = json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["cases"].values()
    assert case.options == options
    assert {key: written[key] for key in CaseOptions.model_fields} == options.model_dump()


PROCESSES = "[frameworks.torch]\nmodes = ['host', 'processes_2']\nleft_out = { processes_2 = ['raises'] }"


@pytest.mark.parametrize(
    ("more", "is_run"),
    [
        ("", True),
        ("warns = true", True),
        ("axes = [0]", False),
        ("raises = 'ValueError'", False),
        ("raises = 'ValueError'\nexpanded = true", False),
    ],
)
def test_cases_that_cannot_be_sharded_are_not_run_on_several_processes(tmp_path: Path, more: str, is_run: bool) -> None:
    call = f"{{ call = 'clip_by_norm', clip_norm = 1.0{', axes = [0]' if 'axes' in more else ''} }}"
    more = "" if "axes" in more else more
    read_suite = suites.read(suite(tmp_path, cases_toml(call, more), frameworks=PROCESSES))
    assert [run.mode for run in run_suite.work_items(read_suite, "torch")] == ["host", *["processes_2"] * is_run]


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
    assert first.values().tolist() == [1.0, 2.0**-149, *float32s(0.1, 0.1)]
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
    frameworks = "[frameworks.numpy]\n[frameworks.torch]\npython = 'env/bin/python'\nmissing = 'allowed'"
    frameworks_read = suites.read(suite(tmp_path, GRADIENTS + CASES, frameworks=frameworks)).frameworks
    assert frameworks_read["numpy"] == FrameworkTable(framework="numpy", modes=["host"], title="numpy")
    assert frameworks_read["torch"] == FrameworkTable(
        framework="torch", python=str(tmp_path / "env/bin/python"), missing="allowed", title="torch"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="interpreters lie elsewhere")
def test_an_interpreter_may_be_named_by_its_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    frameworks = "[frameworks.torch]\npython = 'env'"
    frameworks_read = suites.read(suite(tmp_path, GRADIENTS + CASES, frameworks=frameworks)).frameworks
    assert frameworks_read["torch"].python == str(tmp_path / "env/bin/python")


def test_every_kind_of_difference_has_a_description() -> None:
    assert all(entries.KINDS.values())


def test_chosen_frameworks_keep_their_cases() -> None:
    all_frameworks = suites.read(SUITE)
    chosen = select.only_frameworks(all_frameworks, ["torch", "numpy", "torch"])
    assert list(chosen.frameworks) == ["torch", "numpy"]
    assert 0 < len(chosen.cases) < len(all_frameworks.cases)
    with pytest.raises(SuiteError, match=r"--frameworks: the suite has no framework 'caffe'. Choose from numpy, torch"):
        select.only_frameworks(all_frameworks, ["caffe"])


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


def test_modes_that_cannot_be_left_out_are_rejected() -> None:
    all_frameworks = suites.read(SUITE)
    for mode, problem in {
        "compilde": "no framework has the mode 'compilde' in this run. Choose from host, proc.* as in numpy:host$",
        "numpy:device": "numpy has no mode 'device' in this run. Choose from host$",
        "pytorch:device": "this run has no framework 'pytorch'. Choose from numpy, torch, tensorflow, paddle, jax, ",
    }.items():
        with pytest.raises(SuiteError, match=f"^--without {mode}: {problem}"):
            select.without(all_frameworks, ["host", mode])
    with pytest.raises(SuiteError, match=r": this run has no framework 'jax'. Choose from torch$"):
        select.without(select.only_frameworks(all_frameworks, ["torch"]), ["jax:device"])
    with pytest.raises(
        SuiteError,
        match=r"--without host: numpy has no mode left. .* or run without numpy: --frameworks torch,tensorflow,",
    ):
        select.without(all_frameworks, ["host"])
    with pytest.raises(SuiteError, match=r"--without host: numpy has no mode left. Leave out fewer modes$"):
        select.without(select.only_frameworks(all_frameworks, ["numpy"]), ["host"])


def test_frameworks_without_cases_are_rejected(tmp_path: Path) -> None:
    only_torch = GRADIENTS + CASES.replace("calls =", "frameworks = ['torch']\ncalls =")
    read_suite = suites.read(suite(tmp_path, only_torch, frameworks="[frameworks.numpy]\n[frameworks.torch]"))
    with pytest.raises(SuiteError, match="no case of the suite is for numpy"):
        select.only_frameworks(read_suite, ["numpy"])


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_has_the_leaves_that_were_put_into_it(container: str) -> None:
    contained = CallForm(container=container).contain([1.0, 2.0, None])
    if container in ("generator", "dict values"):
        contained = list(contained)
    assert list(leaves(contained)) == ([1.0] if container == "tensor" else [1.0, 2.0, None])


def test_structures_have_names() -> None:
    values: dict[str, object] = {
        "tensor": 1.0,
        "list": [1.0, None],
        "dict": {"a": 1.0},
        "list of pairs": [("a", 1.0)],
        "dict of (list, list of list)": {"a": [1.0], "b": [[1.0]]},
        "tuple": (1.0, 2.0),
    }
    assert {name: structure(value) for name, value in values.items()} == {name: name for name in values}


def test_repeated_gradients_are_the_same_object() -> None:
    first, second = object(), object()
    assert CallForm(listed=[0, 1, 0]).contain([first, second]) == [first, second, first]


def test_the_form_of_a_call_is_described_for_the_name_of_a_case() -> None:
    assert CallForm().describe() == ""
    call_form = CallForm(container="tuple", need_clip=[True, 0], transposed=True)
    assert call_form.describe() == ", as tuple, need clip true 0, transposed"


def test_the_suites_of_the_documentation_are_read(tmp_path: Path) -> None:
    text = (SUITE.parent / "docs" / "parity.md").read_text(encoding="utf-8")
    own, old, described, cases_, steps = (block.split("```")[0] for block in text.split("```toml\n")[1:])
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "suite.toml").write_text(own, encoding="utf-8")
    np.savez(tmp_path / "gradients.npz", weight=np.ones(2, np.float32))
    assert len(suites.read(tmp_path / "own").cases) == 2 * 3
    (tmp_path / "own" / "suite.toml").write_text(old + own[own.index("[[gradients]]") :], encoding="utf-8")
    assert suites.read(tmp_path / "own").frameworks["paddle-1.8"].modes == ["native"]
    (tmp_path / "cases").mkdir()
    for name, content in (
        ("suite.toml", described), ("cases/a.toml", cases_), ("cases/b.toml", steps), ("known.toml", "")
    ):  # fmt: skip
        (tmp_path / name).write_text(content, encoding="utf-8")
    read_suite = suites.read(tmp_path)
    assert list(read_suite.frameworks) == ["numpy", "torch", "tensorflow", "paddle"]
    assert [case.options.raises for case in read_suite.cases] == ["", "", "ValueError", ""]


def test_the_documentation_has_the_default_tolerance() -> None:
    text = (SUITE.parent / "docs" / "parity.md").read_text(encoding="utf-8")
    matches = re.findall(r"at most `tolerance`, by default ([\de.-]+)|^tolerance = ([\de.-]+)", text, re.MULTILINE)
    numbers = [float(first or second) for first, second in matches]
    assert numbers == [schema.TOLERANCE] * 2, "docs/parity.md: correct the table of verdicts and the suite.toml"


def test_only_three_modes_run_by_default_in_suites_of_users() -> None:
    default = {*get_args(modes.Mode)} - {*get_args(modes.OnRequest)}
    assert default == {"host", "device", "native"}, "parity/modes.py: put a new mode into OnRequest"
    assert modes.TITLES.keys() == {*get_args(modes.Mode)}, "parity/modes.py: give each mode a title in TITLES"
