"""The Triton kernels on GPUs with slow float64: sums of two float32 numbers, in Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import interpreter, reference
from support.kits import Kit

from unified_clip._backends.torch import gpu  # noqa: F401 - before Triton, which the kit sets up

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:.*fp_fusion.*:UserWarning"),
]
CHUNK, LANES = 2048, 64
"""As many additions in a lane as in a chunk of the usual length."""


@pytest.fixture
def table(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    if not kit.exact:
        pytest.skip("about the kernels, which are compared with exact arithmetic")
    from unified_clip._backends.torch.gpu import table

    interpreter.patch_once(monkeypatch)
    for name, value in (("CHUNK", CHUNK), ("LANES", LANES), ("_has_slow_float64", lambda device: True)):
        monkeypatch.setattr(table, name, value)
    table._tables.clear()
    yield table
    table._tables.clear()


def values(kind: str, random: np.random.Generator) -> np.ndarray:
    """Return a chunk of numbers whose sums, or sums of squares, lose as many bits as possible."""
    numbers = {
        "normal": random.normal(0, 1e-3, CHUNK),
        "equal": np.full(CHUNK, 1.0 + 2.0**-12 + 2.0**-23),
        "growing": 2.0 ** np.linspace(-30, 10, CHUNK) * random.uniform(1, 2, CHUNK),
        "one large": np.concatenate([[4096.0], random.uniform(0.5, 1, CHUNK - 1)]),
        "near the least": random.normal(0, 2.0**-41, CHUNK),
        "near the largest": random.normal(0, 2.0**53, CHUNK),
    }
    return numbers[kind].astype(np.float32)


KINDS = ("normal", "equal", "growing", "one large", "near the least", "near the largest")


@pytest.mark.parametrize("p", [1, 2])
def test_the_error_of_a_sum_is_within_the_bound(table: ModuleType, p: int) -> None:
    """The error of the sum is below the bound. The error of the first number alone is above the bound."""
    random = np.random.default_rng(0)
    worst, worst_of_one = 0.0, 0.0
    for kind in KINDS:
        array = values(kind, random)
        sums = table.table_of([torch.from_numpy(array)]).sums(p, False, torch.float32)
        assert sums.dtype == torch.float32
        high, low = (Fraction(number) for number in sums.tolist())
        exact = sum(abs(Fraction(number)) ** p for number in array.tolist())
        worst = max(worst, float(abs(high + low - exact) / exact))
        worst_of_one = max(worst_of_one, float(abs(high - exact) / exact))
    assert worst < table.NARROW_ERROR / 4
    assert worst_of_one > 2.0**-26 > table.NARROW_ERROR


def test_the_error_of_a_full_chunk_is_within_the_bound(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk has as many lanes as on a GPU. In the interpreter, tables have fewer lanes, because it adds up their
    sums one by one."""
    if not kit.exact:
        pytest.skip("about the kernels, which are compared with exact arithmetic")
    from unified_clip._backends.torch.gpu import table

    interpreter.patch_once(monkeypatch)
    values, sums = torch.full((table.CHUNK,), 1 / 3), torch.empty(2)
    made = table.table_of([values])
    options = made._parts[0].options | {"width": table.LANES}
    table.kernels.add[(1,)](made._memory, 1, 0, sums, order=2, wide=False, **options)
    exact = len(values) * Fraction(float(values[0])) ** 2
    assert 0 < abs(sum(map(Fraction, sums.tolist())) - exact) / exact < table.NARROW_ERROR


LIMITS = [factor * limit for limit in (2.0**-36, 2.0**60) for factor in (0.5, 1.0 - 2.0**-20, 1.0, 1.0 + 2.0**-20, 2.0)]
HARD = [*LIMITS, 0.0, 2.0**-149, 2.0**-75, 2.0**-64, 2.0**64, 3e38, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_all_sizes_are_correctly_rounded(table: ModuleType, dtype: torch.dtype, p: float) -> None:
    """Squares can overflow in float32, or lose bits as subnormal numbers."""
    tensors = [torch.tensor(numbers).to(dtype) for value in HARD for numbers in ([value], [value, value * 0.7, 3e-39])]
    if dtype == torch.bfloat16:  # Triton's interpreter reads subnormal ones wrongly
        tensors = [torch.where(tensor.abs() < 2.0**-126, 0.0, tensor) for tensor in tensors]
    norms = table.table_of(tensors).norms(p, per_tensor=True)
    expected = torch.tensor([reference.norm([tensor.float().numpy()], p) for tensor in tensors], dtype=torch.float64)
    torch.testing.assert_close(norms, expected, rtol=0, atol=0, equal_nan=True)


NVIDIA = {(8, 0): False, (8, 6): True, (8, 9): True, (9, 0): False, (10, 0): False,
          (10, 3): True, (12, 0): True}  # fmt: skip
AMD = {"gfx90a:sramecc+:xnack-": False, "gfx942:sramecc+:xnack-": False, "gfx950": False,
       "gfx900": True, "gfx906:sramecc+:xnack-": True, "gfx908": True, "gfx90c": True, "gfx1100": True}  # fmt: skip


@pytest.mark.parametrize(("device", "is_slow"), [*NVIDIA.items(), *AMD.items()], ids=str)
def test_the_device_decides_how_sums_are_computed(device: Any, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from unified_clip._backends.torch.gpu import table

    is_amd = isinstance(device, str)
    major, minor = (9, 4) if is_amd else device
    properties = SimpleNamespace(major=major, minor=minor, gcnArchName=device)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.version, "hip", "7.0" if is_amd else None)
    assert table._has_slow_float64.__wrapped__(torch.device("cuda", 0)) is is_slow
    assert not table._has_slow_float64.__wrapped__(torch.device("cpu"))
