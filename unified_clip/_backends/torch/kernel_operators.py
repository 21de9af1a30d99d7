"""The kernels as operators for graphs of `torch.compile`: compiled kernels on the CPU, and CUDA kernels on a GPU.

The operators `unified_clip::norm` and `unified_clip::scale_` have the same results as the host path. The operator
`norm` supports derivatives and `torch.func.vmap`. If a graph needs neither, PyTorch's compiler uses `kernel_norm`
instead. For the CPU, `_native/torch.hpp` implements `kernel_norm` and `scale_`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from ..._compute import host
from ..._core.collect import wants_clipping
from ..._core.path import Path
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from ...recorder.guard import Hook
from . import gpu_lists, releases
from .conditions import is_complex, is_real

NormByOperations = Callable[[Sequence[Tensor], float, bool], Scalar]
ScaleByOperations = Callable[[Sequence[Tensor], Scalar, bool], None]
HostPathOf = Callable[[Sequence[Tensor]], Path]

LIBRARY = torch.library.Library("unified_clip", "DEF")
SCHEMAS = (
    "norm(Tensor[] tensors, float p, bool per_tensor) -> Tensor",
    "kernel_norm(Tensor[] tensors, float p, bool per_tensor) -> Tensor",
    "scale_(Tensor(a!)[] tensors, Tensor coef, bool per_tensor) -> ()",
)
HOOK = Hook("kernels in PyTorch", "graphs of torch.compile do not call the kernels of unified_clip")
IS_REGISTERED = ENABLED = False


def supports(tensors: Sequence[Tensor]) -> bool:
    """Programs of `torch.export` are not supported, because they can run in a process without unified_clip."""
    if not (IS_REGISTERED and torch.compiler.is_compiling()) or releases.is_exporting():
        return False
    devices = {tensor.device.type for tensor in tensors}
    if devices == {"cuda"} and gpu_lists.may_launch():
        return all(is_real(tensor) or is_complex(tensor) for tensor in tensors)
    return devices == {"cpu"} and ENABLED and all(map(is_real, tensors))


def may_write(tensors: Sequence[Tensor]) -> bool:
    """Return whether the operators can write these tensors.

    PyTorch's compiler fails for several views of one tensor. On the CPU, the operators do not support empty tensors.
    """
    return all(tensor._base is None and (tensor.is_cuda or tensor.numel()) for tensor in tensors)


def gradients_of(parameters: Any) -> list[Tensor] | None:
    if type(parameters) not in (list, tuple):
        return None
    gradients = []
    for parameter in parameters:
        if type(parameter) is not torch.nn.Parameter or not parameter.is_leaf:
            return None
        if not wants_clipping(parameter):
            continue
        if parameter.grad is not None:
            gradients.append(parameter.grad)
        elif getattr(parameter, "main_grad", None) is not None:
            return None
    if not gradients or len(set(gradients)) < len(gradients) or not supports(gradients) or not may_write(gradients):
        return None
    return None if any(0 in gradient.stride() for gradient in gradients) else gradients


def norm(tensors: Sequence[Tensor], p: float, *, per_tensor: bool) -> Scalar:
    return torch.ops.unified_clip.norm(tensors, p, per_tensor)


def scale_(tensors: Sequence[Tensor], coef: Scalar, *, per_tensor: bool) -> None:
    torch.ops.unified_clip.scale_(tensors, coef, per_tensor)


def _register(
    host_path: HostPathOf, norm_by_operations: NormByOperations, scale_by_operations: ScaleByOperations
) -> bool:
    for schema in SCHEMAS:
        LIBRARY.define(schema)

    def norm_without_derivative(tensors: list[Tensor], p: float, per_tensor: bool) -> Tensor:
        if p in (1, 2):
            return torch.ops.unified_clip.kernel_norm(tensors, p, per_tensor)
        path = host_path([tensor.resolve_neg() for tensor in tensors])  # norms per tensor have order 2
        with path.scope():
            return torch.tensor(path.norm(p), dtype=torch.float64, device="cpu")

    def norm_with_derivative(tensors: list[Tensor], p: float, per_tensor: bool) -> Tensor:
        recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if recorded or _have_tangents(tensors):
            return norm_by_operations(tensors, p, per_tensor)
        with torch._C._AutoDispatchBelowAutograd():
            operator = torch.ops.unified_clip.kernel_norm if p in (1, 2) else torch.ops.unified_clip.norm
            return operator(tensors, p, per_tensor)

    def describe_norm(tensors: list[Tensor], p: float, per_tensor: bool) -> Tensor:
        return tensors[0].new_empty([len(tensors)] if per_tensor else [], dtype=torch.float64)

    for operator in ("norm", "kernel_norm"):
        LIBRARY.impl(operator, functools.partial(norm_on_gpu, norm_by_operations), "CUDA")
    LIBRARY.impl("scale_", functools.partial(scale_on_gpu, scale_by_operations), "CUDA")
    LIBRARY.impl("norm", norm_without_derivative, "CPU")
    LIBRARY.impl("norm", norm_with_derivative, "Autograd")
    LIBRARY.impl("norm", norm_by_operations, "FuncTorchBatchedDecomposition")
    for operator in ("norm", "kernel_norm"):
        torch.library.register_fake(f"unified_clip::{operator}", describe_norm, lib=LIBRARY)
    torch.library.register_fake("unified_clip::scale_", lambda tensors, coef, per_tensor: None, lib=LIBRARY)
    return True


def register(*functions: Any) -> None:
    """Pass the host path, and the norm and the scale by operations. The norm must support derivatives and
    `torch.func.vmap`."""
    global IS_REGISTERED, ENABLED
    IS_REGISTERED = HOOK.run(_register, *functions) is True
    ENABLED = (
        IS_REGISTERED and KERNELS is not None and host.kernels_in_graphs() and HOOK.run(KERNELS.register_torch) is True
    )


def norm_on_gpu(norm_by_operations: NormByOperations, tensors: Sequence[Tensor], p: float, per_tensor: bool) -> Scalar:
    lists = gpu_lists.of_tensors(tensors) if gpu_lists.can_measure(tensors, p) else None
    if lists is None:
        return norm_by_operations(tensors, p, per_tensor)
    return lists.norms() if per_tensor else lists.norm(p)[0]


def scale_on_gpu(
    scale_by_operations: ScaleByOperations, tensors: Sequence[Tensor], coef: Scalar, per_tensor: bool
) -> None:
    lists = gpu_lists.of_tensors(tensors)
    if lists is None:
        scale_by_operations(tensors, coef, per_tensor)
    else:
        lists.scale(coef)()


def _have_tangents(tensors: Sequence[Tensor]) -> bool:
    # Looking at each tensor takes longer than its norm.
    if forward_ad._current_level < 0 and torch._C._functorch.peek_interpreter_stack() is None:
        return False
    return any(forward_ad.unpack_dual(tensor, level=0).tangent is not None for tensor in tensors)
