"""The tables of gradient lists for the Triton kernels: which tables are kept, on which stream, and the state after a
failure."""

from __future__ import annotations

import functools
import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from support import interpreter, reference
from support.kits import Kit
from torch.utils._python_dispatch import TorchDispatchMode

import unified_clip.torch as uc
from unified_clip import PartlyClippedError
from unified_clip._backends.torch import gpu
from unified_clip._backends.torch.gpu import ENABLED  # noqa: F401 - before Triton, which the kit sets up

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
    pytest.mark.filterwarnings("ignore:.*fp_fusion.*:UserWarning"),
]
TIE = [2.0**24, *[2.0**12] * 6, 3.0]
"""Its norm lies between two float32 numbers, so that exact sums decide."""


@pytest.fixture
def table(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    if not kit.exact:
        pytest.skip("about the kernels, which are compared with the host path")
    from unified_clip._backends.torch.gpu import table

    interpreter.patch_once(monkeypatch)
    monkeypatch.setattr(gpu, "ENABLED", True)
    monkeypatch.setattr(table, "LANES", 64)
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    table._tables.clear()
    yield table
    table._tables.clear()


def before(table: ModuleType, name: str, action: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = getattr(table.kernels, name)

    class Launched:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def launch(*args: Any, **kwargs: Any) -> None:
                action(*args)
                kernel[grid](*args, **kwargs)

            return launch

    monkeypatch.setattr(table.kernels, name, Launched())


def failing(times: int) -> Callable[..., None]:
    left = iter(range(times))

    def fail(*args: Any) -> None:
        if next(left, None) is not None:
            raise RuntimeError("no memory")

    return fail


def parameters(*gradients: torch.Tensor) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = gradient
    return params


# -- calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["norm", "value", "norm of each"])
def test_each_gradient_takes_few_calls_of_python_functions(
    table: ModuleType, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip: Callable[[Any], Any] = {
        "norm": lambda params: uc.clip_grad_norm_(params, 1.0),
        "value": lambda params: uc.clip_grad_value_(params, 1.0),
        "norm of each": uc.GradientClipByNorm(1.0).clip_,
    }[name]
    for kernel in ("add", "round_sums", "add_exactly", "decide", "change"):
        monkeypatch.setattr(table.kernels, kernel, NotLaunched())

    def calls(count: int) -> int:
        called = []
        params = parameters(*(torch.ones(3, dtype=dtype) for _ in range(count)))
        clip(params)
        sys.setprofile(lambda frame, event, _: called.append(frame) if event == "call" else None)
        try:
            clip(params)
        finally:
            sys.setprofile(None)
        return len(called)

    assert (calls(110) - calls(10)) / 100 <= 10


class NotLaunched:
    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None


# -- calls at once, and calls that fail


def test_calls_between_the_launches_of_another_change_nothing(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, norms = [torch.tensor(TIE)], []

    def measure_too(*args: Any) -> None:
        if not norms:
            norms.append(None)
            norms.append(float(table.table_of(tensors).norms(2, per_tensor=False)))

    before(table, "decide", measure_too, monkeypatch)
    norms.append(float(table.table_of(tensors).norms(2, per_tensor=False)))
    assert norms == [None, 2.0**24 + 4, 2.0**24 + 4]


@pytest.mark.parametrize("kernel", ["round_sums", "add_exactly", "decide"])
def test_a_call_after_one_that_failed_is_right(table: ModuleType, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [torch.tensor([2.0**24, 2.0**12, 2.0**12, 1.0])]  # a tie that is rounded down
    before(table, kernel, failing(1), monkeypatch)
    with pytest.raises(RuntimeError, match="no memory"):
        table.table_of(tensors).norms(2, per_tensor=False)
    assert float(table.table_of(tensors).norms(2, per_tensor=False)) == 2.0**24


def test_a_first_launch_that_fails_has_written_nothing(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    params = parameters(torch.ones(3))
    before(table, "change", failing(1), monkeypatch)
    with pytest.raises(RuntimeError, match="no memory") as failure:
        uc.clip_grad_norm_(params, 0.5)
    assert not isinstance(failure.value, PartlyClippedError)
    assert params[0].grad.tolist() == [1.0] * 3


def test_a_second_launch_that_fails_leaves_a_list_partly_clipped(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = parameters(torch.ones(3), torch.ones(3, dtype=torch.float16))
    calls = iter([failing(0), failing(1)])
    before(table, "change", lambda *args: next(calls)(), monkeypatch)
    with pytest.raises(PartlyClippedError, match="no memory"):
        uc.clip_grad_norm_(params, 0.5)


def test_threads_keep_tables_at_once(table: ModuleType) -> None:
    lists = [[torch.ones(3)] for _ in range(40)]
    failures: list[BaseException] = []

    def keep() -> None:
        try:
            for _ in range(20):
                for tensors in lists:
                    table.table_of(tensors)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=keep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# -- which tables are kept


def test_a_table_keeps_no_gradient_alive(table: ModuleType) -> None:
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    table.table_of([tensor]).norms(2, per_tensor=False)
    assert table._tables
    del tensor
    gc.collect()
    assert alive() is None


def test_a_gradient_in_the_memory_of_a_freed_one_is_read(table: ModuleType) -> None:
    """The table stays valid: it has the address, and nothing of what was there."""
    memory = torch.empty(4)
    for value in (1.0, 2.0):
        memory.fill_(value)
        assert float(table.table_of([memory[:]]).norms(2, per_tensor=False)) == 2 * value
    assert len(table._tables) == 1


def test_the_tables_that_are_kept_are_limited(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [[torch.ones(3)] for _ in range(9)]
    size = table.table_of(tensors[0]).size
    monkeypatch.setattr(table, "MAX_NUMBERS", 3 * size)
    for each in tensors:
        table.table_of(each)
    assert len(table._tables) == 3
    monkeypatch.setattr(table, "MAX_NUMBERS", 0)
    last = table.table_of(tensors[0])
    assert list(table._tables.values()) == [last], "a table that is in use"


def test_the_numbers_of_a_table(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "CHUNK", 10)
    dtypes = (torch.float32, torch.bfloat16, torch.float32)
    addresses = table.Addresses(torch.device("cpu"), (16, 32, 40), (48, 64, 80), (25, 10, 1), dtypes)
    made = table.Table(addresses)
    assert made._memory.tolist() == [
        *(16, 32, 40, 48, 64, 80, 25, 10, 1),
        *(1, 0, 0, 0, 0, 1, 0, 2, 2, 0),
        *(0, 5, 1, 4, 0, 1, 4, 5),
    ]  # fmt: skip
    assert made._parts == [table.Part(1, torch.bfloat16, 0, 1), table.Part(0, torch.float32, 1, 5)]


# -- which tensors


def test_a_tensor_without_memory_takes_operations(table: ModuleType) -> None:
    assert table.table_of([torch._efficientzerotensor(3)]) is None
    assert float(uc.get_total_norm([torch._efficientzerotensor(3), torch.ones(4)])) == 2.0


@pytest.mark.parametrize("layout", [torch.channels_last, torch.channels_last_3d])
def test_channels_may_be_the_last_axis(table: ModuleType, layout: torch.memory_format) -> None:
    shape = (2, 3, 4, 5) if layout == torch.channels_last else (2, 3, 4, 5, 2)
    values = torch.arange(240.0)[: torch.Size(shape).numel()].view(shape)
    gradient = values.to(memory_format=layout)
    coef = torch.tensor(0.5, dtype=torch.float64)
    clipped = uc.clip_by_global_norm([gradient], float(values.norm()) / 2)[0][0]
    assert len(table._tables) == 2, "for the norm, and for new tensors"
    assert clipped.is_contiguous(memory_format=layout)
    torch.testing.assert_close(clipped, values * coef, rtol=1e-6, atol=0)
    uc.clip_grad_value_(parameters(gradient), 7.0)
    assert torch.equal(gradient, values.clamp(max=7.0))


def test_a_coefficient_per_slice_takes_operations(table: ModuleType) -> None:
    values = torch.arange(12.0).view(3, 4)
    clipped = uc.clip_by_norm(values, 1.0, axes=[1])
    torch.testing.assert_close(clipped.norm(dim=1), torch.ones(3))
    assert not table._tables


def test_a_coefficient_of_1_writes_nothing(table: ModuleType) -> None:
    """A product would lose the low bits of this NaN."""
    gradient = torch.tensor([0x7FC5, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    uc.clip_grads_with_norm_(parameters(gradient), 1.0, torch.tensor(0.5))
    assert table._tables
    assert gradient.view(torch.int16).tolist() == [0x7FC5, 0x3F80]


# -- devices, streams and CUDA graphs


class Gpu:
    """Imitated GPUs: tensors in CPU memory whose device is the second GPU, while the first GPU is current.

    A copy for which the host would wait fails. A kernel that reads memory of another device also fails.
    """

    def __init__(self, table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        from unified_clip._backends.torch.gpu import several_tables

        self.current, self.stream, self.capturing, self.sent, self.major = 0, 7, False, 0, 8
        self.launches: list[tuple[str, int]] = []
        self.device = torch.device("cuda", 1)
        self.places: dict[int, Any] = {}
        self.pinned: set[int] = set()
        self.sum_dtypes: set[torch.dtype] = set()
        self.alive: list[torch.Tensor] = []
        cuda = SimpleNamespace(
            device=self.use,
            current_device=lambda: self.current,
            current_stream=lambda device: SimpleNamespace(cuda_stream=self.stream),
            is_current_stream_capturing=lambda: self.capturing,
            get_device_properties=lambda device: SimpleNamespace(major=self.major, minor=9 * device.index),
        )
        table._has_slow_float64.cache_clear()
        table._is_supported.cache_clear()
        fake = {"cuda": cuda, "empty": self.new(torch.empty), "arange": self.new(torch.arange)}
        fake |= {name: self.joined(getattr(torch, name)) for name in ("cat", "stack")}
        for module in (table, several_tables):
            names = {name: getattr(torch, name) for name in dir(torch)} | fake
            monkeypatch.setattr(module, "torch", SimpleNamespace(**names))
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self.pin(tensor))
        move = torch.Tensor.to

        def to(tensor: torch.Tensor, device: Any, **kwargs: Any) -> torch.Tensor:
            is_gpu = isinstance(device, torch.device) and device.type == "cuda"
            if not is_gpu or self.place(tensor) == device:
                return tensor if is_gpu else move(tensor, device, **kwargs)
            assert kwargs.get("non_blocking"), "the host waits for this copy"
            assert self.place(tensor) or tensor.data_ptr() in self.pinned, "the host waits, since memory is not pinned"
            self.sent += 1
            return self.placed(tensor.clone(), device)

        monkeypatch.setattr(torch.Tensor, "to", to)
        for name in ("add", "round_sums", "add_exactly", "decide", "change"):
            before(table, name, functools.partial(self.launch, name), monkeypatch)

    def launch(self, name: str, *args: Any) -> None:
        self.launches.append((name, self.current))
        for tensor in args:
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                if name == "add" and tensor.is_floating_point():
                    self.sum_dtypes.add(tensor.dtype)
                assert self.place(tensor) == torch.device("cuda", self.current), f"{name} reads another device"

    @contextmanager
    def use(self, device: Any) -> Iterator[None]:
        outside, self.current = self.current, device.index
        yield
        self.current = outside

    def placed(self, tensor: torch.Tensor, device: Any) -> torch.Tensor:
        self.places[tensor.untyped_storage().data_ptr()] = device
        self.alive.append(tensor)  # no other tensor gets this address
        return tensor

    def new(self, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args, device, **kwargs: self.placed(make(*args, **kwargs), device)

    def place(self, tensor: torch.Tensor) -> Any:
        return self.places.get(tensor.untyped_storage().data_ptr())

    def joined(self, join: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def on_their_device(tensors: list[torch.Tensor], *args: Any) -> torch.Tensor:
            (device,) = {self.place(tensor) for tensor in tensors}
            return self.placed(join(tensors, *args), device) if device else join(tensors, *args)

        return on_their_device

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor.clone()
        self.pinned.add(pinned.data_ptr())
        self.alive.append(pinned)
        return pinned

    def tensor(self, tensor: torch.Tensor, index: int = 1) -> Any:
        names = ("data_ptr", "numel", "dtype")
        device = torch.device("cuda", index)
        return SimpleNamespace(device=device, memory=tensor, **{name: getattr(tensor, name) for name in names})


@pytest.fixture
def second_gpu(table: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(table, monkeypatch)


def test_kernels_are_launched_on_the_device_of_the_gradients(table: ModuleType, second_gpu: Gpu) -> None:
    """Triton launches on the current device."""
    memory = torch.tensor([3.0, 4.0])
    made = table.table_of([second_gpu.tensor(memory)])
    assert float(made.norms(2, per_tensor=False)) == 5.0
    coef = second_gpu.placed(torch.tensor(0.5, dtype=torch.float64), torch.device("cuda", 1))
    for launch in made.products(coef, per_tensor=False):
        launch()
    assert memory.tolist() == [1.5, 2.0]
    assert [device for _, device in second_gpu.launches] == [1] * 5
    assert second_gpu.current == 0


LISTS: dict[str, list[tuple[list[float], torch.dtype, int]]] = {
    "a tie": [([2.0**24], torch.float32, 1), ([2.0**12] * 6, torch.float32, 0), ([3.0], torch.float16, 1)],
    "a tie of float64": [([2.0**53], torch.float64, 0), ([2.0**27] * 3, torch.float64, 1), ([3.0], torch.float32, 1)],
    "the largest on the second": [([3.0], torch.float64, 0), ([1e300, 1e300], torch.float64, 1)],
    "NaN on the second": [([3.0], torch.float64, 0), ([math.nan], torch.float64, 1)],
    "float64 on one": [
        ([0.1, 0.2], torch.float32, 1),
        ([0.3, 0.4], torch.float64, 0),
        ([0.5, 0.6], torch.float32, 0),
    ],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_on_several_devices(table: ModuleType, second_gpu: Gpu, name: str) -> None:
    """The norm equals the norm of the list on one device, and nothing waits. Only the second device has slow
    float64."""
    from unified_clip._backends.torch.gpu import several_tables

    memory = [torch.tensor(values, dtype=dtype) for values, dtype, _ in LISTS[name]]
    tensors = [second_gpu.tensor(each, device) for each, (_, _, device) in zip(memory, LISTS[name], strict=True)]
    arrays = [each.numpy().copy() for each in memory]
    tables = several_tables.table_of(tensors, per_tensor=False)
    for p in (1, 2, math.inf):
        second_gpu.launches.clear()
        with Operations() as seen:
            norm = tables.norms(p, per_tensor=False)
        assert torch.equal(norm, torch.tensor(reference.norm(arrays, p), dtype=torch.float64)) or norm.isnan()
        assert not {"_local_scalar_dense", "item", "equal", "nonzero"} & set(seen.names)
        assert second_gpu.place(norm) == tensors[0].device
        assert {device for kernel, device in second_gpu.launches if kernel == "add"} == {0, 1}
        assert {device for kernel, device in second_gpu.launches if kernel == "round_sums"} == {tensors[0].device.index}
    has_float64 = any(dtype == torch.float64 for _, dtype, _ in LISTS[name])
    assert second_gpu.sum_dtypes == {torch.float64 if has_float64 else torch.float32}
    per_tensor = several_tables.table_of(tensors, per_tensor=True)
    norms = per_tensor.norms(2, per_tensor=True)
    torch.testing.assert_close(
        norms, torch.tensor([reference.norm([array]) for array in arrays], dtype=torch.float64), rtol=0, atol=0,
        equal_nan=True,
    )  # fmt: skip
    coefs = second_gpu.placed(torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64), tensors[0].device)[: len(memory)]
    second_gpu.launches.clear()
    for launch in per_tensor.products(coefs, per_tensor=True):
        launch()
    coef = second_gpu.placed(torch.tensor(0.5, dtype=torch.float64), tensors[0].device)
    for launch in tables.products(coef, per_tensor=False):
        launch()
    for launch in tables.clamped([(-1e4, 1e4)] * len(memory)):
        launch()
    for each, array, coef in zip(memory, arrays, coefs.tolist(), strict=True):
        expected = torch.from_numpy(array) * (coef * 0.5)
        assert torch.equal(each.nan_to_num(7.0), expected.clamp(-1e4, 1e4).nan_to_num(7.0))
    assert {device for _, device in second_gpu.launches} == {0, 1}


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_too_many_chunks_on_several_devices(
    table: ModuleType, second_gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unified_clip._backends.torch.gpu import several_tables

    tensors = [second_gpu.tensor(torch.ones(3), device) for device in (0, 1)]
    assert isinstance(several_tables.table_of(tensors, per_tensor=False), several_tables.Tables)
    monkeypatch.setattr(table, "MAX_CHUNKS", 1)
    assert several_tables.table_of(tensors, per_tensor=False) is None


def test_a_gpu_that_triton_does_not_support_takes_operations(table: ModuleType, second_gpu: Gpu) -> None:
    from unified_clip._backends.torch.gpu import several_tables

    second_gpu.major = 7
    tensors = [second_gpu.tensor(torch.ones(3))]
    assert table.table_of(tensors) is None
    table._is_supported.cache_clear()
    second_gpu.major = 9
    assert isinstance(several_tables.table_of(tensors, per_tensor=False), table.Table)


def test_a_table_is_sent_once_for_each_stream(table: ModuleType, second_gpu: Gpu) -> None:
    """A stream that does not wait for another stream could read a table before the table has arrived."""
    tensors = [second_gpu.tensor(torch.ones(3))]
    first = table.table_of(tensors)
    assert table.table_of(tensors) is first
    assert second_gpu.sent == 1
    second_gpu.stream = 8
    assert table.table_of(tensors) is not first
    assert second_gpu.sent == 2


def test_each_capture_has_a_table_whose_host_memory_is_kept(table: ModuleType, second_gpu: Gpu) -> None:
    tensors = [second_gpu.tensor(torch.ones(3))]
    eager = table.table_of(tensors)
    kept = len(table._captured)
    second_gpu.capturing = True
    captured = [table.table_of(tensors) for _ in range(2)]
    assert len({id(each) for each in (eager, *captured)}) == 3
    assert len(table._captured) == kept + 2
    second_gpu.capturing = False
    assert table.table_of(tensors) is eager
    del table._captured[kept:]


def test_another_default_device_changes_nothing(table: ModuleType) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    with torch.device("meta"):
        uc.clip_grad_norm_(parameter, 1.0)
    assert table._tables
    assert parameter.grad.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nan_keeps_its_bits_in_value_clipping(table: ModuleType, dtype: torch.dtype) -> None:
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    nan = torch.tensor([math.nan, -math.nan, 5.0], dtype=dtype)
    nan.view(integers)[:2] += 1
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    parameter.grad = nan.clone()
    uc.clip_grad_value_(parameter, 1.0)
    assert table._tables
    assert torch.equal(parameter.grad.view(integers)[:2], nan.view(integers)[:2])
    assert parameter.grad[2] == 1.0


def test_inductor_leaves_the_operators_out_of_its_cuda_graphs() -> None:
    for name in ("norm", "kernel_norm", "scale_"):
        assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.unified_clip, name).default.tags
