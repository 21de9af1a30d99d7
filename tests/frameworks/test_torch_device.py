"""PyTorch's device path on machines without a device: fake and meta tensors show its operations."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed.fsdp  # both add checks to a call
from support.calls import CALLS
from support.kits import TorchKit
from support.tiers import TRACES_WORLD, quick
from support.trainers.adaptive_cases import AGC, FITTING, rule_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import unified_clip.torch as uc
from unified_clip import adaptive
from unified_clip._backends.torch import operations


@pytest.fixture
def forced_device_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")


parameters = TorchKit().in_place


def with_gradients_of(name: str) -> Callable[[Any], Any]:
    call, inside = CALLS[name], SimpleNamespace(namespace=uc)
    return lambda params: call.run(
        inside, params if call.in_place else call.prepare(None, [parameter.grad for parameter in params]), 1.0
    )


NAMES = {name: with_gradients_of(name) for name in CALLS} | {
    "clip_by_norm with axes": lambda params: [uc.clip_by_norm(each.grad, 1.0, axes=-1) for each in params]
}


def tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, list | tuple):
        for item in result:
            yield from tensors(item)


class Operations(TorchDispatchMode):
    """Record PyTorch's operations. `kernels` counts the operations that are neither views nor allocations."""

    NO_KERNEL = (
        "empty_like", "empty", "unbind", "detach", "view", "alias", "lift_fresh", "select", "split", "squeeze",
        "as_strided",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.calls.append((function.overloadpacket.__name__, args, result))
        return result

    def check_stays_on(self, place: str) -> None:
        assert self.calls
        for operation, args, result in self.calls:
            assert operation not in READING_OPERATIONS
            devices = {tensor.device.type for tensor in (*tensors(list(args)), *tensors(result))}
            assert devices <= {place}, f"{operation} reads or creates tensors on {devices}"

    @property
    def kernels(self) -> Counter[str]:
        return Counter(name for name, _, _ in self.calls if name not in self.NO_KERNEL)


# -- reads on the host

READING_OPERATIONS = (
    "_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "tolist",
)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_no_call_waits_for_a_device_or_copies_memory_to_it(name: str, dtype: torch.dtype) -> None:
    """Reading a fake tensor's value is an error. Numbers reach a device as arguments."""
    with FakeTensorMode():
        limit = torch.tensor(1.0)
        params = parameters([torch.empty(shape, dtype=dtype, device="cuda") for shape in ((3,), (2, 4), (1,))])
        with Operations() as operations:
            result = NAMES[name](params)
        assert {tensor.device.type for tensor in tensors(result)} <= {"cuda"}
        assert limit.device.type == "cpu"
    operations.check_stays_on("cuda")


@pytest.mark.parametrize("settings", quick(FITTING, FITTING[2], FITTING[6]))
def test_adaptive_thresholds_read_no_value(settings: dict[str, Any]) -> None:
    rule = rule_of(settings)
    with FakeTensorMode():
        params = parameters([torch.empty(3, device="cuda")])
        state = adaptive.initial_state(rule, params)
        with Operations() as operations:
            _, state = adaptive.clip_grad_norm_(params, rule, state, max_norm=1.0)
            _, norm, state = adaptive.clip_by_global_norm([params[0].grad], rule, state)
    operations.check_stays_on("cuda")
    assert {norm.device.type, state.device.type} == {"cuda"}


def test_thresholds_of_units_read_no_value() -> None:
    with FakeTensorMode():
        params = parameters([torch.empty(shape, device="cuda") for shape in ((4, 3), (5,))])
        with Operations() as operations:
            results = adaptive.clip_by_unit_norm([parameter.grad for parameter in params], params, AGC, clip_norm=1.0)
    operations.check_stays_on("cuda")
    assert {result.device.type for result in results} == {"cuda"}


# -- the number of operations

PER_TENSOR = ("clip_by_norm", "clip_by_norm with axes", "clip_by_value", "ErrorClipByValue")

WITHOUT_FOREACH = ("clip_grad_norm_, 3", "get_total_norm, 0.5", "get_total_norm, 100", "GradientClipByValue")
"""For these, PyTorch has no operation on lists."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in PER_TENSOR + WITHOUT_FOREACH])
@pytest.mark.usefixtures("forced_device_path")
def test_the_number_of_operations_does_not_grow_with_the_number_of_tensors(name: str, dtype: torch.dtype) -> None:
    counted = []
    for number in (10, 100):
        params = parameters([torch.randn(3).to(dtype) for _ in range(number)])
        with Operations() as operations:
            NAMES[name](params)
        counted.append(operations.kernels)
    assert counted[0] == counted[1]
    assert counted[0].total() < 40


@pytest.mark.usefixtures("forced_device_path")
def test_16_bit_gradients_are_widened_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_WIDENED", 7)
    values = [torch.randn(n).bfloat16() for n in (3, 3, 3, 9, 1, 6, 2)]
    params = parameters([v.clone() for v in values])
    norm = uc.clip_grad_norm_(params, 0.5)
    coef = torch.tensor(0.5 / (norm.double().item() + 1e-6), dtype=torch.float32)
    for parameter, value in zip(params, values, strict=True):
        assert torch.equal(parameter.grad, (value.float() * coef).bfloat16())
    param_grads = uc.GradientClipByGlobalNorm(0.5)([(None, v) for v in values])
    coef = torch.tensor(0.5 / norm.double().item(), dtype=torch.float32)
    for (_, result), value in zip(param_grads, values, strict=True):
        assert torch.equal(result, (value.float() * coef).bfloat16())
    per_tensor = parameters([v.clone() for v in values])
    uc.GradientClipByNorm(0.5).clip_(per_tensor)
    for parameter, value in zip(per_tensor, values, strict=True):
        assert torch.equal(parameter.grad, uc.clip_by_norm(value, 0.5))


def peak_memory(call: Callable[[], object]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate((size for _, size in changes), initial=0))


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # before 2.13
@pytest.mark.parametrize("per_tensor", [False, True])
def test_writes_allocate_no_memory(monkeypatch: pytest.MonkeyPatch, per_tensor: bool) -> None:
    """A write that fails for lack of memory would leave the gradients half clipped."""
    monkeypatch.setattr(operations, "MAX_WIDENED", 5000)
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
    writes = operations.prepare_multiply(values, coef)
    assert len(writes) > 5
    assert peak_memory(lambda: [write.make() for write in writes]) < 64, "only scalars"
    for value, product in zip(values, expected, strict=True):
        assert torch.equal(value, product)


EXTRA_GRADIENTS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "nothing": list,
    "an empty gradient": lambda: [torch.empty(0, 3)],
    "a complex gradient": lambda: [torch.ones(2, dtype=torch.complex64)],
    "lazy negatives": lambda: [torch._neg_view(torch.ones(2))],
}


@pytest.mark.usefixtures("forced_device_path")
@pytest.mark.parametrize("beside", EXTRA_GRADIENTS)
def test_scaling_needs_little_memory(beside: str) -> None:
    params = parameters([torch.ones(100_000) for _ in range(20)] + EXTRA_GRADIENTS[beside]())
    gradient_size = 4 * 100_000
    factor = torch.tensor(0.5 / 5.0)
    peak = peak_memory(lambda: uc.clip_grads_with_norm_(params, 0.5, factor.new_tensor(5.0 - 1e-6)))
    assert peak < 3 * gradient_size
    assert all(torch.equal(parameter.grad, factor.expand(100_000)) for parameter in params[:20])


# -- several devices, and the meta device


@pytest.mark.parametrize("name", NAMES)
def test_gradients_on_several_devices(name: str) -> None:
    devices = ("cuda:1", "cuda:0", "cuda:1", "cpu")
    with FakeTensorMode():
        params = parameters([torch.empty(2, 3, device=device) for device in devices])
        with Operations() as operations:
            result = NAMES[name](params)
        assert [str(item.grad.device) for item in params] == list(devices)
        result_devices = [str(item.device) for item in tensors(result)]
    assert not {name for name, _, _ in operations.calls} & set(READING_OPERATIONS)
    norm_devices = [device for item, device in zip(tensors(result), result_devices, strict=True) if item.dim() == 0]
    assert norm_devices in ([], ["cuda:1"]), "the norm is on the first gradient's device"
    assert [device for item, device in zip(tensors(result), result_devices, strict=True) if item.dim()] in (
        [],
        list(devices),
    )


# -- transformations of functions


DIFFERENTIABLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clip_by_global_norm": lambda x: uc.clip_by_global_norm([x], 1.0)[0][0],
    "clip_by_norm": lambda x: uc.clip_by_norm(x, 1.0),
    "clip_by_norm with axes": lambda x: uc.clip_by_norm(x, 1.0, axes=[0]),
    "clip_by_value": lambda x: uc.clip_by_value(x, -1.0, 1.0),
    "global_norm": lambda x: uc.global_norm([x]),
    "get_total_norm of order 1": lambda x: uc.get_total_norm([x], 1),
    "get_total_norm of order 3": lambda x: uc.get_total_norm([x], 3),
}
POINTS = {"clipped": [3.0, 0.5, -4.0], "kept": [0.3, 0.2, -0.4]}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_and_backward_derivatives_agree(name: str) -> None:
    point = torch.tensor(POINTS["clipped"], dtype=torch.float64)
    function = DIFFERENTIABLE[name]
    backward, forward = torch.func.jacrev(function)(point), torch.func.jacfwd(function)(point)
    torch.testing.assert_close(backward, forward)
    torch.testing.assert_close(
        torch.func.hessian(lambda x: function(x).sum())(point),
        torch.autograd.functional.hessian(lambda x: function(x).sum(), point),
    )
    along = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(torch.func.jvp(function, (point,), (along,))[1], backward @ along)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_vmap_equals_a_loop(name: str) -> None:
    rows = torch.tensor([POINTS["clipped"], POINTS["kept"], [0.0, 0.0, 0.0]])
    function = DIFFERENTIABLE[name]
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            torch.testing.assert_close(torch.func.vmap(function)(rows), torch.stack([function(row) for row in rows]))
    gradients = torch.func.vmap(torch.func.grad(lambda x: function(x).sum()))(rows)
    torch.testing.assert_close(
        gradients, torch.stack([torch.func.grad(lambda x: function(x).sum())(row) for row in rows])
    )
    assert gradients.isfinite().all()


# -- collecting tensors


def python_functions(call: Callable[[], Any]) -> list[str]:
    """Return the names of the Python functions that a call runs, without those that keep the call out of graphs."""
    names: list[str] = []

    def is_of_dynamo(frame: FrameType) -> bool:
        """Also what its functions ask of `torch.compiler`."""
        caller, file = (each.f_code.co_filename if each else "" for each in (frame.f_back, frame))
        return "_dynamo" in file or ("_dynamo" in caller and Path(file).parent.name == "compiler")

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and not is_of_dynamo(frame):
            names.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return names[1:]  # without `call` itself


@pytest.mark.usefixtures("forced_device_path")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "clip",
    [NAMES["clip_grad_norm_"], NAMES["clip_grad_value_"], NAMES["GradientClipByNorm.clip_"]],
    ids=["norm", "value", "norm of each"],
)
def test_few_python_functions_are_called_per_gradient(clip: Callable[[Any], Any], dtype: torch.dtype) -> None:
    def calls(count: int) -> int:
        params = parameters([torch.ones(3, dtype=dtype) for _ in range(count)])
        clip(params)
        return len(python_functions(lambda: clip(params)))

    assert (calls(110) - calls(10)) / 100 <= 12


@TRACES_WORLD
@pytest.mark.parametrize("max_norm", [1.0, 100.0], ids=["clipped", "not clipped"])
def test_few_python_functions_are_called_around_the_kernels(max_norm: float) -> None:
    params = parameters([torch.ones(4) for _ in range(10)])
    uc.clip_grad_norm_(params, 1e9)
    names = python_functions(lambda: uc.clip_grad_norm_(params, max_norm))
    assert len(names) <= 15, names


def test_a_threshold_tensor_stays_on_its_device() -> None:
    with FakeTensorMode():
        limit, norm = torch.empty((), device="cuda"), torch.empty((), device="cuda")
        params = parameters([torch.empty(3, device="cuda"), torch.empty(4, device="cuda")])
        with Operations() as operations:
            uc.clip_grad_norm_(params, limit)
            uc.clip_grad_value_(params, limit)
            uc.clip_grads_with_norm_(params, limit, norm)
            uc.clip_by_global_norm([tensor.grad for tensor in params], limit, use_norm=norm)
            uc.clip_by_value(params[0].grad, -limit, limit)
    operations.check_stays_on("cuda")
