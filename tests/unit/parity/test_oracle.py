"""The exact arithmetic of the parity engine and its oracle, which computes the exact result of a case."""

from __future__ import annotations

import ast
import json
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.parity.cases import WORKED, case, dense

import unified_clip
from unified_clip.parity.judge import oracle
from unified_clip.tensors import arithmetic, types
from unified_clip.tensors.files import memmap
from unified_clip.tensors.norms import exact_norm
from unified_clip.tensors.types import Sparse

# -- exact arithmetic


@pytest.mark.parametrize(
    ("square", "degree", "dtype", "root"),
    [
        (Fraction(2), 2, "float32", float(np.float32(2**0.5))),
        (Fraction(2), 2, "float64", 2**0.5),
        (Fraction((2**24 + 1) ** 2), 2, "float32", 2.0**24),
        (Fraction((2**24 + 1) ** 2) + Fraction(1, 2**300), 2, "float32", 2.0**24 + 2),
        (Fraction((2**24 + 3) ** 2), 2, "float32", 2.0**24 + 4),
        (Fraction((2**24 + 3) ** 2) - Fraction(1, 2**300), 2, "float32", 2.0**24 + 2),
        (Fraction(2**24 + 1), 1, "float32", 2.0**24),
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
        reference = values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(np.float64)
    result = arithmetic.rounded(values, dtype)
    assert np.array_equal(result, reference, equal_nan=True)
    assert np.array_equal(np.signbit(result), np.signbit(reference))
    assert [arithmetic.nearest_float(float(v), dtype) for v in values[:-1:37]] == result[:-1:37].tolist()


def test_power_sums_are_exact() -> None:
    values = np.array([2.0**24, -(2.0**12), 1e300, 2.0**-1074])
    assert arithmetic.power_sum(values, 1) == sum(abs(Fraction(float(v))) for v in values)
    assert arithmetic.power_sum(values, 2) == sum(Fraction(float(v)) ** 2 for v in values)
    assert arithmetic.power_sum(np.zeros(0), 2) == 0


@pytest.mark.parametrize("p", [1, 2])
def test_power_sums_of_long_tensors_are_exact(p: int) -> None:
    greatest = 2 - 2.0**-52  # all bits set
    count = 3 * arithmetic.CHUNK + 1
    assert arithmetic.power_sum(np.full((count, 1), -greatest), p) == count * Fraction(greatest) ** p
    random = np.random.default_rng(2)
    values = random.standard_normal(3000) * 2.0 ** random.integers(-1074, 1000, 3000)
    assert arithmetic.power_sum(values, p) == sum(abs(Fraction(value)) ** p for value in values.tolist())


def test_powers_other_than_1_and_2_have_60_digits() -> None:
    total = arithmetic.power_sum(np.array([0.0, 2.0, -3.0]), 2.5)
    with localcontext(Context(prec=80)):
        assert abs(total - Fraction(Decimal(32).sqrt() + Decimal(243).sqrt())) < Fraction(1, 10**57)
    assert arithmetic.power_sum(np.array([2.0, -3.0]), 3) == 35
    assert arithmetic.root(Fraction(1, 8), 3, "float64") == 0.5


def test_products_are_rounded_once() -> None:
    random = np.random.default_rng(3)
    values = random.standard_normal(3000) * 2.0 ** random.integers(-1070, 1000, 3000)
    for dtype, coef in (("float64", 1 / 3), ("float64", 2.0**-60 / 3), ("float32", 1 / 3)):
        gradient = dense(values, dtype)
        factor = Fraction(arithmetic.nearest_float(coef, dtype))
        with np.errstate(invalid="ignore"):
            products = oracle.scaled(gradient, coef).values().tolist()
        finite = [value for value in gradient.values().tolist() if math.isfinite(value)]
        expected = [arithmetic.nearest(Fraction(value) * factor, dtype) for value in finite]
        assert [value for value in products if math.isfinite(value)] == expected


def test_column_sums_are_rounded_once() -> None:
    columns = np.array([[2.0**24, 1e30, np.inf], [1.0, 1.0, -np.inf], [2.0**-60, -1e30, 1.0]])
    assert arithmetic.sum_of_columns(columns, "float32")[:2].tolist() == [2.0**24 + 2, 1.0]
    assert math.isnan(arithmetic.sum_of_columns(columns, "float32")[2])
    columns = np.array([[2.0**53, 1e308, -0.0], [1.0, 1e308, -0.0], [2.0**-60, -1e308, -0.0]])
    assert arithmetic.sum_of_columns(columns, "float64").tolist() == [2.0**53 + 2, 1e308, 0.0]
    assert arithmetic.sum_of_columns(columns[:, 0], "float64") == 2.0**53 + 2


# -- tensors


# -- the oracle


JUDGES = (
    "parity.suite.public_calls", "parity.suite.case", "parity.suite.cases", "parity.suite.unsupported_cases",
    "parity.suite.call_form", "parity.judge.oracle", "parity.judge.verdict", "parity.known.entries",
    "parity.known.measure", "parity.call_outcome", "tensors.arithmetic", "tensors.norms", "tensors.types",
    "tensors.ulp",
)  # fmt: skip


OF_SETTINGS = "from ...adaptive.rules import AGC"
"""A suite's settings are read by the class that names them. It computes nothing there."""


@pytest.mark.parametrize("module", JUDGES)
def test_the_oracle_imports_nothing_from_the_code_it_judges(module: str) -> None:
    path = Path(unified_clip.__file__).parent.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            package = module.split(".")[: -node.level]
            imported = [*package, *(node.module or "").split(".")]
            assert imported[0] in ("parity", "tensors", "_kit") or ast.unparse(node) == OF_SETTINGS, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            assert "unified_clip" not in ast.unparse(node)


def expected_numbers(gradients: list[Any], call: str, **arguments: Any) -> list[Any]:
    result = oracle.expect(case(gradients, call, **arguments))
    norm = None if result.norm is None else float(result.norm.values())
    return [norm, *([] if result.gradients is None else [g and g.values().tolist() for g in result.gradients])]


def float32s(*values: float) -> list[float]:
    return [float(np.float32(value)) for value in values]


def test_the_oracle_computes_the_worked_example() -> None:
    norm = float(np.float32(5.477226))
    assert expected_numbers(WORKED, "clip_grad_norm_", max_norm=5.0) == [
        norm, float32s(2.7386122, 3.6514828), float32s(0.9128707, 1.8257414)
    ]  # fmt: skip
    assert expected_numbers(WORKED, "global_norm") == [norm]
    assert expected_numbers(WORKED, "get_total_norm", norm_type=1) == [10.0]
    assert expected_numbers(WORKED, "get_total_norm", norm_type=math.inf) == [4.0]
    assert expected_numbers([*WORKED, None], "GradientClipByValue", max=3.5, min=1.5) == [
        None,
        [3.0, 3.5],
        [1.5, 2.0],
        None,
    ]
    assert expected_numbers(WORKED, "clip_by_norm", clip_norm=2.5) == [None, [1.5, 2.0], [1.0, 2.0]]


def test_the_oracle_clips_by_bounds() -> None:
    gradients = [dense([-3.0, 0.5, 3.0])]
    assert expected_numbers(gradients, "clip_grad_value_", clip_value=1.0)[1] == [-1.0, 0.5, 1.0]
    assert expected_numbers(gradients, "GradientClipByValue", max=2.0)[1] == [-2.0, 0.5, 2.0]
    assert expected_numbers(gradients, "clip_by_value", clip_value_min=0.75, clip_value_max=1.1)[1] == float32s(
        0.75, 0.75, 1.1
    )


def test_the_oracle_applies_eps_and_keeps_a_norm_at_the_threshold() -> None:
    gradients = [dense([3.0, 4.0])]
    assert expected_numbers(gradients, "clip_by_global_norm", clip_norm=5.0) == [5.0, [3.0, 4.0]]
    assert expected_numbers(gradients, "clip_grad_norm_", max_norm=5.0)[1] == float32s(2.9999995, 3.9999993)
    assert expected_numbers(gradients, "clip_grad_norm_", max_norm=5.00001)[1] == [3.0, 4.0]
    assert expected_numbers(gradients, "clip_by_global_norm", clip_norm=1.0, use_norm=2.0) == [2.0, [1.5, 2.0]]
    assert expected_numbers(gradients, "clip_by_norm", clip_norm=0.0)[1] == [0.0, 0.0]
    assert expected_numbers(gradients, "clip_by_global_norm", clip_norm=0.0, use_norm=0.0) == [0.0, [0.0, 0.0]]


def test_the_oracle_keeps_dtypes() -> None:
    mixed = [dense([3.0], "float16"), dense([4.0], "float64")]
    result = oracle.expect(case(mixed, "clip_by_global_norm", clip_norm=0.1))
    assert result.norm is not None
    assert result.gradients is not None
    assert result.norm.dtype == "float64"
    assert [g and g.dtype for g in result.gradients] == ["float16", "float64"]
    assert [float(g.values()[0]) for g in result.gradients if g] == [float(np.float16(0.06)), 4.0 * (0.1 / 5.0)]
    assert exact_norm([dense([60000.0, 60000.0], "float16")], 2, "float32") == float(np.float32(60000 * 2**0.5))


@pytest.mark.parametrize(
    ("dtype", "gradient", "coef", "product"),
    [("float16", 1.5517578125, 0.8637508153915405, 1.33984375), ("bfloat16", 1.65625, 0.6344339847564697, 1.046875)],
)
def test_the_oracle_rounds_16_bit_products_to_float32_first(
    dtype: str, gradient: float, coef: float, product: float
) -> None:
    gradients = [dense([gradient], dtype)]
    assert expected_numbers(gradients, "clip_by_global_norm", clip_norm=coef, use_norm=1.0)[1] == [product]
    assert arithmetic.nearest(Fraction(gradient) * Fraction(coef), dtype) != product


def test_the_oracle_propagates_inf_and_nan() -> None:
    gradients = [dense([math.inf, -2.0])]
    norm, gradient = expected_numbers(gradients, "clip_grad_norm_", max_norm=1.0)
    assert (norm, math.isnan(gradient[0]), gradient[1]) == (math.inf, True, 0.0)
    assert math.copysign(1, gradient[1]) == -1
    assert all(map(math.isnan, expected_numbers(gradients, "clip_by_global_norm", clip_norm=1.0)[1]))
    assert expected_numbers(gradients, "clip_by_global_norm", clip_norm=math.inf) == [math.inf, [math.inf, -2.0]]
    assert math.isnan(expected_numbers([dense([math.nan, math.inf])], "get_total_norm", norm_type=math.inf)[0])
    low, high = expected_numbers([dense([math.nan, -0.0])], "clip_by_value", clip_value_min=0.0, clip_value_max=1.0)[1]
    assert math.isnan(low)
    assert math.copysign(1, high) == -1


def test_the_oracle_computes_norms_per_slice_and_of_sparse_rows() -> None:
    rows = [dense([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]], "float64")]
    clipped = [[3.0 * 0.2, 4.0 * 0.2], [0.3, 0.4], [6.0 * 0.1, 8.0 * 0.1]]
    assert expected_numbers(rows, "clip_by_norm", clip_norm=1.0, axes=[-1])[1] == clipped
    sparse = [Sparse(np.array([1, 1, 2]), dense([[3.0], [4.0], [24.0]]), (3, 1))]
    assert expected_numbers(sparse, "clip_by_global_norm", clip_norm=12.5) == [25.0, [[0.0], [3.5], [12.0]]]


def test_the_oracle_leaves_out_parameters_and_groups() -> None:
    gradients = [dense([3.0, 4.0]), dense([12.0])]
    left_out = {"need_clip": (True, 0)}
    assert expected_numbers(gradients, "clip_by_global_norm", clip_norm=2.5, call_form=left_out) == [
        5.0,
        [1.5, 2.0],
        [12.0],
    ]
    alone = {"gradients_for_parameters": True}
    assert expected_numbers(gradients, "clip_grad_norm_", max_norm=1.0, call_form=alone) == [0.0, [3.0, 4.0], [12.0]]
    groups = {"groups": ("a", "b")}
    assert expected_numbers(gradients, "append_gradient_clip_ops", clip_norm=2.5, call_form=groups)[1:] == [
        [1.5, 2.0],
        [2.5],
    ]


def test_the_oracle_computes_an_update() -> None:
    result = oracle.expect(case([dense([3.0, 4.0]), None], "clip_by_global_norm", clip_norm=2.5, update=True))
    assert result.update is not None
    assert [weight and weight.values().tolist() for weight in result.update] == [[0.25, 0.0], None]
    (tiny,) = oracle.expect(case([dense([2.0**-25 * 1.5])], "clip_by_norm", clip_norm=1.0, update=True)).update or []
    assert tiny is not None
    assert tiny.values().tolist() == [1.0]


def test_files_keep_every_bit(tmp_path: Path) -> None:
    gradients = [
        dense([1.0, -0.0, 3e38], "bfloat16"),
        None,
        Sparse(np.array([2, 0, 2]), dense([[1.0], [2.0], [3.0]], "float64"), (4, 1)),
        dense(5.0, "float16"),
        dense(np.zeros((0, 3))),
    ]
    with (tmp_path / "tensors").open("wb") as file:
        entries = json.loads(json.dumps([memmap.append(file, gradient) for gradient in gradients]))
    loaded = [memmap.at(memmap.read_or_map(tmp_path / "tensors"), entry) for entry in entries]
    assert [type(g) for g in loaded] == [type(g) for g in gradients]
    for before, after in zip(gradients, loaded, strict=True):
        assert types.digest([types.densify(before)]) == types.digest([types.densify(after)])
