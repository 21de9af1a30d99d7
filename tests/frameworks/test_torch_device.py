"""PyTorch's device path: what it asks of a device, on machines that have none (fake and meta tensors show it)."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.kits import Kit
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import unified_clip.torch as uc
from unified_clip import ClipConfig
from unified_clip._backends.torch import lists
from unified_clip._backends.torch.backend import BACKEND

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # forward derivatives


@pytest.fixture(autouse=True)
def _once(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("about the device path, which is taken here anyhow")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device path for tensors in CPU memory."""
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")


def parameters(gradients: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.empty_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = gradient
    return made


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "clip_grad_norm_": lambda given: uc.clip_grad_norm_(given, 1.0),
    "clip_grad_norm_ of order inf": lambda given: uc.clip_grad_norm_(given, 1.0, math.inf),
    "clip_grad_norm_ of order 3": lambda given: uc.clip_grad_norm_(given, 1.0, 3),
    "clip_grads_with_norm_": lambda given: uc.clip_grads_with_norm_(given, 1.0, 5.0),
    "clip_grad_value_": lambda given: uc.clip_grad_value_(given, 1.0),
    "GradientClipByGlobalNorm.clip_": uc.GradientClipByGlobalNorm(1.0).clip_,
    "GradientClipByNorm.clip_": uc.GradientClipByNorm(1.0).clip_,
    "GradientClipByValue.clip_": uc.GradientClipByValue(1.0).clip_,
}

FUNCTIONAL: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "get_total_norm": uc.get_total_norm,
    "clip_by_global_norm": lambda given: uc.clip_by_global_norm(given, 1.0),
    "global_norm": uc.global_norm,
    "clip_by_norm": lambda given: [uc.clip_by_norm(each, 1.0) for each in given],
    "clip_by_norm with axes": lambda given: [uc.clip_by_norm(each, 1.0, axes=-1) for each in given],
    "clip_by_value": lambda given: [uc.clip_by_value(each, -1.0, 1.0) for each in given],
    "ErrorClipByValue": lambda given: [uc.ErrorClipByValue(1.0)(each) for each in given],
    "GradientClipByGlobalNorm": lambda given: uc.GradientClipByGlobalNorm(1.0)([(None, each) for each in given]),
    "GradientClipByNorm": lambda given: uc.GradientClipByNorm(1.0)([(None, each) for each in given]),
    "GradientClipByValue": lambda given: uc.GradientClipByValue(1.0)([(None, each) for each in given]),
}
NAMES = {**IN_PLACE, **{name: lambda given, f=f: f([p.grad for p in given]) for name, f in FUNCTIONAL.items()}}


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """Those in what a name returned."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from tensors(item)


class Operations(TorchDispatchMode):
    """What is asked of PyTorch, but for memory and views of it, which start no kernel."""

    NO_KERNEL = (
        "empty_like",
        "empty",
        "unbind",
        "detach",
        "view",
        "alias",
        "lift_fresh",
        "select",
        "split",
        "squeeze",
        "as_strided",
    )

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.calls.append((function.overloadpacket.__name__, args, result))
        return result

    @property
    def kernels(self) -> Counter[str]:
        return Counter(name for name, _, _ in self.calls if name not in self.NO_KERNEL)


# -- nothing is read on the host

READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "tolist")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_no_name_waits_for_a_device_or_sends_it_memory(name: str, dtype: torch.dtype) -> None:
    """A fake tensor has no value to be read: that alone would be an error. Numbers reach a device as arguments."""
    with FakeTensorMode():
        limit = torch.tensor(1.0)
        given = parameters([torch.empty(shape, dtype=dtype, device="cuda") for shape in ((3,), (2, 4), (1,))])
        with Operations() as seen:
            result = NAMES[name](given)
        assert {each.device.type for each in tensors(result)} <= {"cuda"}
        assert limit.device.type == "cpu"
    assert seen.calls
    for operation, args, result in seen.calls:
        assert operation not in READS
        devices = {each.device.type for each in (*tensors(list(args)), *tensors(result))}
        assert devices <= {"cuda"}, f"{operation} is given or makes what is on {devices}"


def test_a_threshold_on_the_device_stays_there() -> None:
    with FakeTensorMode():
        limit, norm = torch.empty((), device="cuda"), torch.empty((), device="cuda")
        given = parameters([torch.empty(3, device="cuda"), torch.empty(4, device="cuda")])
        with Operations() as seen:
            uc.clip_grad_norm_(given, limit)
            uc.clip_grad_value_(given, limit)
            uc.clip_grads_with_norm_(given, limit, norm)
            uc.clip_by_global_norm([each.grad for each in given], limit, use_norm=norm)
            uc.clip_by_value(given[0].grad, -limit, limit)
    assert not {name for name, _, _ in seen.calls} & set(READS)
    assert {each.device.type for _, args, result in seen.calls for each in tensors([*args, result])} == {"cuda"}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_a_trace_reads_no_value(name: str) -> None:
    function = FUNCTIONAL[name]
    traced = make_fx(lambda *given: list(tensors(function(list(given)))))(torch.ones(2, 3), torch.ones(4))
    assert not {str(node.target).split(".")[1] for node in traced.graph.nodes if "aten." in str(node.target)} & set(
        READS
    )
    given = [torch.randn(2, 3), torch.randn(4)]
    torch.testing.assert_close(traced(*given), list(tensors(function(given))), rtol=2.0**-23, atol=0)


# -- as many operations for a hundred tensors as for ten

ONE_BY_ONE = ("clip_by_norm", "clip_by_norm with axes", "clip_by_value", "ErrorClipByValue")
"""One call for each tensor."""

A_FEW_EACH = ("clip_grad_norm_ of order 3", "GradientClipByValue")
"""For which PyTorch has no operation on lists."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_BY_ONE + A_FEW_EACH])
@pytest.mark.usefixtures("forced")
def test_the_number_of_operations_does_not_grow_with_the_number_of_tensors(name: str, dtype: torch.dtype) -> None:
    counted = []
    for number in (10, 100):
        given = parameters([torch.randn(3).to(dtype) for _ in range(number)])
        with Operations() as seen:
            NAMES[name](given)
        counted.append(seen.kernels)
    assert counted[0] == counted[1]
    assert counted[0].total() < 40


@pytest.mark.parametrize("norm", ["clip_grad_norm_", "GradientClipByNorm.clip_"])
@pytest.mark.usefixtures("forced")
def test_dtypes_of_one_list_are_taken_apart_and_put_together_again(norm: str) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float16)
    values = [torch.randn(3, generator=torch.Generator().manual_seed(i)).to(dtypes[i % 4]) for i in range(12)]
    together, apart = parameters([v.clone() for v in values]), parameters([v.clone() for v in values])
    total = IN_PLACE[norm](together)
    if norm == "clip_grad_norm_":
        assert total.dtype == torch.float64
        exact = math.sqrt(sum(v.double().pow(2).sum().item() for v in values))
        assert total.item() == pytest.approx(exact, rel=1e-12)
        uc.clip_grads_with_norm_(apart, 1.0, total)
    else:
        for each in apart:
            uc.GradientClipByNorm(1.0).clip_([each])
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0 if one.dtype != torch.float64 else 1e-12, atol=0)


@pytest.mark.usefixtures("forced")
def test_16_bit_gradients_are_widened_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "MAX_WIDENED", 7)
    values = [torch.randn(n).bfloat16() for n in (3, 3, 3, 9, 1, 6, 2)]
    given = parameters([v.clone() for v in values])
    norm = uc.clip_grad_norm_(given, 0.5)
    coef = torch.tensor(0.5 / (norm.double().item() + 1e-6), dtype=torch.float32)
    for parameter, value in zip(given, values, strict=True):
        assert torch.equal(parameter.grad, (value.float() * coef).bfloat16())
    pairs = uc.GradientClipByGlobalNorm(0.5)([(None, v) for v in values])
    coef = torch.tensor(0.5 / norm.double().item(), dtype=torch.float32)
    for (_, got), value in zip(pairs, values, strict=True):
        assert torch.equal(got, (value.float() * coef).bfloat16())
    own = parameters([v.clone() for v in values])
    uc.GradientClipByNorm(0.5).clip_(own)
    for parameter, value in zip(own, values, strict=True):
        assert torch.equal(parameter.grad, uc.clip_by_norm(value, 0.5))


def peak_memory(call: Callable[[], object]) -> int:
    """How many bytes more a call takes at once than before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    found = profile.profiler.kineto_results.events()
    changes = sorted((each.start_ns(), each.nbytes()) for each in found if each.name() == "[memory]")
    return max(itertools.accumulate((size for _, size in changes), initial=0))


@pytest.mark.parametrize("per_tensor", [False, True])
def test_writes_need_no_new_memory(monkeypatch: pytest.MonkeyPatch, per_tensor: bool) -> None:
    """Without memory a write would fail after others were made, and leave the gradients half clipped."""
    monkeypatch.setattr(lists, "MAX_WIDENED", 5000)
    shapes = [(4000,), (3000,), (2, 3, 20, 20), (9000,), (1,)]
    values = [
        torch.randn(shape).to(dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32) for shape in shapes
    ]
    values = [value.to(memory_format=torch.channels_last) if value.dim() == 4 else value for value in values]
    coefs = torch.linspace(0.1, 0.9, len(values), dtype=torch.float64)
    coef = coefs if per_tensor else coefs[3]
    expected = [
        (value.float() * factor.float()).to(value.dtype)
        for value, factor in zip(values, coefs if per_tensor else [coef] * len(values), strict=True)
    ]
    writes = lists.prepare_multiply(values, coef)
    assert len(writes) > 5
    assert peak_memory(lambda: [write.make() for write in writes]) < 64, "only scalars"
    for value, product in zip(values, expected, strict=True):
        assert torch.equal(value, product)


BESIDE: dict[str, Callable[[], list[torch.Tensor]]] = {
    "nothing": list,
    "an empty gradient": lambda: [torch.empty(0, 3)],
    "a complex gradient": lambda: [torch.ones(2, dtype=torch.complex64)],
    "lazy negatives": lambda: [torch._neg_view(torch.ones(2))],
}


@pytest.mark.parametrize("path", ["framework", "pairs"])
@pytest.mark.parametrize("beside", BESIDE)
def test_gradients_are_scaled_without_memory_for_all_products(
    monkeypatch: pytest.MonkeyPatch, beside: str, path: str
) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    given = parameters([torch.ones(100_000) for _ in range(20)] + BESIDE[beside]())
    one = 4 * 100_000
    factor = torch.tensor(0.5 / 5.0)
    peak = peak_memory(lambda: uc.clip_grads_with_norm_(given, 0.5, factor.new_tensor(5.0 - 1e-6)))
    assert peak < 3 * one
    assert all(torch.equal(each.grad, factor.expand(100_000)) for each in given[:20])


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("rule", ["global_norm", "norm", "value"])
def test_zeros_for_nonfinite_gradients_take_no_memory_for_all(rule: Any) -> None:
    clip = ClipConfig(rule=rule, threshold=0.5, nonfinite="zero")
    for value, kept in ((1.0, True), (math.inf, False)):
        given = parameters([torch.full((100_000,), value), *(torch.ones(100_000) for _ in range(19))])
        peak = peak_memory(lambda given=given: clip.clip_(given))
        assert peak < 3 * 4 * 100_000
        assert all(bool(each.grad.any()) is kept for each in given)


# -- several devices, and the one without values


@pytest.mark.parametrize("name", NAMES)
def test_gradients_on_several_devices(name: str) -> None:
    places = ("cuda:1", "cuda:0", "cuda:1", "cpu")
    with FakeTensorMode():
        given = parameters([torch.empty(2, 3, device=place) for place in places])
        with Operations() as seen:
            result = NAMES[name](given)
        assert [str(each.grad.device) for each in given] == list(places)
        found = [str(each.device) for each in tensors(result)]
    assert not {name for name, _, _ in seen.calls} & set(READS)
    single = [device for each, device in zip(tensors(result), found, strict=True) if each.dim() == 0]
    assert single in ([], ["cuda:1"]), "the norm is on the first gradient's device"
    assert [device for each, device in zip(tensors(result), found, strict=True) if each.dim()] in ([], list(places))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors_show_shapes_and_dtypes(name: str, dtype: torch.dtype) -> None:
    if dtype == torch.complex64 and "alue" in name:
        pytest.skip("complex values have no order")
    shapes = ((2, 3), (4,), (1, 1))
    given = parameters([torch.empty(shape, dtype=dtype, device="meta") for shape in shapes])
    gradients = [each.grad for each in given]
    found = list(tensors(NAMES[name](given)))
    assert all(each.is_meta for each in found)
    assert all(each.grad is gradient and gradient.is_meta for each, gradient in zip(given, gradients, strict=True))
    norms = [each for each in found if each.dim() == 0]
    assert all(each.dtype == (torch.float64 if dtype == torch.float64 else torch.float32) for each in norms)
    rest = [each for each in found if each.dim()]
    assert [(tuple(each.shape), each.dtype) for each in rest] in ([], [(shape, dtype) for shape in shapes])


# -- transformations of functions


BY_ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clip_by_global_norm": lambda x: uc.clip_by_global_norm([x], 1.0)[0][0],
    "clip_by_norm": lambda x: uc.clip_by_norm(x, 1.0),
    "clip_by_norm with axes": lambda x: uc.clip_by_norm(x, 1.0, axes=[0]),
    "clip_by_value": lambda x: uc.clip_by_value(x, -1.0, 1.0),
    "global_norm": lambda x: uc.global_norm([x]),
    "get_total_norm of order 1": lambda x: uc.get_total_norm([x], 1),
    "get_total_norm of order 3": lambda x: uc.get_total_norm([x], 3),
}
POINTS = {"clipped": [3.0, 0.5, -4.0], "kept": [0.3, 0.2, -0.4]}


@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("name", BY_ONE)
def test_first_and_second_derivatives(name: str, at: str) -> None:
    point = torch.tensor(POINTS[at], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(BY_ONE[name], point, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(BY_ONE[name], point)


@pytest.mark.parametrize("name", BY_ONE)
def test_the_ways_to_differentiate_agree(name: str) -> None:
    point = torch.tensor(POINTS["clipped"], dtype=torch.float64)
    function = BY_ONE[name]
    backward, forward = torch.func.jacrev(function)(point), torch.func.jacfwd(function)(point)
    torch.testing.assert_close(backward, forward)
    torch.testing.assert_close(
        torch.func.hessian(lambda x: function(x).sum())(point),
        torch.autograd.functional.hessian(lambda x: function(x).sum(), point),
    )
    along = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(torch.func.jvp(function, (point,), (along,))[1], backward @ along)


@pytest.mark.parametrize("name", BY_ONE)
def test_vmap_is_a_loop(name: str) -> None:
    rows = torch.tensor([POINTS["clipped"], POINTS["kept"], [0.0, 0.0, 0.0]])
    function = BY_ONE[name]
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            torch.testing.assert_close(torch.func.vmap(function)(rows), torch.stack([function(row) for row in rows]))
    each = torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(rows)
    torch.testing.assert_close(each, torch.stack([torch.func.grad(lambda x: function(x).sum())(row) for row in rows]))
    assert each.isfinite().all()


@pytest.mark.parametrize("name", BY_ONE)
def test_no_second_derivative_is_nan_at_zero(name: str) -> None:
    hessian = torch.func.hessian(lambda x: BY_ONE[name](x).sum())(torch.zeros(3, dtype=torch.float64))
    assert hessian.isfinite().all()


def test_per_sample_gradients_are_clipped_each_on_its_own() -> None:
    """As differentially private training does."""
    weight, data = torch.tensor([1.0, -1.0]), torch.tensor([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0]])

    def clipped(row: torch.Tensor) -> torch.Tensor:
        gradient = torch.func.grad(lambda w: (w * row).sum())(weight)
        return uc.clip_by_global_norm([gradient], 1.0)[0][0]

    wanted = torch.tensor([[0.6, 0.8], [0.03, 0.04], [0.0, 0.0]])
    torch.testing.assert_close(torch.func.vmap(clipped)(data), wanted)


# -- collecting


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "clip",
    [IN_PLACE["clip_grad_norm_"], IN_PLACE["clip_grad_value_"], uc.GradientClipByNorm(1.0).clip_],
    ids=["norm", "value", "norm of each"],
)
def test_each_gradient_takes_few_calls_of_python_functions(clip: Callable[[Any], Any], dtype: torch.dtype) -> None:
    def calls(count: int) -> int:
        called = []
        given = parameters([torch.ones(3, dtype=dtype) for _ in range(count)])
        clip(given)
        sys.setprofile(lambda frame, event, _: called.append(frame) if event == "call" else None)
        try:
            clip(given)
        finally:
            sys.setprofile(None)
        return len(called)

    assert (calls(110) - calls(10)) / 100 <= 12


SHARED = torch.ones(8)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(
    "gradients",
    [
        [torch.ones(2, 3).t()],
        [torch.ones(2).to_sparse()],
        [torch.ones(2, dtype=torch.complex64)],
        [torch.ones(2, dtype=torch.int32)],
        [torch.ones(0)],
        [SHARED[:5], SHARED[4:]],
        [SHARED, SHARED],
        [torch.ones(2, device="meta")],
        [torch._neg_view(torch.ones(2))],
        [torch.ones([1] * 65)],
    ],
    ids=["strides", "sparse", "complex", "integers", "empty", "overlap", "aliases", "meta", "negative bit", "65 axes"],
)
def test_gradients_that_are_not_plain_are_not_collected_in_one_pass(gradients: list[torch.Tensor]) -> None:
    assert BACKEND.collect_tensors([torch.ones(2)], differentiable=True, in_place=False) is not None
    assert BACKEND.collect_tensors([torch.ones(2), *gradients], differentiable=False, in_place=True) is None


@pytest.mark.usefixtures("forced")
def test_gradients_with_channels_last_are_collected_in_one_pass() -> None:
    """Those of convolutions, where PyTorch recommends it on GPUs."""
    values = torch.arange(24.0).view(1, 2, 3, 4)
    given = parameters([values.to(memory_format=torch.channels_last), torch.ones(2)])
    assert BACKEND.collect_parameters(given) is not None
    uc.clip_grad_value_(given, 7.0)
    assert torch.equal(given[0].grad, values.clamp(max=7.0))
    assert given[0].grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.usefixtures("forced")
def test_a_wanted_derivative_is_not_collected_in_one_pass() -> None:
    wanted = torch.ones(2, requires_grad=True)
    assert BACKEND.collect_tensors([wanted], differentiable=True, in_place=False) is None
    assert BACKEND.collect_tensors([wanted], differentiable=False, in_place=True) is not None
    with torch.inference_mode():
        made = torch.ones(2)
    assert BACKEND.collect_tensors([made], differentiable=False, in_place=True) is None


@pytest.mark.usefixtures("forced")
def test_sums_of_shards_on_a_device_are_added_up_on_the_host() -> None:
    """Ranks exchange integers, whichever path the gradients take."""
    sums = BACKEND.partial_sums([torch.full((4,), 3.0), torch.full((7,), 4.0)])
    assert sums.power_sum(1, False).root(1, sums.norm_dtype) == 40.0
    assert sums.max_abs("float32") == 4.0


def test_tensors_on_the_cpu_are_left_to_the_host_path() -> None:
    strided = torch.ones(2, 3).t()[::2]
    collected = BACKEND.collect_tensors([torch.ones(2), strided], differentiable=False, in_place=True)
    assert collected is None or collected.on_host
