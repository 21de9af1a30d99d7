"""PyTorch on devices without float64, imitated by a CPU: arithmetic in double-float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support import reference
from support.kits import Kit
from support.tiers import quick
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unified_clip.torch as uc
from unified_clip._backends.torch import double_float32
from unified_clip._backends.torch.arithmetic import widened
from unified_clip._backends.torch.backend import BACKEND
from unified_clip._backends.torch.device_path import TorchPath
from unified_clip._backends.torch.double_float32 import DOUBLE_FLOAT32, DoubleFloat32, DoubleFloat32Path
from unified_clip._compute.device import DevicePath
from unified_clip._core import rule

NORMAL = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
SEVERAL = st.lists(st.lists(NORMAL, max_size=40), max_size=4)


@pytest.fixture(autouse=True)
def _pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "pairs")


def fraction(pair: DoubleFloat32) -> Fraction:
    return Fraction(pair.hi.item()) + Fraction(pair.lo.item())


def constant(value: float | Fraction) -> DoubleFloat32:
    return DOUBLE_FLOAT32.constant(float(value), [])


# -- the choice


def test_the_setting_chooses_pairs_for_whatever_float32_can_hold() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64):
        assert isinstance(BACKEND.path([torch.ones(2, dtype=dtype)], differentiable=True), DoubleFloat32Path)
    for dtype in (torch.float64, torch.complex128):
        assert type(BACKEND.path([torch.ones(2), torch.ones(2, dtype=dtype)], differentiable=True)) is TorchPath
    assert isinstance(BACKEND.path([], differentiable=True), DoubleFloat32Path)


def test_a_device_without_float64_chooses_them_for_the_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIED_CLIP_PATH")
    with FakeTensorMode():
        there, here = torch.empty(2, device="mps"), torch.empty(2)
        assert isinstance(BACKEND.path([here, there], differentiable=True), DoubleFloat32Path)
        assert isinstance(
            BACKEND.path([here], differentiable=True, extra_inputs=[torch.empty((), device="mps")]), DoubleFloat32Path
        )
        assert type(BACKEND.path([here], differentiable=True)) is TorchPath
        with pytest.raises(
            TypeError, match="float64 and complex128 gradients cannot be clipped together with gradients on a device"
        ):
            uc.global_norm([there, here.double()])


# -- norms


def allowed(arrays: list[np.ndarray], p: float) -> tuple[float, float]:
    """Return the exact norm at both ends of the error interval of sums in double-float32, rounded."""
    values = [Fraction(x) for array in arrays for x in np.abs(array.astype(np.float64)).ravel().tolist()]
    total = sum((value**p for value in values), Fraction(0))
    root = reference.nearest_root if p == 2 else reference.nearest
    low, high = (root(total * (1 + sign * Fraction(1, 2**40)), "float32") for sign in (-1, 1))
    return low, high


@given(SEVERAL, st.sampled_from([1, 2]))
def test_norms_are_the_exact_ones_rounded_within_the_error_of_pairs(lists: list[list[float]], p: int) -> None:
    arrays = [np.array(values, np.float32) for values in lists]
    low, high = allowed(arrays, p)
    assert low <= float(uc.get_total_norm([torch.from_numpy(array) for array in arrays], p)) <= high


@given(st.lists(NORMAL, min_size=1, max_size=30))
def test_so_are_those_of_slices(values: list[float]) -> None:
    rows = np.array([values, values[::-1], [0.0] * len(values)], np.float32)
    path = BACKEND.path([torch.from_numpy(rows)], differentiable=True)
    low, high = allowed([rows[0]], 2)
    assert all(low <= n <= high for n in path.slice_norms([1]).hi.flatten().tolist()[:2])
    assert path.slice_norms([1]).hi[2].item() == 0.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("scale", quick([1e-35, 1e-20, 1.0, 1e20, 1e37], 1e-35, 1.0))
def test_norms_of_ordinary_gradients_are_correctly_rounded(dtype: str, scale: float) -> None:
    scale = 1.0 if dtype == "float16" else scale
    generator = np.random.default_rng(5)
    for length in (1, 2, 3, 17, 1000, 4097):
        values = generator.standard_normal(length) * scale
        if dtype == "complex64":
            values = values + 1j * generator.standard_normal(length) * scale
        array = reference.array(values, dtype)
        tensor = torch.from_numpy(values.astype(np.complex64) if dtype == "complex64" else array.astype(np.float32))
        tensor = tensor.to(getattr(torch, dtype))
        for p in (1, 2, math.inf):
            got, expected = float(uc.get_total_norm(tensor, p)), reference.norm([array], p)
            close = dtype == "complex64" and p != 2 and abs(got - expected) <= reference.spacing(expected)
            assert got == expected or close


def test_long_lists_are_added_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(6)
    arrays = [generator.standard_normal(length).astype(np.float32) for length in (5, 1, 0, 130, 3, 64, 200)]
    expected = reference.norm(arrays)
    monkeypatch.setattr(double_float32, "CHUNK", 64)
    vectors = list(double_float32._vectors([torch.from_numpy(array) for array in arrays]))
    assert sum(map(len, vectors)) == sum(map(len, arrays))
    assert len(vectors) <= 7
    assert max(map(len, vectors)) < 2 * 64
    assert float(uc.global_norm([torch.from_numpy(array) for array in arrays])) == expected


def test_sums_that_need_more_than_float32() -> None:
    """Float32 sums lose 2**12 ones beside 2**24."""
    terms = torch.cat([torch.tensor([2.0**24]), torch.ones(2**12)])
    assert float(uc.get_total_norm(terms, 1)) == 2.0**24 + 2**12
    assert float(uc.global_norm(torch.tensor([2.0**24, 2.0**12, 2.0**12, 4.0]))) == 2.0**24 + 2


def test_norms_of_subnormal_numbers_are_not_lost() -> None:
    array = np.array([1e-40, 1e-40, 2e-45], np.float32)
    got, expected = float(uc.global_norm(torch.from_numpy(array))), reference.norm([array])
    assert abs(got - expected) <= reference.spacing(expected)


def test_taking_subnormal_numbers_for_zero_changes_nothing_else() -> None:
    """GPUs can replace subnormal numbers by zero."""
    arrays = [np.random.default_rng(9).standard_normal(100).astype(np.float32) * scale for scale in (1e-30, 1.0, 1e30)]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not")
    try:
        assert float(torch.tensor(1e-40) * torch.tensor(1.0)) == 0.0
        tensors = [torch.from_numpy(array) for array in arrays]
        norms = [float(uc.global_norm(tensor)) for tensor in tensors]
        clipped = [uc.clip_by_norm(tensor, 0.3 * norm) for tensor, norm in zip(tensors, norms, strict=True)]
    finally:
        torch.set_flush_denormal(False)
    for array, norm, got in zip(arrays, norms, clipped, strict=True):
        assert norm == reference.norm([array])
        np.testing.assert_array_equal(got.numpy(), array * np.float32(0.3 * norm / norm))


# -- coefficients


@given(
    st.floats(1e-30, 3e38), st.floats(2.0**-100, 2.0**127, width=32), st.sampled_from([rule.PYTORCH, rule.TENSORFLOW])
)
@example(0.3, 7.0, rule.PYTORCH)
def test_coefficients_have_the_bits_of_those_in_float64(limit: float, n: float, family: rule.Family) -> None:
    """The bits can differ only if c / (n + eps) is within 2**-43 of the midpoint between two float32 numbers."""
    pair = rule.coefficient(DoubleFloat32Path([], True).xp, constant(n), limit, family)
    exact = min(Fraction(1), Fraction(limit) / (Fraction(n) + Fraction(family.eps)))
    low, high = (reference.nearest(exact * (1 + sign * Fraction(1, 2**43)), "float32") for sign in (-1, 1))
    assert low <= float(pair.hi) <= high or exact < 2.0**-126


def test_a_million_coefficients_have_the_bits_of_those_in_float64() -> None:
    generator = torch.Generator().manual_seed(7)
    wide = DevicePath(BACKEND, [], True)
    narrow = DoubleFloat32Path([], True)
    for limit in (10.0 ** np.random.default_rng(7).uniform(-20, 20, 100)).tolist():
        n = torch.randn(10_000, generator=generator).abs() * limit * 10
        for family in (rule.PYTORCH, rule.TENSORFLOW_GLOBAL):
            got = rule.coefficient(narrow.xp, DoubleFloat32(n, torch.zeros_like(n)), limit, family)
            expected = rule.coefficient(wide.xp, n.double(), limit, family)
            assert torch.equal(got.hi, expected.float())


@pytest.mark.parametrize(
    ("limit", "n", "coef"),
    [
        (0.0, 5.0, 0.0),
        (0.0, 0.0, 1.0),
        (1e300, 3e38, 1.0),
        (1e300, math.inf, 0.0),
        (1.0, math.inf, 0.0),
        (1.0, math.nan, math.nan),
        (1e-300, 0.0, 1.0),
        (1e-300, 1.0, 0.0),
        (3e38, 2.5e38, 1.0),
        (1.25e38, 2.5e38, 0.5),
        (2.0**-140, 2.0**-139, 0.5),
        (2.0**-100, 2.0**-99, 0.5),
        (1.0, 2.0**127, 2.0**-127),
        (0.3, 0.3, 1.0),
        (float(np.float32(0.3)), float(np.float32(0.3)), 1.0),
    ],
)
def test_coefficients_at_the_ends_of_the_range(limit: float, n: float, coef: float) -> None:
    got = rule.coefficient(DoubleFloat32Path([], True).xp, constant(n), limit, rule.TENSORFLOW)
    np.testing.assert_equal(got.hi.item(), coef)


def test_thresholds_are_held_to_48_bits_from_numbers_and_tensors() -> None:
    for value in (0.3, 1e-6, 1 / 3, 1e30):
        for given_ in (value, torch.tensor(value, dtype=torch.float64)):
            assert abs(fraction(DOUBLE_FLOAT32.constant(given_, [])) - Fraction(value)) <= Fraction(value) / 2**48
    assert fraction(DOUBLE_FLOAT32.constant(torch.tensor(7), [])) == 7
    assert fraction(DOUBLE_FLOAT32.constant(1e300, [])) == reference.LARGEST["float32"]
    for value in (math.inf, math.nan):
        for given_ in (value, torch.tensor(value), torch.tensor(value, dtype=torch.float64)):
            pair = DOUBLE_FLOAT32.constant(given_, [])
            np.testing.assert_equal((pair.hi.item(), pair.lo.item()), (value, 0.0))


# -- the arithmetic


@given(NORMAL, NORMAL)
def test_sums_and_products_are_exact(a: float, b: float) -> None:
    x, y = torch.tensor(a), torch.tensor(b)
    total = double_float32.two_sum(x, y)
    if math.isfinite(total.hi.item()):
        assert fraction(total) == Fraction(a) + Fraction(b)
    product = double_float32.two_product(x, y)
    if 2.0**-100 < abs(product.hi.item()) < math.inf:  # else the error is no normal number
        assert fraction(product) == Fraction(a) * Fraction(b)


@given(NORMAL)
def test_powers_of_two_near_numbers_and_their_reciprocals(number: float) -> None:
    power = double_float32.power_below(constant(number))
    expected = min(2.0 ** (math.frexp(number)[1] - 1), 2.0**126) if number else 2.0**-126
    assert (power.hi.item(), power.lo.item()) == (expected, 0.0)
    assert double_float32.reciprocal(power).hi.item() == 1 / expected


@given(st.floats(2.0**-40, 2.0**40), st.floats(2.0**-40, 2.0**40))
def test_sums_quotients_roots_and_comparisons_are_right_to_some_44_bits(a: float, b: float) -> None:
    x, y = constant(a), constant(b)
    exact, other = fraction(x), fraction(y)
    for got, expected in (
        (x + y, exact + other),
        (x / y, exact / other),
        (x.sqrt(), Fraction(math.isqrt(int(exact * 2**240)), 2**120)),
    ):
        assert abs(fraction(got) - expected) <= expected / 2**43
        assert got.hi.item() == np.float32(got.hi.item() + got.lo.item())
    assert ((x <= y).item(), (x >= y).item()) == (exact <= other, exact >= other)


# -- no float64


class NoFloat64(TorchDispatchMode):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.device, self.calls = device, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device:
                assert tensor.dtype not in (torch.float64, torch.complex128), function
        self.calls += 1
        return result


def gradients(device: str) -> list[torch.Tensor]:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.complex64)
    return [torch.ones(3, 4, device=device).to(dtype) for dtype in dtypes]


def with_gradients(device: str) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients(device)]
    for parameter, gradient in zip(parameters, gradients(device), strict=True):
        parameter.grad = gradient
    return parameters


def scalar(value: float, device: str) -> torch.Tensor:
    return torch.full((), value, device=device)


CALLS: dict[str, Callable[[str], Any]] = {
    "clip_grad_norm_": lambda device: uc.clip_grad_norm_(with_gradients(device), 1.0),
    "clip_grad_norm_ inf": lambda device: uc.clip_grad_norm_(with_gradients(device), 1.0, math.inf),
    "clip_grad_norm_ 1": lambda device: uc.clip_grad_norm_(with_gradients(device), scalar(0.5, device), 1),
    "clip_grad_value_": lambda device: uc.clip_grad_value_(with_gradients(device)[:3], 0.5),
    "clip_grads_with_norm_": lambda device: uc.clip_grads_with_norm_(
        with_gradients(device), 1.0, uc.global_norm(gradients(device))
    ),
    "clip_by_global_norm": lambda device: uc.clip_by_global_norm(gradients(device), 1.0),
    "clip_by_global_norm of none": lambda device: uc.clip_by_global_norm([], scalar(1.0, device)),
    "clip_by_norm": lambda device: [uc.clip_by_norm(gradient, 1.0) for gradient in gradients(device)],
    "clip_by_norm axes": lambda device: [uc.clip_by_norm(gradient, 1.0, axes=[1]) for gradient in gradients(device)],
    "clip_by_value": lambda device: [uc.clip_by_value(gradient, -1, 1.0) for gradient in gradients(device)[:3]],
    "clip_by_value tensors": lambda device: uc.clip_by_value(
        gradients(device)[1], torch.zeros(4, device=device), scalar(0.3, device)
    ),
    "derivative": lambda device: torch.func.grad(lambda x: uc.clip_by_norm(x, 1.0).sum())(gradients(device)[2]),
    "classes": lambda device: [
        clip([(None, gradient) for gradient in gradients(device)])
        for clip in (uc.GradientClipByNorm(1.0), uc.GradientClipByGlobalNorm(1.0))
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_no_float64_tensor_is_made(name: str) -> None:
    with NoFloat64("cpu") as mode:
        CALLS[name]("cpu")
    assert mode.calls


@pytest.mark.parametrize(
    "name", [name for name in CALLS if name.startswith(("clip_by", "classes")) and "by_value" not in name]
)
def test_nor_on_the_device_itself_as_far_as_shapes_and_dtypes_go(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an MPS device, PyTorch can neither write to its tensors nor compute derivatives."""
    monkeypatch.delenv("UNIFIED_CLIP_PATH")
    with FakeTensorMode(), NoFloat64("mps") as mode:
        results = [each for each in tree_leaves(CALLS[name]("mps")) if isinstance(each, torch.Tensor)]
    assert mode.calls
    assert {each.device.type for each in results} == {"cpu" if name.endswith("of none") else "mps"}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("UNIFIED_CLIP_PATH")
    with FakeTensorMode(), NoFloat64("mps"):
        yield


@pytest.mark.usefixtures("fake")
def test_other_orders_and_wide_bounds_go_by_way_of_the_cpu() -> None:
    there = torch.empty(3, device="mps")
    assert uc.get_total_norm([there, torch.empty(2)], 3).device.type == "mps"
    clipped, _ = uc.clip_by_global_norm([there], torch.ones((), dtype=torch.float64))
    assert (clipped[0].device.type, clipped[0].dtype) == ("mps", torch.float32)
    for dtype in (torch.float16, torch.float32):
        for bound in (torch.zeros(3, dtype=torch.float64), torch.zeros((), dtype=torch.int64, device="mps")):
            got = DOUBLE_FLOAT32.bound(bound, there.to(dtype))
            assert (got.device.type, got.dtype) == ("mps", dtype)


@pytest.mark.usefixtures("fake")
def test_so_do_sparse_gradients_whose_rows_are_summed_in_float64() -> None:
    wide = widened(torch.empty(3, device="mps"))
    assert (wide.device.type, wide.dtype) == ("cpu", torch.float64)


@pytest.mark.usefixtures("fake")
def test_lists_over_several_devices() -> None:
    mixed = [torch.empty(2), torch.empty(3, 2, device="mps", dtype=torch.bfloat16), torch.empty(4)]
    for given_ in (mixed, mixed[::-1], mixed[1:]):
        for p in (1, 2, math.inf):
            assert uc.get_total_norm(given_, p).device == given_[0].device
        clipped, _ = uc.clip_by_global_norm(given_, 1.0)
        assert [(t.device, t.dtype) for t in clipped] == [(t.device, t.dtype) for t in given_]


# -- derivatives


@pytest.mark.parametrize("scale", [1e-25, 1e-12, 1.0, 1e12, 1e25])
def test_derivatives_are_right_to_float32_accuracy_at_every_scale(scale: float) -> None:
    """The derivative of the coefficient is about 1 / scale, and float32 cannot represent its square."""

    def derivative(dtype: torch.dtype) -> torch.Tensor:
        point = torch.tensor([3.0, -4.0, 12.0], dtype=dtype).mul_(scale).requires_grad_(True)
        clipped, norm = uc.clip_by_global_norm([point], 2 * scale)
        (clipped[0].cumsum(0).sum() + norm).backward()
        assert point.grad is not None
        return point.grad

    torch.testing.assert_close(derivative(torch.float32), derivative(torch.float64).float(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_so_are_second_derivatives(p: float) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (uc.clip_by_norm(x, 2.0).cumsum(0) ** 2).sum() + uc.get_total_norm([x], p)

    point = torch.tensor([3.0, -4.0, 12.0])
    hessians = [torch.autograd.functional.hessian(function, x) for x in (point, point.double())]
    torch.testing.assert_close(hessians[0], hessians[1].float(), rtol=1e-5, atol=1e-6)
    if p == 2:
        torch.testing.assert_close(torch.func.hessian(function)(point), hessians[0], rtol=1e-5, atol=1e-6)


def test_derivatives_of_complex_magnitudes_are_finite_at_zero() -> None:
    point = torch.tensor([3 + 4j, 0j], requires_grad=True)
    uc.get_total_norm([point], 1).backward()
    torch.testing.assert_close(point.grad, torch.tensor([0.6 + 0.8j, 0j]))


# -- transformations


def test_under_vmap() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    got = torch.func.vmap(lambda x: uc.clip_by_global_norm([x], 1.0)[0][0])(rows)
    assert torch.equal(got, torch.stack([uc.clip_by_norm(row, 1.0) for row in rows]))


@pytest.mark.nightly
def test_compiled_without_a_graph_break() -> None:
    compiled = torch.compile(lambda x, c: uc.clip_by_global_norm([x], c), backend="aot_eager", fullgraph=True)
    generator = torch.Generator().manual_seed(8)
    for _ in range(3):
        values, limit = torch.randn(37, generator=generator), torch.tensor(0.3)
        (clipped,), norm = compiled(values, limit)
        (expected,), wanted_norm = uc.clip_by_global_norm([values], limit)
        assert torch.equal(clipped, expected)
        assert torch.equal(norm, wanted_norm)


# -- in place


def test_addresses_that_stand_for_buffers_tell_gradients_apart() -> None:
    """On MPS, the addresses of buffer objects are closer together than the buffers are long."""
    base, other = torch.arange(12.0), torch.arange(12.0)
    assert BACKEND.alias_owners([base, other, base[:]], str) == [0, 1, 0]
    assert BACKEND.alias_owners([base[::2], base[1::2]], str) == [0, 1]
    with pytest.raises(ValueError, match="0 and 1 overlap in memory"):
        BACKEND.alias_owners([base[:7], base[6:]], str)


def test_one_buffer_is_one_gradient(kit: Kit) -> None:
    shared = torch.tensor([3.0, 4.0])
    holders = kit.in_place([shared, shared[:], torch.tensor([12.0])])
    assert float(uc.clip_grad_norm_(holders, 1.0)) == 13.0
    torch.testing.assert_close(shared, torch.tensor([3.0, 4.0]) / 13)
