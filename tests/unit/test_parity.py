"""The parity engine: the oracle is right, planted faults are found, and no way for a worker to fail is overlooked."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import signal
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from unified_clip import cli
from unified_clip.parity import arithmetic, calls, cases, compare, engine, launch, oracle, report, tensors
from unified_clip.parity.cases import Case
from unified_clip.parity.compare import Verdict
from unified_clip.parity.launch import DEVICE, HOST, NATIVE, Failure, Outcome
from unified_clip.parity.tensors import Dense, Sparse

SUITE = Path(__file__).parents[2] / "parity"


def dense(values: Any, dtype: str = "float32") -> Dense:
    return tensors.encode(arithmetic.rounded(np.asarray(values, np.float64), dtype), dtype)


def case(gradients: list[Any], call: str, subnormal: bool = False, **arguments: Any) -> Case:
    return Case(f"{call} of {gradients}", f"{gradients}", gradients, call, arguments, subnormal)


def suite(tmp_path: Path, text: str) -> Path:
    (tmp_path / "cases.toml").write_text(text, encoding="utf-8")
    return tmp_path


# -- exact arithmetic


@pytest.mark.parametrize(
    ("square", "degree", "dtype", "root"),
    [
        (Fraction(2), 2, "float32", float(np.float32(2**0.5))),
        (Fraction(2), 2, "float64", 2**0.5),
        (Fraction(25), 2, "float16", 5.0),
        (Fraction((2**24 + 1) ** 2), 2, "float32", 2.0**24),
        (Fraction((2**24 + 1) ** 2) + Fraction(1, 2**300), 2, "float32", 2.0**24 + 2),
        (Fraction((2**24 + 3) ** 2), 2, "float32", 2.0**24 + 4),
        (Fraction((2**24 + 3) ** 2) - Fraction(1, 2**300), 2, "float32", 2.0**24 + 2),
        (Fraction(2**24 + 1), 1, "float32", 2.0**24),
        (Fraction(1, 2**298), 2, "float32", 2.0**-149),
        (Fraction(1, 2**300), 2, "float32", 0.0),
        (Fraction(1, 2**300) + Fraction(1, 2**900), 2, "float32", 2.0**-149),
        (Fraction(2**128 - 2**103), 1, "float32", math.inf),
        (Fraction(2**128 - 2**103 - 1), 1, "float32", 2.0**128 - 2.0**104),
        (Fraction(0), 2, "float32", 0.0),
    ],
)
def test_roots_are_rounded_correctly(square: Fraction, degree: int, dtype: str, root: float) -> None:
    assert arithmetic.nearest_root(square, degree, dtype) == root


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rounding_agrees_with_other_implementations(dtype: str) -> None:
    values = np.random.default_rng(1).standard_normal(4000) * 2.0 ** np.linspace(-160, 130, 4000)
    with np.errstate(over="ignore"):
        # float32 first, since ml_dtypes rounds float64 twice.
        values = np.array([*values.astype(np.float32), 0.0, -0.0, 65520.0, -3e38, math.inf, math.nan])
        theirs = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(np.float64)
    ours = arithmetic.rounded(values, dtype)
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(ours), np.signbit(theirs))
    assert [arithmetic.nearest_float(float(v), dtype) for v in values[:-1:37]] == ours[:-1:37].tolist()


def test_power_sums_are_exact() -> None:
    values = np.array([2.0**24, -(2.0**12), 1e300, 2.0**-1074])
    assert arithmetic.power_sum(values, 1) == sum(abs(Fraction(float(v))) for v in values)
    assert arithmetic.power_sum(values, 2) == sum(Fraction(float(v)) ** 2 for v in values)
    assert arithmetic.power_sum(np.zeros(0), 2) == 0


def test_column_sums_are_rounded_once() -> None:
    columns = np.array([[2.0**24, 1e30, np.inf], [1.0, 1.0, -np.inf], [2.0**-60, -1e30, 1.0]])
    assert arithmetic.sum_of_columns(columns, "float32")[:2].tolist() == [2.0**24 + 2, 1.0]
    assert math.isnan(arithmetic.sum_of_columns(columns, "float32")[2])


# -- tensors


def test_files_keep_every_bit(tmp_path: Path) -> None:
    gradients = [
        dense([1.0, -0.0, 3e38], "bfloat16"),
        None,
        Sparse(np.array([2, 0, 2]), dense([[1.0], [2.0], [3.0]], "float64"), (4, 1)),
        dense(5.0, "float16"),
        dense(np.zeros((0, 3))),
    ]
    packed, listing = tensors.pack("x", gradients)
    tensors.save(tmp_path / "a.safetensors", packed)
    found = tensors.unpack("x", tensors.load(tmp_path / "a.safetensors"), json.loads(json.dumps(listing)))
    assert [type(g) for g in found] == [type(g) for g in gradients]
    for before, after in zip(gradients, found, strict=True):
        assert tensors.digest([tensors.densify(before)]) == tensors.digest([tensors.densify(after)])


def test_a_file_of_garbage_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"garbage")
    with pytest.raises(tensors.UnreadableError, match=r"a\.safetensors cannot be read"):
        tensors.load(tmp_path / "a.safetensors")


def test_digests_tell_apart_bits_shapes_and_dtypes_but_not_nans() -> None:
    zeros = [[dense([0.0], dtype)] for dtype in ("float16", "bfloat16")]
    different = [*zeros, [dense([1.0])], [dense([[1.0]])], [dense([-1.0])], [None], []]
    assert len({tensors.digest(each) for each in different}) == len(different)
    other_nan = Dense("float32", np.array([0xFFC00001], np.uint32).view(np.float32))
    assert tensors.digest([other_nan]) == tensors.digest([dense([math.nan])])


def test_repeated_rows_are_summed() -> None:
    sparse = Sparse(np.array([1, 1, 2, 9]), dense([[3.0], [4.0], [24.0], [1.0]]), (4, 1))
    found = tensors.densify(sparse)
    assert found is not None
    assert found.values().tolist() == [[0.0], [7.0], [24.0], [0.0]]


# -- the oracle


def test_the_oracle_shares_nothing_with_what_it_judges() -> None:
    package = Path(oracle.__file__).parent
    for name in ("arithmetic", "calls", "cases", "oracle", "tensors", "compare"):
        for node in ast.walk(ast.parse((package / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level < 2, f"{name} imports {node.module}"
            if isinstance(node, ast.ImportFrom | ast.Import):
                assert "unified_clip" not in ast.unparse(node), name


def expected(gradients: list[Any], call: str, **arguments: Any) -> list[Any]:
    """The norm and the gradients as lists of numbers."""
    right = oracle.expect(case(gradients, call, **arguments))
    norm = None if right.norm is None else float(right.norm.values())
    return [norm, *([] if right.gradients is None else [g and g.values().tolist() for g in right.gradients])]


def float32s(*values: float) -> list[float]:
    return [float(np.float32(value)) for value in values]


WORKED = [dense([3.0, 4.0]), dense([1.0, 2.0])]


def test_the_oracle_knows_the_worked_example() -> None:
    norm = float(np.float32(5.477226))
    assert expected(WORKED, "clip_grad_norm_", max_norm=5.0) == [
        norm, float32s(2.7386122, 3.6514828), float32s(0.9128707, 1.8257414)
    ]  # fmt: skip
    assert expected(WORKED, "global_norm") == [norm]
    assert expected(WORKED, "get_total_norm", norm_type=1) == [10.0]
    assert expected(WORKED, "get_total_norm", norm_type=math.inf) == [4.0]
    assert expected([*WORKED, None], "GradientClipByValue", max=3.5, min=1.5) == [None, [3.0, 3.5], [1.5, 2.0], None]
    assert expected(WORKED, "clip_by_norm", clip_norm=2.5) == [None, [1.5, 2.0], [1.0, 2.0]]


def test_the_oracle_knows_bounds() -> None:
    given = [dense([-3.0, 0.5, 3.0])]
    assert expected(given, "clip_grad_value_", clip_value=1.0)[1] == [-1.0, 0.5, 1.0]
    assert expected(given, "GradientClipByValue", max=2.0)[1] == [-2.0, 0.5, 2.0]
    assert expected(given, "clip_by_value", clip_value_min=0.75, clip_value_max=1.1)[1] == float32s(0.75, 0.75, 1.1)


def test_the_oracle_knows_eps_and_the_limit_itself() -> None:
    given = [dense([3.0, 4.0])]
    assert expected(given, "clip_by_global_norm", clip_norm=5.0) == [5.0, [3.0, 4.0]]
    assert expected(given, "clip_grad_norm_", max_norm=5.0)[1] == float32s(2.9999995, 3.9999993)
    assert expected(given, "clip_grad_norm_", max_norm=5.00001)[1] == [3.0, 4.0]
    assert expected(given, "clip_by_global_norm", clip_norm=1.0, use_norm=2.0) == [2.0, [1.5, 2.0]]
    assert expected(given, "clip_by_norm", clip_norm=0.0)[1] == [0.0, 0.0]


def test_the_oracle_knows_dtypes() -> None:
    mixed = [dense([3.0], "float16"), dense([4.0], "float64")]
    right = oracle.expect(case(mixed, "clip_by_global_norm", clip_norm=0.1))
    assert right.norm is not None
    assert right.gradients is not None
    assert right.norm.dtype == "float64"
    assert [g and g.dtype for g in right.gradients] == ["float16", "float64"]
    assert [float(g.values()[0]) for g in right.gradients if g] == [float(np.float16(0.06)), 4.0 * (0.1 / 5.0)]
    assert oracle.norm([dense([60000.0, 60000.0], "float16")], 2, "float32") == float(np.float32(60000 * 2**0.5))


@pytest.mark.parametrize(
    ("dtype", "gradient", "coef", "product"),
    [("float16", 1.5517578125, 0.8637508153915405, 1.33984375), ("bfloat16", 1.65625, 0.6344339847564697, 1.046875)],
)
def test_the_oracle_rounds_16_bit_products_to_float32_first(
    dtype: str, gradient: float, coef: float, product: float
) -> None:
    given = [dense([gradient], dtype)]
    assert expected(given, "clip_by_global_norm", clip_norm=coef, use_norm=1.0)[1] == [product]
    assert arithmetic.nearest(Fraction(gradient) * Fraction(coef), dtype) != product


def test_the_oracle_knows_what_is_not_finite() -> None:
    given = [dense([math.inf, -2.0])]
    norm, gradient = expected(given, "clip_grad_norm_", max_norm=1.0)
    assert (norm, math.isnan(gradient[0]), gradient[1]) == (math.inf, True, 0.0)
    assert math.copysign(1, gradient[1]) == -1
    assert all(map(math.isnan, expected(given, "clip_by_global_norm", clip_norm=1.0)[1]))
    assert expected(given, "clip_by_global_norm", clip_norm=math.inf) == [math.inf, [math.inf, -2.0]]
    assert math.isnan(expected([dense([math.nan, math.inf])], "get_total_norm", norm_type=math.inf)[0])
    low, high = expected([dense([math.nan, -0.0])], "clip_by_value", clip_value_min=0.0, clip_value_max=1.0)[1]
    assert math.isnan(low)
    assert math.copysign(1, high) == -1


def test_the_oracle_knows_axes_and_sparse_rows() -> None:
    rows = [dense([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]], "float64")]
    clipped = [[3.0 * 0.2, 4.0 * 0.2], [0.3, 0.4], [6.0 * 0.1, 8.0 * 0.1]]
    assert expected(rows, "clip_by_norm", clip_norm=1.0, axes=[-1])[1] == clipped
    sparse = [Sparse(np.array([1, 1, 2]), dense([[3.0], [4.0], [24.0]]), (3, 1))]
    assert expected(sparse, "clip_by_global_norm", clip_norm=12.5) == [25.0, [[0.0], [3.5], [12.0]]]


# -- the suite as data


def test_the_suite_of_this_repository_is_read() -> None:
    found = cases.read(SUITE)
    assert len(found) > 300
    assert {each.call_name for each in found} == set(calls.CALLS)
    assert any(isinstance(gradient, Sparse) for each in found for gradient in each.gradients)


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
    plain, short = cases.read(suite(tmp_path, text))
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[", "cases.toml: "),
        (GRADIENTS, "cases is missing"),
        (GRADIENTS + "[[cases]]\ngradients = []\ncalls = []", "there are no cases"),
        (cases_of("{ call = 'global_norm' }", "colour = 1"), "cases 1: unknown colour; it may have calls, dtypes"),
        (cases_of("{ call = 'clip_norm' }"), "call is 'clip_norm'; it may be clip_grad_norm_"),
        (cases_of("{ call = 'clip_by_norm' }"), "cases 1, clip_by_norm: clip_norm is missing"),
        (cases_of("{ call = 'clip_by_norm', clip_norm = 1, p = 2 }"), "unknown p"),
        (cases_of("{ call = 'clip_by_norm', clip_norm = 'one' }"), "clip_norm is 'one'; give a number"),
        (cases_of("{ call = 'get_total_norm', norm_type = 3 }"), "norm_type may be 1, 2 or inf"),
        (cases_of("{ call = 'global_norm' }, { call = 'global_norm' }"), "is there twice"),
        (cases_of("{ call = 'global_norm' }", "dtypes = ['int8']"), "dtypes has 'int8'"),
        (cases_of("1"), "calls must be a list of tables"),
        (cases_of("{ call = 'global_norm' }").replace('["a"]', '["b"]'), "no gradients named 'b'; there are a"),
        (GRADIENTS * 2 + CASES, "the name 'a' is used twice"),
        (
            cases_of("{ call = 'global_norm' }").replace("values = [1.0]", "vales = [1.0]"),
            "gradients 1, tensor 1: values is missing",
        ),
        (cases_of("{ call = 'global_norm' }").replace("values = [1.0]", "values = ['one']"), "tensor 1: .*hexadecimal"),
        (
            cases_of("{ call = 'global_norm' }").replace("values = [1.0]", "values = [1.0], shape = [2]"),
            "tensor 1: cannot reshape",
        ),
        (
            cases_of("{ call = 'global_norm' }").replace("values = [1.0]", "values = [1.0], dtype = 'int8'"),
            "dtype is 'int8'; it may be float16",
        ),
        (
            cases_of("{ call = 'global_norm' }").replace(
                "values = [1.0]", "values = [1.0], rows = [3], shape = [2, 1]"
            ),
            "rows needs a shape",
        ),
        (cases_of("{ call = 'global_norm' }").replace("tensors", "file = 'x'\ntensors"), "give either tensors or file"),
        ('[[gradients]]\nname = "a"\nfile = "absent.safetensors"\n' + CASES, "absent.safetensors cannot be read"),
    ],
)
def test_a_wrong_suite_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(cases.SuiteError, match=message):
        cases.read(suite(tmp_path, text))


def test_a_suite_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(cases.SuiteError, match="name the suite's directory with --suite"):
        cases.read(tmp_path)


# -- workers, and planted faults in them

RANDOM = [dense(0.01 * np.random.default_rng(seed).standard_normal(5000)) for seed in (1, 2)]
FIRST = case(RANDOM, "clip_grad_norm_", max_norm=0.5)
SECOND = case([*WORKED, None], "clip_by_global_norm", clip_norm=5.0)


def worker(code: str) -> list[str]:
    """The NumPy worker, after some code of the test's."""
    lines = "import os, sys, time\nimport numpy as np\nimport unified_clip.numpy as uc\n"
    lines += "from unified_clip.parity import worker\nright = uc.clip_grad_norm_\n"
    return [sys.executable, "-X", "faulthandler", "-c", f"{lines}{code}\nworker.main()", "numpy"]


def run(code: str, mode: str = HOST, timeout: float = 60.0) -> list[Outcome | Failure]:
    """What comes back from such a worker for FIRST and SECOND."""
    found = launch.run(worker(code), [FIRST, SECOND], mode, timeout)
    return [found.results[FIRST.name], found.results[SECOND.name]]


def verdicts(code: str) -> list[Verdict]:
    """The verdicts on such a worker."""
    return [
        compare.judge(each, oracle.expect(each), outcome, "numpy", HOST)
        for each, outcome in zip([FIRST, SECOND], run(code), strict=True)
    ]


def test_a_worker_without_a_fault_is_equal() -> None:
    assert [verdict.kind for verdict in verdicts("")] == ["equal", "equal"]


FAULTS = {
    "wrong eps": "from unified_clip._core import rule\nrule.PYTORCH = rule.PADDLE",
    "dropped tensor": "uc.clip_grad_norm_ = lambda grads, max_norm: right(grads[:-1], max_norm)",
    "float32 accumulator": """
def clip(grads, max_norm):
    n = np.sqrt(sum(np.add.accumulate(g * g)[-1] for g in grads))
    for g in grads:
        g *= np.float32(max_norm / (n + 1e-6))
    return n
uc.clip_grad_norm_ = clip""",
    "swapped results": """
def clip(grads, max_norm):
    norm = right(grads, max_norm)
    grads.reverse()
    return norm
uc.clip_grad_norm_ = clip""",
    "result missing": """
def clip(grads, max_norm):
    norm = right(grads, max_norm)
    del grads[-1]
    return norm
uc.clip_grad_norm_ = clip""",
    "other dtype": "uc.clip_grad_norm_ = lambda grads, max_norm: np.float64(right(grads, max_norm))",
    "no norm": "uc.clip_grad_norm_ = lambda grads, max_norm: right(grads, max_norm) and None",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    assert [verdict.kind for verdict in verdicts(FAULTS[fault])] == ["different", "equal"]


CLIP = "def clip(grads, max_norm):\n    {}\nuc.clip_grad_norm_ = clip"


@pytest.mark.parametrize(
    ("code", "kind", "detail"),
    [
        (
            "os.abort()",
            "crashed",
            f"signal {signal.SIGABRT.value} (SIGABRT); its last lines: Fatal Python error: Aborted",
        ),
        ("os.kill(os.getpid(), 9)", "crashed", "signal 9 (SIGKILL); it wrote nothing to stderr"),
        ("sys.exit('so long')", "crashed", "exit status 1; its last lines: so long"),
        ("os._exit(0)", "unreadable", "the worker ended without a result"),
        ("raise ValueError('no such\\n\\nthing')", "crashed", "ValueError: no such"),
        ("return 'garbage'", "crashed", "TypeError: the result holds str"),
    ],
)
def test_a_worker_that_dies_is_a_verdict_on_one_case(code: str, kind: str, detail: str) -> None:
    first, second = run(CLIP.format(code))
    assert isinstance(first, Failure)
    assert first.kind == kind
    assert detail in first.detail
    assert isinstance(second, Outcome)
    assert compare.judge(FIRST, oracle.expect(FIRST), first, "numpy", HOST).kind == kind


def test_a_worker_that_hangs_is_stopped() -> None:
    first, second = run(CLIP.format("time.sleep(60)"), timeout=4.0)
    assert isinstance(first, Failure)
    assert first.kind == "timed out"
    assert isinstance(second, Outcome)


def test_a_worker_that_dies_at_its_end_is_a_verdict_too() -> None:
    first, second = run("import atexit\natexit.register(os.abort)")
    assert isinstance(first, Outcome)
    assert isinstance(second, Failure)
    assert second.detail.startswith(f"after the last case: signal {signal.SIGABRT.value}")


@pytest.mark.parametrize(
    ("fault", "starts"),
    [("os._exit(3)", 1), ("worker.run_case = lambda *arguments: os._exit(3)", launch.STARTS)],
    ids=["before the first case", "at every case"],
)
def test_a_worker_that_always_dies_is_not_started_for_ever(fault: str, starts: int, tmp_path: Path) -> None:
    many = [case(WORKED, "clip_by_norm", clip_norm=float(limit)) for limit in range(launch.STARTS + 2)]
    many = [dataclasses.replace(each, name=str(number)) for number, each in enumerate(many)]
    count = f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"
    found = launch.run(worker(f"{count}\n{fault}"), many, HOST, 60.0).results
    assert [found[each.name] for each in many] == [
        Failure("crashed", "exit status 3; it wrote nothing to stderr")
    ] * len(many)
    assert (tmp_path / "starts").read_text() == "x" * starts


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("open(f'{sys.argv[3]}/0.json', 'w').write('garbage')\nos._exit(0)", "JSONDecodeError"),
        ("open(f'{sys.argv[3]}/0.json', 'w').write('[]')\nos._exit(0)", "Error"),
        ("worker.tensors.save = lambda path, found: path.write_bytes(b'garbage')", "0.safetensors cannot be read"),
        ("worker.tensors.save = lambda path, found: None", "0.safetensors cannot be read"),
        ("worker.write_json = lambda path, data: path.write_text('garbage')", "JSONDecodeError"),
        ("worker.versions = lambda packages: []\nworker.run = lambda *arguments: None", "without a result"),
        ("open(f'{sys.argv[3]}/worker.json', 'w').write('garbage')\nos._exit(0)", "worker.json: Expecting value"),
    ],
)
def test_garbage_is_unreadable(code: str, detail: str) -> None:
    first = run(code)[0]
    assert isinstance(first, Failure)
    assert first.kind == "unreadable"
    assert detail in first.detail


def test_what_a_worker_prints_is_no_result() -> None:
    assert isinstance(run("print('{\"norm\": garbage')")[0], Outcome)


def test_a_framework_that_is_not_installed_is_missing() -> None:
    code = """
import importlib
def absent(name):
    raise ModuleNotFoundError("No module named 'numpy'", name="numpy")
importlib.import_module = absent"""
    assert run(code) == [Failure("missing", "No module named 'numpy'")] * 2


def test_a_worker_refuses_to_test_a_path_that_is_not_taken() -> None:
    first = run("", mode=DEVICE)[0]  # NumPy has the host path only
    assert isinstance(first, Failure)
    assert "the device path was to be run" in first.detail


# -- comparing


def outcome(norm: float | None, *gradients: Any, dtype: str = "float32") -> Outcome:
    return Outcome(None if norm is None else dense(norm, dtype), [dense(gradient, dtype) for gradient in gradients])


def judge(one: Case, found: Outcome, framework: str = "torch", path: str = DEVICE) -> str:
    return compare.judge(one, oracle.expect(one), found, framework, path).kind


def test_ulps_count_the_numbers_between() -> None:
    def distance(a: float, b: float, dtype: str = "float32") -> float:
        return compare.ulps([dense([7.0, a], dtype)], [dense([7.0, b], dtype)])

    assert distance(1.0, 1.0 + 2.0**-23) == 1
    assert distance(1.0, 1.0 - 2.0**-23) == 2
    assert distance(0.0, -0.0) == 1
    assert distance(2.0**-149, -(2.0**-149)) == 3
    assert distance(1.0, -1.0, "float64") == float(2 * 0x3FF0000000000000 + 1)
    assert distance(1.0, 1.0078125, "bfloat16") == 1
    assert distance(math.nan, math.nan) == 0
    assert distance(math.nan, 1.0) == math.inf


def test_on_the_device_path_a_norm_may_be_the_next_number() -> None:
    one = case([dense([3.0, 4.0])], "clip_by_global_norm", clip_norm=2.5)
    near, far = 5.0 + 2.0**-21, 5.0 + 2.0**-20
    follows, above = ([v * float(np.float32(2.5 / n)) for v in (3.0, 4.0)] for n in (near, far))
    assert judge(one, outcome(5.0, [1.5, 2.0])) == "equal"
    assert judge(one, outcome(near, follows)) == "close"
    assert judge(one, outcome(near, follows), path=HOST) == "different"
    assert judge(one, outcome(near, [1.5, 2.0])) == "different"
    assert judge(one, outcome(5.0, follows)) == "different"
    assert judge(one, outcome(far, above)) == "different"


def test_on_the_device_path_a_float64_norm_may_be_off_by_1e_12() -> None:
    one = case([dense([3.0, 4.0], "float64")], "global_norm")
    near, far = (Outcome(dense(5.0 * (1 + error), "float64")) for error in (9e-13, 1.1e-12))
    assert [judge(one, near), judge(one, far)] == ["close", "different"]


def test_without_a_returned_norm_gradients_may_be_off_a_little() -> None:
    one = case([dense([3.0, 4.0])], "clip_by_norm", clip_norm=2.5)
    assert judge(one, outcome(None, [1.5 + 2.0**-22, 2.0])) == "close"
    assert judge(one, outcome(None, [1.5 + 2.0**-21, 2.0])) == "different"
    wide = case([dense([3.0, 4.0], "float64")], "clip_by_norm", clip_norm=2.5)
    assert judge(wide, outcome(None, [1.5 * (1 + 9e-13), 2.0], dtype="float64")) == "close"
    assert judge(wide, outcome(None, [1.5 * (1 + 2e-12), 2.0], dtype="float64")) == "different"
    by_value = case([dense([3.0, 4.0])], "clip_by_value", clip_value_min=0.0, clip_value_max=2.5)
    assert judge(by_value, outcome(None, [2.5, 2.5 + 2.0**-22])) == "different"


def test_only_a_framework_that_flushes_may_flush_and_only_where_marked() -> None:
    given = [dense([1e-40, 1.0])]
    marked = case(given, "clip_by_norm", subnormal=True, clip_norm=0.5)
    flushed = outcome(None, [0.0, 0.5])
    assert judge(marked, flushed, "tensorflow") == "flushed"
    assert judge(marked, flushed, "torch") == "different"
    assert judge(marked, flushed, "tensorflow", HOST) == "different"
    assert judge(dataclasses.replace(marked, subnormal=False), flushed, "tensorflow") == "different"
    assert judge(marked, outcome(None, [0.0, 0.75]), "tensorflow") == "different"


def test_a_native_is_measured() -> None:
    right = oracle.expect(case([dense([3.0, 4.0]), None], "clip_by_global_norm", clip_norm=2.5))
    assert compare.measure(right, Outcome()) is None

    def distance(found: Outcome) -> tuple[float | None, float | None, str]:
        measured = compare.measure(right, dataclasses.replace(found, name="native"))
        assert measured is not None
        return measured.norm, measured.gradients, measured.note

    assert distance(outcome(5.0, [1.5, 2.0])) == (0.0, 0.0, "")
    assert distance(outcome(6.0, [1.5, 1.0])) == (0.2, 0.5, "")
    assert distance(outcome(math.inf, [math.nan, 2.0])) == (math.inf, math.inf, "")
    assert distance(outcome(None, [1.5, 2.0])) == (None, 0.0, "")
    assert distance(outcome(5.0, [1.5])) == (0.0, None, "it returns other shapes")
    crashed = compare.measure(right, Failure("crashed", "signal 11"))
    assert crashed is not None
    assert crashed.note == "signal 11"


# -- a whole run


def result(*kinds: str, digests: tuple[str, ...] = ("a", "a")) -> engine.Run:
    """A run of one case on two frameworks with these verdicts on the host path."""
    cells = {
        name: engine.Cell({HOST: Verdict(kind)}, {HOST: digest}, None)  # type: ignore[arg-type]
        for name, kind, digest in zip(("numpy", "torch"), kinds, digests, strict=True)
    }
    return engine.Run(("numpy", "torch"), {}, [engine.Row(FIRST, "a", cells)])


def test_the_exit_status_says_what_happened() -> None:
    assert result("equal", "equal").exit_code == 0
    assert result("equal", "close").exit_code == 0
    assert result("equal", "different").exit_code == 1
    assert result("equal", "equal", digests=("a", "b")).exit_code == 1
    assert [result("equal", kind).exit_code for kind in ("crashed", "timed out", "missing", "unreadable")] == [3] * 4
    assert result("crashed", "different").exit_code == 1


def test_the_report_names_what_does_not_agree(tmp_path: Path) -> None:
    run = result("equal", "different", digests=("a", "b"))
    report.write(run, tmp_path)
    text = (tmp_path / "parity.md").read_text(encoding="utf-8")
    assert "torch, host path, different: " + FIRST.name in text
    assert "Frameworks differ from each other on the host path in: " + FIRST.name in text
    data = json.loads((tmp_path / "parity.json").read_text(encoding="utf-8"))
    assert data["cases"][0]["frameworks_agree"] is False
    assert data["summary"]["host"] == {"numpy": {"equal": 1}, "torch": {"different": 1}}


ONE_CASE = """
    [[gradients]]
    name = "worked example"
    tensors = [{ values = [3.0, 4.0] }, { values = [1.0, 2.0] }, { none = true }]
    [[cases]]
    gradients = ["worked example"]
    calls = [{ call = "clip_grad_norm_", max_norm = 5.0 }]
"""


def test_the_command_runs_numpy_and_torch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = suite(tmp_path, ONE_CASE)
    arguments = ["parity", "--suite", str(where), "--frameworks", "numpy,torch"]
    assert cli.main([*arguments, "--out", str(tmp_path / "out")]) == 0
    printed = capfd.readouterr().out
    assert "worked example: clip_grad_norm_(max_norm=5.0)" in printed
    assert "Host path: 2 of 2 bit-exact (100.0%): numpy 1; torch 1." in printed
    assert "Device path: 1 of 1 bit-exact (100.0%): torch 1." in printed
    data = json.loads((tmp_path / "out" / "parity.json").read_text(encoding="utf-8"))
    (one,) = data["cases"]
    assert {one["sha256"]} == {one["frameworks"][name]["host"]["sha256"] for name in ("numpy", "torch")}
    assert one["frameworks"]["torch"]["native"]["function"] == "torch.nn.utils.clip_grad_norm_"
    assert set(data["versions"]) == {"numpy", "torch"}


def test_the_command_fails_on_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "command", lambda framework: worker(FAULTS["wrong eps"]))
    arguments = ["parity", "--suite", str(suite(tmp_path, ONE_CASE)), "--out", str(tmp_path / "out")]
    assert cli.main([*arguments, "--frameworks", "numpy"]) == 1


def test_the_report_is_the_same_every_time(tmp_path: Path) -> None:
    found = cases.read(suite(tmp_path, ONE_CASE))
    written = []
    for name in ("first", "second"):
        report.write(engine.run(found, ["numpy"], 60.0), tmp_path / name)
        written.append([(tmp_path / name / file).read_bytes() for file in ("parity.json", "parity.md")])
    assert written[0] == written[1]


@pytest.mark.parametrize("arguments", [["--frameworks", "numpy,caffe"], ["--suite", "absent"]])
def test_the_command_refuses(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["parity", *arguments]) == 2


def test_the_command_names_the_extra_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "rich" else object())
    assert cli.main(["parity"]) == 2
    assert "rich not installed; install the extra: pip install 'unified_clip[cli]'" in capsys.readouterr().err


def test_natives_are_run_apart_from_ours() -> None:
    assert engine.modes("torch") == (HOST, DEVICE, NATIVE)
    assert engine.modes("numpy") == (HOST,)
