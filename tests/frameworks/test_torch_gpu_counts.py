"""What a clip on a GPU reads and writes: counted on tensors without memory, and compared with docs/performance.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.kits import Kit
from support.traffic import row_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unified_clip.torch as uc
from unified_clip._backends.torch import gpu, list_operations

SHAPES = [(512, 1024), (1024,), (2048, 512), (300, 300), (10,)]
"""Two shapes have fewer elements than a 16-bit tensor that is multiplied alone. They hardly count."""

VIEWS = {
    "alias", "as_strided", "detach", "device", "empty", "empty_like", "expand", "lift_fresh", "select", "slice",
    "split", "unbind", "view",
}  # fmt: skip
SYNCHRONIZING = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "tolist"}


@pytest.fixture(autouse=True)
def _once(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("about the device path, which is taken here anyhow")


class Traffic(TorchDispatchMode):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.bytes, self.names, self.widened, self.dtype = 0, list[str](), 0, dtype

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in VIEWS:
            new = [t for t in tensors(results) if name.startswith("empty") and t.dtype != self.dtype]
            self.widened += sum(tensor.nbytes for tensor in new)
            return results
        self.names.append(name)
        read, written = tensors([args, kwargs]), tensors(results)
        if kwargs and "out" in kwargs:
            read, written = tensors(args), tensors(kwargs["out"])
        elif name.rstrip("_").endswith("copy"):
            read, written = tensors(args[1:]), tensors(args[0])
        elif name.endswith("_"):
            written = tensors(args[0])
        assert {tensor.device.type for tensor in (*read, *written)} == {"cuda"}, f"{name} copies to or from the host"
        self.bytes += sum(tensor.nbytes for tensor in (*read, *written))
        return results


def tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def traffic(clip: Callable[[list[torch.nn.Parameter]], Any], dtype: torch.dtype) -> tuple[float, Traffic]:
    with FakeTensorMode():
        parameters = [torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="cuda")) for shape in SHAPES]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        with Traffic(dtype) as counted:
            clip(parameters)
    assert not SYNCHRONIZING & set(counted.names)
    return counted.bytes / sum(parameter.numel() for parameter in parameters), counted


CLIPS: dict[str, Callable[[Any], Any]] = {
    "PyTorch's `clip_grad_norm_`, `foreach=True`": lambda params: torch.nn.utils.clip_grad_norm_(
        params, 1.0, foreach=True
    ),
    "unified_clip without the kernels": lambda params: uc.clip_grad_norm_(params, 1.0),
    "unified_clip without the kernels, new tensors": lambda params: uc.clip_by_global_norm(
        [p.grad for p in params], 1.0
    ),
    "unified_clip without the kernels, by value": lambda params: uc.clip_grad_value_(params, 1.0),
}


@pytest.mark.parametrize("name", CLIPS)
def test_the_page_has_the_bytes_that_operations_read_and_write(name: str) -> None:
    """An operation does not know the coefficient, so it does the same whether it is 1 or not."""
    counted = [round(traffic(CLIPS[name], dtype)[0]) for dtype in (torch.float32, torch.bfloat16)]
    assert row_of(name)[:4] == [counted[0], counted[0], counted[1], counted[1]]


@pytest.mark.parametrize("name", ["unified_clip without the kernels", "unified_clip without the kernels, new tensors"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_16_bit_gradients_have_no_float32_copies(name: str, dtype: torch.dtype) -> None:
    assert traffic(CLIPS[name], dtype)[1].widened <= 4 * (1024 + 10)
    by_norm = uc.GradientClipByNorm(1.0).clip_
    assert traffic(by_norm, dtype)[1].widened <= 4 * (1024 + 10)


@pytest.mark.parametrize("per_tensor", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_without_copies_are_rounded_once(
    dtype: torch.dtype, per_tensor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_operations, "_is_alone", lambda tensor: tensor.dtype == dtype and tensor.numel() > 9)
    values = [torch.randn(n).to(dtype) for n in (3000, 9, 10)] + [torch.randn(20)]
    coefs = torch.rand(4, dtype=torch.float64) if per_tensor else torch.rand(1, dtype=torch.float64)[0]
    expected = [
        (value.float() * coef.float()).to(value.dtype) for value, coef in zip(values, coefs.expand(4), strict=True)
    ]
    assert all(map(torch.equal, list_operations.multiplied(values, coefs), expected))
    for write in list_operations.prepare_multiply(values, coefs):
        write.make()
    assert all(map(torch.equal, values, expected))


BY_KERNELS: dict[str, Callable[[Any], Any]] = {
    "Triton kernels": lambda params: uc.clip_grad_norm_(params, 1.0),
    "Triton kernels, order inf": lambda params: uc.clip_grad_norm_(params, 1.0, math.inf),
    "Triton kernels, new tensors (`clip_by_global_norm`)": lambda params: uc.clip_by_global_norm(
        [p.grad for p in params], 1
    ),
    "Triton kernels, by value": lambda params: uc.clip_grad_value_(params, 1.0),
}


PASSES = {"Triton kernels, new tensors (`clip_by_global_norm`)": (3, 3), "Triton kernels, by value": (2, 2)}
"""How often a clip reads or writes each gradient: (without a change, with a change). All other clips have (1, 3)."""


@pytest.mark.parametrize("name", BY_KERNELS)
def test_the_page_has_the_bytes_of_the_kernels(name: str) -> None:
    """test_torch_gpu_kernels.py counts each kernel: `add` reads an element once, and `change` reads and writes it."""
    assert row_of(name)[:4] == [size * passes for size in (4, 2) for passes in PASSES.get(name, (1, 3))]


@pytest.mark.parametrize("name", BY_KERNELS)
def test_the_page_has_the_launches_of_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from unified_clip._backends.torch.gpu import table

    launches: list[str] = []

    class Counted:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **kwargs: launches.append("kernel")

    for kernel in ("add", "round_sums", "add_exactly", "decide", "change"):
        monkeypatch.setattr(table.kernels, kernel, Counted())
    monkeypatch.setattr(gpu, "ENABLED", True)
    monkeypatch.setattr(gpu, "is_watched", lambda: False)  # by the mode that counts
    monkeypatch.setenv("UNIFIED_CLIP_PATH", "framework")
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    tables: dict[bool, Any] = {}  # results have other addresses in the next call

    def kept(device: torch.device, key: Any, of_list: Any) -> Any:
        addresses = of_list()
        in_place = addresses.sources == addresses.targets
        return tables.get(in_place) or tables.setdefault(in_place, table.Table(addresses))

    monkeypatch.setattr(table, "_kept", kept)
    clip = BY_KERNELS[name]
    clip(parameters)
    launches.clear()
    with Names() as operations:
        clip(parameters)
    assert len(launches) + len(operations.names) == row_of(name)[4]
    assert not SYNCHRONIZING & set(operations.names)


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        self.names += [] if name in VIEWS else [name]
        return function(*args, **(kwargs or {}))
