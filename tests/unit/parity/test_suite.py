"""A suite is data: read as it is described, and refused with the file and the place where it is wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from support.parity.cases import suite

from unified_clip.parity import modes, run_suite
from unified_clip.parity.known import entries
from unified_clip.parity.suite import load as suites
from unified_clip.parity.suite import public_calls, schema
from unified_clip.parity.suite.call_form import CONTAINERS, CallForm, leaves, structure
from unified_clip.parity.suite.cases import Case
from unified_clip.parity.suite.load import Suite
from unified_clip.parity.suite.schema import CaseOptions, Framework, SuiteError
from unified_clip.parity.workers import pool
from unified_clip.tensors.types import Dense, Sparse

SUITE = Path(__file__).parents[3] / "parity"


def float32s(*values: float) -> list[float]:
    return [float(np.float32(value)) for value in values]


@pytest.fixture(scope="module")
def ours() -> Suite:
    """The suite of this repository."""
    return suites.read(SUITE)


def test_the_suite_of_this_repository_is_read(ours: Suite) -> None:
    assert len(ours.cases) > 400
    assert {each.call_name for each in ours.cases} == set(public_calls.CALLS)
    assert any(isinstance(gradient, Sparse) for each in ours.cases for gradient in each.gradients)
    assert {each.call_form.container for each in ours.cases} == set(CONTAINERS)
    assert len(ours.known) >= 30


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
def test_what_is_eager_only_shows_no_rule_that_graphs_do_not_show(ours: Suite, framework: str, mode: str) -> None:
    left_out = ours.frameworks[framework].left_out.get(mode, ())
    in_graphs = {run.case for run in run_suite.work_items(ours, framework) if run.mode == mode}
    possible = {each for each in ours.cases if not each.options.frameworks and each.is_for_graphs(left_out)}
    for aspect in (rule_of, dtypes_of, lambda each: each.options.update, lambda each: each.call_form.container):
        assert set(map(aspect, possible)) == set(map(aspect, in_graphs & possible))
    assert len(in_graphs) < len(possible)


def rule_of(case: Case) -> tuple[str, float, bool]:
    return case.call_name, case.arguments.get("norm_type", 2), bool(case.options.raises)


def dtypes_of(case: Case) -> frozenset[str]:
    return frozenset(gradient.dtype for gradient in case.gradients if gradient is not None)


def test_a_case_is_run_in_the_modes_it_names(tmp_path: Path) -> None:
    frameworks = "[frameworks.torch]\nmodes = ['host', 'device', 'graph']"
    where = suite(tmp_path, cases_of(NORM, "modes = ['native', 'device']"), frameworks=frameworks)
    assert [run.mode for run in run_suite.work_items(suites.read(where), "torch")] == ["device"]


def test_every_mode_runs_in_exactly_one_worker_and_has_a_title() -> None:
    assert sorted(mode for group in run_suite.TOGETHER for mode in group) == sorted(get_args(modes.Mode))
    assert modes.TITLES.keys() == {*get_args(modes.Mode)}


def test_the_workers_run_every_item_of_the_suite_once(ours: Suite) -> None:
    items = [(name, item) for name in ours.frameworks for item in run_suite.work_items(ours, name)]
    jobs = [(name, item) for name, job in run_suite.worker_jobs(ours) for item in job]
    assert len(jobs) > 1000
    assert sorted((name, item.mode, item.case.name) for name, item in jobs) == sorted(
        (name, item.mode, item.case.name) for name, item in items
    )


@pytest.mark.parametrize(
    ("groups", "message"), [((("host",),), "0 tuples"), ((("host", "device"), ("device",)), "2 tuples")]
)
def test_a_mode_that_no_worker_would_run_is_an_error_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: tuple[tuple[str, ...], ...], message: str
) -> None:
    monkeypatch.setattr(run_suite, "TOGETHER", groups)
    monkeypatch.setattr(pool, "run", lambda *_: pytest.fail("a worker has started"))
    where = suite(tmp_path, cases_of(NORM), frameworks="[frameworks.torch]\nmodes = ['host', 'device']")
    with pytest.raises(RuntimeError, match=f"'device' is in {message} of TOGETHER"):
        run_suite.run(suites.read(where))


def test_every_option_of_a_cases_table_reaches_the_case_and_its_worker(tmp_path: Path) -> None:
    options = CaseOptions(
        frameworks=["numpy"], modes=["host"], raises="ValueError", warns=True, update=True, subnormal=True
    )
    assert options.model_fields_set == CaseOptions.model_fields.keys()
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options)
    (read,) = suites.read(suite(tmp_path, cases_of(NORM, keys))).cases
    pool.write_job(tmp_path, {0: pool.WorkItem("host", read)})
    (job,) = json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["cases"].values()
    assert read.options == options
    assert {key: job[key] for key in CaseOptions.model_fields} == options.model_dump()


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
def test_what_several_processes_cannot_hold_in_parts_is_left_out(tmp_path: Path, more: str, is_run: bool) -> None:
    call = f"{{ call = 'clip_by_norm', clip_norm = 1.0{', axes = [0]' if 'axes' in more else ''} }}"
    more = "" if "axes" in more else more
    found = suites.read(suite(tmp_path, cases_of(call, more), frameworks=PROCESSES))
    assert [run.mode for run in run_suite.work_items(found, "torch")] == ["host", *["processes_2"] * is_run]


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
    first, *zero_d, none, made, sparse = plain.gradients
    assert isinstance(first, Dense)
    assert first.values().tolist() == [1.0, 2.0**-149, *float32s(0.1, 0.1)]
    assert [(each.shape, each.dtype) for each in zero_d if isinstance(each, Dense)] == [((), "float32")] * 2
    assert none is None
    assert isinstance(made, Dense)
    assert made.values().tolist() == [
        [0.6476655006408691, 0.7896469831466675],
        [-0.1448725461959839, -0.047065019607543945],
    ]
    assert isinstance(sparse, Sparse)
    assert sparse.shape == (3, 1)
    assert all(gradient is None or gradient.dtype == "bfloat16" for gradient in short.gradients)


GRADIENTS = '[[gradients]]\nname = "a"\ntensors = [{ values = [1.0] }]\n'


CASES = '[[cases]]\ngradients = ["a"]\ncalls = [{ call = "global_norm" }]\n'


def cases_of(call: str, more: str = "") -> str:
    return f'{GRADIENTS}[[cases]]\ngradients = ["a"]\ncalls = [{call}]\n{more}'


NORM = "{ call = 'global_norm' }"
NORM_IN_PLACE = "{ call = 'clip_grad_norm_', max_norm = 1 }"
ONE = cases_of(NORM)


def tensor(text: str) -> str:
    """A suite with one tensor."""
    return ONE.replace("values = [1.0]", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[", "cases.toml, line 1: "),
        (GRADIENTS + 'only = ["x"]\n', "line [0-9]+, gradients 1, only: `only` needs `file`. Remove `only`"),
        (GRADIENTS, r"no cases here or in files = .*\[\[cases\]\] table, or name a file"),
        (
            GRADIENTS + "[[cases]]\ngradients = []\ncalls = []",
            "cases 1, gradients: it is \\[\\]. Give at least one entry",
        ),
        (cases_of(NORM, "colour = 1"), "line 7, cases 1, colour: there is no such key. Use one of gradients, calls"),
        (
            cases_of("{ call = 'ClipGradByGlobalNorm', clip_norm = 1.0 }"),
            "suites have the older name of this class. Write GradientClipByGlobalNorm",
        ),
        (
            cases_of("{ call = 'clip_norm' }"),
            "calls 1, call: 'clip_norm': there is no such function. Did you mean clip_by_norm\\?",
        ),
        (
            cases_of("{ call = 'clip_by_norm' }"),
            "calls 1, clip_by_norm: clip_norm is missing. Add clip_norm",
        ),
        (
            cases_of("{ call = 'clip_by_norm', clip_norm = 1, p = 2 }"),
            "clip_by_norm, p: there is no such argument. Use one of clip_norm, axes",
        ),
        (cases_of("{ call = 'global_norm', p = 2 }"), "global_norm, p: there is no such argument. Remove it\\.$"),
        (cases_of("{ call = 'clip_by_norm', clip_norm = 'one' }"), "clip_norm is 'one'. Give a number"),
        (cases_of(f"{{ call = 'clip_by_norm', clip_norm = {10**309} }}"), "clip_norm is 1000.*. Give a number"),
        (
            cases_of(NORM, "container = 'set'"),
            "container: it is 'set'. Give one of list, tuple, ",
        ),
        (cases_of(NORM, "listed = [1]"), "listed applies to calls in place only. Remove it"),
        (cases_of(NORM_IN_PLACE, "expanded = true"), "unified_clip rejects expanded memory in calls in place. Remove"),
        (cases_of(NORM_IN_PLACE, "listed = [1]"), "listed = \\[1\\] lacks the index 0. Add it"),
        (cases_of(NORM_IN_PLACE, "listed = [0, 1]"), "listed has the index 1, but there are 1 gradients. Remove it"),
        (
            cases_of(NORM, "expanded = true"),
            "for calls in place only. Remove the key expanded$",
        ),
        (
            cases_of(NORM, "tensor_arguments = true").replace("[1.0]", "[1.0], dtype = 'float16'"),
            "tensor_arguments needs float32 gradients, but some are float16. Remove tensor_arguments",
        ),
        (
            cases_of("{ call = 'get_total_norm', norm_type = 1 }", "tensor_arguments = true"),
            "cannot pass norm_type as a tensor. Remove tensor_arguments, or remove norm_type",
        ),
        (
            cases_of(NORM, "update = true").replace("[1.0]", "[1.0], dtype = 'float16'"),
            "update needs float32 or float64 gradients, but some are float16. Remove update",
        ),
        (cases_of(NORM, "need_clip = [true, true]"), "need_clip has 2 entries for 1 gradients"),
        (cases_of(NORM, "update = 'false'"), "update: it is 'false'. Give true or false"),
        (
            cases_of("{ call = 'clip_by_norm', clip_norm = nan }"),
            "clip_norm is NaN. Give a number, or expect the error: raises = 'ValueError'",
        ),
        (cases_of("{ call = 'clip_by_norm', clip_norm = -1.0 }"), "clip_norm is -1.0. Give 0 or more"),
        (
            cases_of("{ call = 'clip_by_global_norm', clip_norm = 1, use_norm = -1 }"),
            "use_norm is -1. Give 0 or more",
        ),
        (
            cases_of("{ call = 'clip_by_value', clip_value_min = 2, clip_value_max = 1 }"),
            "lower bound 2 is above the upper bound 1",
        ),
        (
            cases_of("{ call = 'GradientClipByValue', max = -1.0 }"),
            "lower bound is 1.0. Give 0 or more, or add min",
        ),
        (cases_of("{ call = 'clip_by_norm', clip_norm = true }"), "clip_norm is True. Give a number"),
        (cases_of(f"{{ call = 'clip_by_norm', clip_norm = 1{'0' * 320} }}"), "clip_norm is 10+. Give a number"),
        (cases_of("{ call = 'clip_by_norm', clip_norm = 1, axes = 0 }"), "axes is 0. Give a list of whole numbers"),
        (
            cases_of("{ call = 'get_total_norm', error_if_nonfinite = 1 }"),
            "error_if_nonfinite is 1. Give true or false",
        ),
        (
            cases_of("{ call = 'clip_by_norm', clip_norm = 1, axes = [0, -1] }"),
            "axes = \\[0, -1\\] names an axis twice. Name each axis once",
        ),
        (cases_of("{ call = 'get_total_norm', norm_type = 1e300 }"), "norm_type is 1e\\+300. Give inf, or 0.01 to 100"),
        (
            cases_of("{ call = 'clip_by_norm', clip_norm = 1, axes = [1] }"),
            "axes = \\[1\\] has an axis that a gradient lacks. Give axes from -1 to 0",
        ),
        (
            cases_of("{ call = 'clip_by_norm', clip_norm = 1, axes = 0 }"),
            "a list of whole numbers",
        ),
        (cases_of(NORM, "groups = ['a']"), "groups applies to append_gradient_clip_ops only. Remove it"),
        (cases_of("{ call = 'clip_by_norm', clip_norm = 1 }", "container = 'dict'"), "no container of gradients"),
        (tensor("values = [[-3, 1.0]]"), "with a whole n of 1 or more"),
        (tensor("values = [[3]]"), "tensors 1: values has \\[3\\]"),
        (
            tensor("random = 1, shape = [2], exponents = [-99999999999, 0]"),
            "exponents 1: it is -99999999999. Give -2000 or more",
        ),
        (tensor("none = false"), "none: it is False. Give true"),
        (tensor("none = true, shape = [2], dtype = 'float64'"), "allows no dtype or shape. Remove dtype and shape"),
        (tensor("values = [1.0], rows = [0]"), "rows needs the shape of the dense gradient. Add it, as in shape = "),
        (tensor("values = [1.0], rows = [0], shape = []"), "rows needs a shape that begins with the number of rows"),
        (tensor("random = 1, shape = [2]"), "random needs exponents. Add it, as in exponents = "),
        (tensor("random = 1, exponents = [0, 1]"), "random needs shape. Add it, as in shape = "),
        (tensor("random = 1"), "random needs exponents and shape. Add both, as in exponents = .* and shape = "),
        (
            tensor("values = [1.0], exponents = [0, 1]"),
            "exponents applies to random only. Remove",
        ),
        (
            tensor("values = [1], dtype = 'int64'"),
            "only clip_by_value supports int64. Choose another dtype, or expect the error: raises = 'TypeError'",
        ),
        (
            tensor("random = 1, shape = [2], exponents = [3, 2]"),
            "exponents = \\[3, 2\\] has the larger exponent first. Swap the two",
        ),
        (
            tensor("values = [1.0], copies = -1"),
            "copies: it is -1. Give 1 or more",
        ),
        (
            cases_of(NORM, "frameworks = ['caffe']"),
            "suite.toml: case 'a: global_norm..' names the framework 'caffe', which the suite lacks. Correct the name",
        ),
        (cases_of(NORM, "modes = ['gpu']"), "modes 1: it is 'gpu'. Give 'host', 'device',"),
        (
            cases_of("{ call = 'global_norm' }, { call = 'global_norm' }"),
            "already in this table or in an ",
        ),
        (
            cases_of(NORM, "dtypes = ['int8']"),
            "dtypes 1: it is 'int8'. Give one of float16, ",
        ),
        (
            cases_of(NORM, "dtypes = ['int64']"),
            "dtypes 1: it is 'int64'. Give one of float16, bfloat16, float32, float64.$",
        ),
        (
            cases_of(NORM, "dtypes = ['float16']").replace("[1.0]", "[1.0, 2.0], dtype = 'complex64'"),
            "dtypes cannot convert 'a': 'gradient 0' has dtype complex64, not a real float. Remove dtypes, or ",
        ),
        ("a = " + "[" * 100_000, "cases.toml: its lists or tables are nested too deep"),
        (cases_of("1"), "calls 1: it is 1. Give a table"),
        (ONE.replace('["a"]', '["b"]'), "no gradients have the name 'b'. Choose from a"),
        (GRADIENTS * 2 + CASES, "two lists of gradients have the name 'a'"),
        (
            tensor("vales = [1.0]"),
            "cases.toml, line 3, gradients 1, tensors 1, vales: there is no such key. Did you mean values\\?",
        ),
        (tensor("values = ['one']"), "tensors 1: values has 'one'. Give a float, or its hexadecimal form"),
        (tensor("values = [1.0, 2.0, 3.0], dtype = 'complex64'"), "values has 3 numbers, but complex64 needs two for"),
        (
            tensor("values = [1.0], shape = [2]"),
            "tensors 1: values has 1 numbers, but shape = \\[2\\] needs 2. Give 2 numbers, or correct shape",
        ),
        (
            tensor("values = [1.0], dtype = 'int8'"),
            "dtype: it is 'int8'. Give one of float16, ",
        ),
        (
            tensor("values = [1.0], rows = [3], shape = [2, 1]"),
            "rows has the index 3, but shape has 2 rows. Give indices below 2",
        ),
        (
            ONE.replace("tensors", "file = 'x'\ntensors"),
            "the list of gradients has tensors and file. Give exactly one of `tensors`, `file` and `function`",
        ),
        ("[[gradients]]\nname = 'a'\nfunction = 'x.py'", "function: it is 'x.py'. Give a file and its function, as in"),
        (
            tensor("values = [true]"),
            "line 3, gradients 1, tensors 1, values 1: it is True. Give a number, a string or a",
        ),
        (tensor("values = [1.0, [true, 3]]"), "values 2 1: it is True. Give a number or a string"),
        (
            '[[gradients]]\nname = "a"\nfile = "absent.safetensors"\n' + CASES,
            "absent.safetensors: the file does not exist",
        ),
        ('[[gradients]]\nname = "a"\nfile = "a.npz"\nonly = []\n' + CASES, "gradients 1, only: it is \\[\\]"),
    ],
)
def test_a_wrong_suite_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SuiteError, match=message) as caught:
        suites.read(suite(tmp_path, text))
    assert not re.search(r"pydantic|constrained|function-|Input should|\[key\]", str(caught.value))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("/cases.toml", "line 1, files 1: it is '/cases.toml'. Give a pattern of files relative to the suite"),
        ("case/*.toml", "files: 'case/\\*.toml' matches no file in "),
        ("**x", "files: '\\*\\*x' is an invalid pattern: "),
    ],
)
def test_files_of_cases_that_are_misspelt_are_refused(tmp_path: Path, pattern: str, message: str) -> None:
    (tmp_path / "suite.toml").write_text(f"files = ['{pattern}']\n[frameworks.numpy]\n{ONE}", encoding="utf-8")
    with pytest.raises(SuiteError, match=f"suite.toml, {message}"):
        suites.read(tmp_path)


def test_messages_name_the_file_of_the_suite(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(f"[frameworks.numpi]\n{ONE}", encoding="utf-8")
    with pytest.raises(SuiteError, match=r"other\.toml: unified_clip has no adapter for the framework 'numpi'"):
        suites.read(tmp_path / "other.toml")


def test_a_suite_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="Pass the suite to --suite, or write one: unified-clip parity init"):
        suites.read(tmp_path)
    (tmp_path / "suite.toml").mkdir()
    with pytest.raises(SuiteError, match=r"suite\.toml is a directory, not a TOML file\. Correct the path"):
        suites.read(tmp_path)


@pytest.mark.parametrize(
    ("frameworks", "message"),
    [
        ("", "suite.toml, frameworks: it is missing. Add frameworks."),
        ("frameworks = {}\ncolour = 1", "suite.toml, line 4, colour: there is no such key"),
        (
            "[frameworks.numpy]\nmissing = 'maybe'",
            "line 4, frameworks.numpy.missing: it is 'maybe'. Give 'allowed'",
        ),
        (
            "[frameworks.numpy]\nmodes = ['gpu']",
            "numpy.modes 1: it is 'gpu'. Give 'host', 'device', 'native', 'graph', 'compiled', 'static', ",
        ),
        (
            "[frameworks.numpy]\nleft_out = { graph = ['dense'] }",
            "numpy.left_out.graph 1: it is 'dense'. Give 'sparse', .*'hook', 'long' or 'adaptive'",
        ),
        ("[frameworks.numpy]\nleft_out = { host = [] }", "numpy.left_out.host: it is 'host'. Give 'graph'"),
        ("[frameworks]\nnumpy = 1", "frameworks.numpy: it is 1. Give a table"),
        (
            "[frameworks.numpy]\nmodes = ['graph']",
            "frameworks.numpy.modes: numpy has no mode 'graph'. Choose from host$",
        ),
        ("[frameworks.numpy]\nmodes = ['host', 'device']", "no mode 'device'. Choose from host$"),
        (
            "[frameworks.jax]\nmodes = ['static']",
            "no mode 'static'. Choose from host, device, native, compiled$",
        ),
        (
            "[frameworks.caffe]",
            "no adapter for the framework 'caffe'. Choose from jax, mlx, numpy, paddle, tensorflow, torch",
        ),
        ("timeout = nan\n[frameworks.numpy]", "timeout: it is nan. Give a finite number"),
        ("timeout = -5\n[frameworks.numpy]", "timeout: it is -5. Give more than 0"),
        ("[frameworks.numpy]\nmodes = []", "modes: it is \\[\\]. Give at least one entry"),
        (
            "[frameworks.numpy]\npyton = 'x'",
            "suite.toml, line 4, frameworks.numpy.pyton: there is no such key. Did you mean python\\?",
        ),
    ],
)
def test_a_wrong_list_of_frameworks_is_refused(tmp_path: Path, frameworks: str, message: str) -> None:
    with pytest.raises(SuiteError, match=message) as caught:
        suites.read(suite(tmp_path, GRADIENTS + CASES, frameworks=frameworks))
    assert not re.search(r"pydantic|constrained|function-|Input should|\[key\]", str(caught.value))


def test_a_removed_key_has_a_remedy_and_is_not_offered(tmp_path: Path) -> None:
    for line, message in (
        ("memory = 3", "line 1, memory: memory is no longer a key"),
        ("zzz = 3", "Use one of gradients, "),
    ):
        (tmp_path / "suite.toml").write_text(f"{line}\n[frameworks.numpy]", encoding="utf-8")
        with pytest.raises(SuiteError, match=message) as caught:
            suites.read(tmp_path)
        assert "memory" not in str(caught.value) or "memory" in line


def test_a_framework_may_have_an_interpreter_of_its_own_and_may_be_missing(tmp_path: Path) -> None:
    frameworks = "[frameworks.numpy]\n[frameworks.torch]\npython = 'env/bin/python'\nmissing = 'allowed'"
    found = suites.read(suite(tmp_path, GRADIENTS + CASES, frameworks=frameworks)).frameworks
    assert found["numpy"] == Framework(modes=["host"], title="numpy")
    assert found["torch"] == Framework(python=str(tmp_path / "env/bin/python"), missing="allowed", title="torch")


@pytest.mark.skipif(sys.platform == "win32", reason="interpreters lie elsewhere")
def test_an_interpreter_may_be_named_by_its_virtual_environment(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    frameworks = "[frameworks.torch]\npython = 'env'"
    found = suites.read(suite(tmp_path, GRADIENTS + CASES, frameworks=frameworks)).frameworks
    assert found["torch"].python == str(tmp_path / "env/bin/python")


KNOWN = """
    [[known]]
    framework = "numpy"
    function = "f"
    kind = "value"
    size = 0.1
    cases = ["*"]
    reason = "it is so"
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('kind = "value"', 'kind = "odd"'), "known.toml, line 5, known 1, kind: it is 'odd'. Give 'value', 'touched'"),
        (
            ("size = 0.1", ""),
            "known.toml, line 5, known 1, kind: kind = 'value' needs a size. Add the largest",
        ),
        (('kind = "value"', 'kind = "raises"'), "known 1, kind: kind = 'raises' allows no size. Remove size"),
        (
            ('kind = "value"', 'kind = "raises"\nnot_finite = "norm"'),
            "allows no size or not_finite. Remove size and not_finite",
        ),
        (
            ('framework = "numpy"', 'framework = "caffe"'),
            "suite.toml: the entry of 'f' in known.toml names the framework 'caffe', which the suite lacks. Correct",
        ),
        (
            ("size = 0.1", 'size = 0.1\nversions = ">2.1"'),
            "known 1, versions: it is '>2.1'. Give a package and its versions",
        ),
        (
            ("size = 0.1", 'size = 0.1\nversions = "numpy"'),
            "known 1, versions: it is 'numpy'. Add the versions, as in numpy>=2.8",
        ),
        (
            ("size = 0.1", 'size = 0.1\nversions = "numpy[x]>2"'),
            "known 1, versions: .*. Remove the extras and markers: numpy>2",
        ),
    ],
)
def test_a_wrong_list_of_known_differences_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert suites.read(suite(tmp_path, GRADIENTS + CASES, KNOWN)).known[0].size == 0.1
    with pytest.raises(SuiteError, match=message):
        suites.read(suite(tmp_path, GRADIENTS + CASES, KNOWN.replace(*change)))


def test_every_kind_of_difference_has_words() -> None:
    assert all(entries.KINDS.values())


def test_some_of_the_frameworks_are_chosen_with_what_concerns_them() -> None:
    whole = suites.read(SUITE)
    found = suites.only(whole, ["torch", "numpy", "torch"])
    assert list(found.frameworks) == ["torch", "numpy"]
    assert 0 < len(found.cases) < len(whole.cases)
    with pytest.raises(SuiteError, match=r"--frameworks: the suite has no framework 'caffe'. Choose from numpy, torch"):
        suites.only(whole, ["caffe"])


def test_modes_are_left_out_with_what_concerns_them() -> None:
    found = suites.without(suites.read(SUITE), ["compiled", "native", "jax:device"])
    assert {name: list(framework.modes) for name, framework in found.frameworks.items()} == {
        "numpy": ["host"],
        "torch": ["host", "processes_2", "processes_4", "device"],
        "tensorflow": ["host", "device", "graph"],
        "paddle": ["host", "device", "static"],
        "jax": ["host"],
        "mlx": ["host", "device"],
    }


def test_modes_that_cannot_be_left_out_are_rejected() -> None:
    whole = suites.read(SUITE)
    for mode, problem in {
        "compilde": "no framework has the mode 'compilde' in this run. Choose from host, proc.* as in numpy:host$",
        "numpy:device": "numpy has no mode 'device' in this run. Choose from host$",
        "pytorch:device": "no framework 'pytorch' is in this run. Choose from numpy, torch, tensorflow, paddle, jax, ",
    }.items():
        with pytest.raises(SuiteError, match=f"^--without {mode}: {problem}"):
            suites.without(whole, ["host", mode])
    with pytest.raises(SuiteError, match=r": no framework 'jax' is in this run. Choose from torch$"):
        suites.without(suites.only(whole, ["torch"]), ["jax:device"])
    with pytest.raises(
        SuiteError,
        match=r"--without host: numpy has no mode left. .* or run without numpy: --frameworks torch,tensorflow,",
    ):
        suites.without(whole, ["host"])
    with pytest.raises(SuiteError, match=r"--without host: numpy has no mode left. Leave out fewer modes$"):
        suites.without(suites.only(whole, ["numpy"]), ["host"])


def test_frameworks_that_no_case_is_for_are_refused(tmp_path: Path) -> None:
    only_torch = GRADIENTS + CASES.replace("calls =", "frameworks = ['torch']\ncalls =")
    whole = suites.read(suite(tmp_path, only_torch, frameworks="[frameworks.numpy]\n[frameworks.torch]"))
    with pytest.raises(SuiteError, match="no case of the suite is for numpy"):
        suites.only(whole, ["numpy"])


def test_recorded_gradients_that_are_not_as_described_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    rows = {"x.indices": np.array([5]), "x.values": np.ones((1, 2), np.float32)}
    text = "[[gradients]]\nname = 'a'\nfile = 'a.safetensors'\n" + CASES
    save_file(rows, tmp_path / "a.safetensors", metadata={"sparse": '{"x": [4, 2]}'})
    with pytest.raises(
        SuiteError,
        match=r"gradients 1: .*: 'x' has values for row 5, but its shape \[4, 2\] has only 4 rows",
    ):
        suites.read(suite(tmp_path, text))


# -- how gradients are passed


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_has_the_leaves_that_were_put_into_it(container: str) -> None:
    held = CallForm(container=container).contain([1.0, 2.0, None])
    if container in ("generator", "dict values"):
        held = list(held)
    assert list(leaves(held)) == ([1.0] if container == "tensor" else [1.0, 2.0, None])


def test_structures_are_told_apart() -> None:
    values: dict[str, object] = {
        "tensor": 1.0,
        "list": [1.0, None],
        "dict": {"a": 1.0},
        "list of pairs": [("a", 1.0)],
        "dict of list, list of list": {"a": [1.0], "b": [[1.0]]},
        "tuple": (1.0, 2.0),
    }
    assert {name: structure(value) for name, value in values.items()} == {name: name for name in values}


def test_repeated_ones_are_the_same_object() -> None:
    first, second = object(), object()
    assert CallForm(listed=[0, 1, 0]).contain([first, second]) == [first, second, first]


def test_a_manner_is_part_of_the_name_of_a_case() -> None:
    assert CallForm().describe() == ""
    call_form = CallForm(container="tuple", need_clip=[True, 0], transposed=True)
    assert call_form.describe() == ", as tuple, need clip true 0, transposed"


def test_the_suites_of_the_documentation_are_read(tmp_path: Path) -> None:
    text = (SUITE.parent / "docs" / "parity.md").read_text(encoding="utf-8")
    own, described, cases_, steps = (block.split("```")[0] for block in text.split("```toml\n")[1:])
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "suite.toml").write_text(own, encoding="utf-8")
    np.savez(tmp_path / "gradients.npz", weight=np.ones(2, np.float32))
    assert len(suites.read(tmp_path / "own").cases) == 2 * 3
    (tmp_path / "cases").mkdir()
    for name, content in (
        ("suite.toml", described), ("cases/a.toml", cases_), ("cases/b.toml", steps), ("known.toml", "")
    ):  # fmt: skip
        (tmp_path / name).write_text(content, encoding="utf-8")
    found = suites.read(tmp_path)
    assert list(found.frameworks) == ["numpy", "torch", "tensorflow", "paddle"]
    assert [case.options.raises for case in found.cases] == ["", "", "ValueError", ""]


def test_the_documentation_has_the_default_tolerance() -> None:
    text = (SUITE.parent / "docs" / "parity.md").read_text(encoding="utf-8")
    matches = re.findall(r"counts as rounding \(at most ([\de.-]+)\)|^tolerance = ([\de.-]+)", text, re.MULTILINE)
    numbers = [float(first or second) for first, second in matches]
    assert numbers == [schema.TOLERANCE] * 2, "docs/parity.md: correct the table of verdicts and the suite.toml"


def test_only_three_modes_run_by_default_in_suites_of_users() -> None:
    default = {*get_args(modes.Mode)} - {*get_args(modes.OnRequest)}
    assert default == {"host", "device", "native"}, "parity/modes.py: put a new mode into OnRequest"
    assert modes.TITLES.keys() == {*get_args(modes.Mode)}, "parity/modes.py: give each mode a title in TITLES"


# -- clip configurations

ONE_LIST = "[[gradients]]\nname = 'g'\ntensors = [{ values = [3.0, 4.0] }]\n[[cases]]\ngradients = ['g']\n"


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ('rule = "global_norm"\nthreshold = 1.0', [("clip_grad_norm_", {"max_norm": 1.0})]),
        (
            'rule = "global_norm"\nthreshold = 1.0\nnorm_type = inf',
            [("clip_grad_norm_", {"max_norm": 1.0, "norm_type": float("inf")})],
        ),
        (
            'rule = "global_norm"\nthreshold = 1.0\nfamily = "tensorflow"\neps = 0.0',
            [("clip_by_global_norm", {"clip_norm": 1.0})],
        ),
        (
            'rule = "global_norm"\nthreshold = 1.0\nfamily = "paddle"',
            [("GradientClipByGlobalNorm", {"clip_norm": 1.0})],
        ),
        ('rule = "norm"\nthreshold = 1.0\nfamily = "tensorflow"', [("clip_by_norm", {"clip_norm": 1.0})]),
        ('rule = "norm"\nthreshold = 1.0\nfamily = "paddle"', [("GradientClipByNorm", {"clip_norm": 1.0})]),
        ('rule = "value"\nthreshold = 0.5', [("clip_grad_value_", {"clip_value": 0.5})]),
        (
            'rule = "value"\nmin = -1.0\nmax = 0.5',
            [("clip_by_value", {"clip_value_min": -1.0, "clip_value_max": 0.5})],
        ),
        ('rule = "none"', [("get_total_norm", {})]),
        (
            'rule = "value"\nthreshold = { schedule = "cosine", start = 2.0, end = 1.0, steps = 9 }',
            [("clip_grad_value_", {"clip_value": 2.0}), ("clip_grad_value_", {"clip_value": 1.0})],
        ),
        (
            'rule = "value"\nthreshold = { schedule = "piecewise", values = [2.0, 1.0, 2.0], boundaries = [3, 4] }',
            [("clip_grad_value_", {"clip_value": 2.0}), ("clip_grad_value_", {"clip_value": 1.0})],
        ),
        (
            'rule = "value"\nthreshold = { schedule = "constant", value = 3.0 }',
            [("clip_grad_value_", {"clip_value": 3.0})],
        ),
    ],
)
def test_a_clip_configuration_stands_for_the_calls_that_do_it(
    tmp_path: Path, config: str, wanted: list[tuple[str, dict[str, float]]]
) -> None:
    (tmp_path / "clip.toml").write_text(config, encoding="utf-8")
    found = suites.read(suite(tmp_path, ONE_LIST + "configs = ['clip.toml']"))
    assert [(each.call_name, each.arguments) for each in found.cases] == wanted


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            'rule = "norm"\nthreshold = 1.0',
            "clip.toml: no single call clips like this configuration: unified_clip has no function of",
        ),
        (
            'rule = "global_norm"\nthreshold = 1.0\neps = 0.5',
            "support eps. Copy the file, remove eps in the copy, and name the copy in `configs`",
        ),
        (
            'rule = "none"\nexclude = ["*.bias"]',
            "remove them in the copy, and name the copy in `configs`. Choose tensors with `only` in",
        ),
        ('rule = "none"\nnonfinite = "skip"', "suites do not support nonfinite = 'skip'"),
        (
            'rule = "norm"\nthreshold = 1.0\nfamily = "paddle"\nnorm_type = 1',
            "only global_norm of the family pytorch has a function with a norm_type other than 2",
        ),
        ("rule = 3", "cases.toml, cases 1, configs: clip.toml, line 1, rule: it is 3"),
    ],
)
def test_a_configuration_that_no_call_does_is_refused(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "clip.toml").write_text(config, encoding="utf-8")
    with pytest.raises(SuiteError) as told:
        suites.read(suite(tmp_path, ONE_LIST + "configs = ['clip.toml']"))
    assert message in str(told.value)
    (tmp_path / "clip.toml").unlink()
    with pytest.raises(SuiteError, match=r"cannot read .*clip\.toml"):
        suites.read(tmp_path)
