"""Check tensors and the state of PyTorch, to choose a path."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..._compute import host, kernels, memory
from ..._core.collect import wants_clipping
from ..._core.types import Tensor
from ..._core.validation import MAX_AXES
from .operations import HALF

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    )
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PLAIN = (torch.Tensor, torch.nn.Parameter)
NARROW = (*HALF, torch.float32)
REAL = (*NARROW, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)


def is_expanded(tensor: Tensor) -> bool:
    """Return whether several elements of a tensor share memory.

    The function reads the strides of a new view, because some gradients have no strides in a graph.
    """
    view = tensor.view_as(tensor)
    repeated = any(step == 0 and length > 1 for step, length in zip(view.stride(), view.shape, strict=True))
    return repeated and tensor.numel() > 0  # NumPy's empty arrays have strides of 0


def records_derivatives(differentiable: bool) -> bool:
    """`differentiable` is true for calls that return new tensors."""
    return differentiable and torch.is_grad_enabled()


def is_inner(parameter: Any) -> bool:
    """Return whether a tensor is an intermediate result. PyTorch warns if code reads its `.grad`."""
    return isinstance(parameter, torch.Tensor) and not parameter.is_leaf and not parameter.retains_grad


def is_plain(tensor: Any) -> bool:
    """Return whether the values are in CPU memory.

    The result is False for subclasses of `torch.Tensor`, and for tensors that PyTorch conjugates or negates lazily.
    """
    return (
        type(tensor) in PLAIN
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in NAMES
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and (tensor.numel() == 0 or tensor.data_ptr() != 0)
    )


def inner_tensors(tensor: Any) -> list[Any]:
    if type(tensor) in PLAIN:
        return [tensor]
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:  # a DTensor. Its `__tensor_flatten__` takes long
        return inner_tensors(local)
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # also matches DTensor's device mesh
    return [part for value in inner if isinstance(value, torch.Tensor) for part in inner_tensors(value)]


def has_address(tensor: Any) -> bool:
    if tensor.device.type == "meta" or tensor.layout != torch.strided or tensor.dtype not in NAMES:
        return False
    if isinstance(tensor, FakeTensor):  # its data_ptr warns
        return False
    with torch._C.DisableTorchFunctionSubclass(), suppress(RuntimeError):  # data_ptr of some subclasses raises
        return bool(tensor.numel() == 0 or tensor.data_ptr() != 0)
    return False


def mps_view(tensor: Tensor, buffers: dict[int, int]) -> kernels.Array:
    """Return an array with an invented address, to find overlaps of tensors on MPS. The array must never be read.

    On MPS, `data_ptr` does not return the address of the memory, so each buffer gets its own range of addresses.
    """
    number = buffers.setdefault(tensor.untyped_storage().data_ptr(), len(buffers) + 8)  # above CPU memory
    address = (number << 44) + tensor.storage_offset() * tensor.itemsize
    return memory.view_at(address, tensor.shape, tensor.stride(), NAMES[tensor.dtype])


def is_watched() -> bool:
    """Return whether PyTorch traces a graph, applies a `torch.func` transform, or computes forward-mode derivatives.

    In these cases, PyTorch would not record values that are read from raw memory.
    """
    return is_traced() or forward_ad._current_level >= 0


def is_traced() -> bool:
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def is_transformed() -> bool:
    """Return True in `torch.jit.trace`, `torch.func` and forward-mode differentiation.

    They do not support `torch._foreach_` operations.
    """
    return (
        torch.jit.is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def is_inference(tensor: Tensor) -> bool:
    return not torch.compiler.is_compiling() and tensor.is_inference()


def is_strided(tensor: Any) -> bool:
    """Return whether a tensor is dense. In a graph, types in `PLAIN` count as dense, because traced hooks cannot
    read `layout`."""
    return (torch.compiler.is_compiling() and type(tensor) in PLAIN) or bool(tensor.layout == torch.strided)


def is_real(tensor: Any) -> bool:
    return type(tensor) in (*PLAIN, FakeTensor) and is_strided(tensor) and tensor.dtype in REAL and not is_neg(tensor)


def is_complex(tensor: Any) -> bool:
    return type(tensor) in (*PLAIN, FakeTensor) and is_strided(tensor) and tensor.dtype in COMPLEX


def is_neg(tensor: Any) -> bool:
    """Return whether PyTorch negates the tensor lazily. In-place `torch._foreach_` operations reject such tensors."""
    return not torch.compiler.is_compiling() and bool(tensor.is_neg())


def fit_list_operations(tensors: Sequence[Tensor], extra_inputs: Sequence[Any], differentiable: bool) -> bool:
    if not tensors or is_recorded(tensors, extra_inputs, differentiable):
        return False
    return fit_lists(tensors)


def fit_lists(tensors: Sequence[Tensor]) -> bool:
    in_graph = torch.compiler.is_compiling()
    for tensor in tensors:
        if not (
            (type(tensor) in PLAIN or type(tensor) is FakeTensor)
            and ((in_graph and type(tensor) in PLAIN) or tensor.layout == torch.strided)
            and tensor.dtype in REAL
            and (in_graph or not tensor.is_neg())
            and tensor.numel()
        ):
            return False
    return True


def is_recorded(tensors: Sequence[Tensor], extra_inputs: Sequence[Any], differentiable: bool) -> bool:
    if torch.compiler.is_compiling():
        return differentiable
    recorded = records_derivatives(differentiable) and any(tensor.requires_grad for tensor in (*tensors, *extra_inputs))
    return recorded or is_transformed() or any(map(is_inference, tensors))


def are_plain_on_devices(tensors: Sequence[Any]) -> bool:
    """Return whether all tensors are dense, are on GPUs, and share no memory.

    The loop calls few functions, because it runs for every gradient of every step.
    """
    devices, ends = ("cuda", "xpu", "cpu") if host.forced_path() else ("cuda", "xpu"), []
    for tensor in tensors:
        if not (
            type(tensor) in PLAIN
            and tensor.layout is torch.strided
            and tensor.dtype in REAL
            and tensor.device.type in devices
            and tensor.numel()
            and tensor.dim() <= MAX_AXES
            and (tensor.is_contiguous() or is_dense(tensor))
            and not tensor.is_neg()
            and not tensor.is_inference()
            and not tensor._is_zerotensor()
        ):
            return False
        start = tensor.data_ptr()
        ends.append((tensor.get_device(), start, start + tensor.nbytes))
    ends.sort()
    return bool(ends) and not any(a[0] == b[0] and b[1] < a[2] for a, b in itertools.pairwise(ends))


def is_dense(tensor: Any) -> bool:
    layouts = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    return any(tensor.is_contiguous(memory_format=layout) for layout in layouts)


def is_clippable(parameter: Any) -> bool:
    return type(parameter) is torch.nn.Parameter and parameter.is_leaf and wants_clipping(parameter)
