"""The compiled kernels as operators of PyTorch, for the graphs of `torch.compile` on the CPU.

`unified_clip::norm` and `unified_clip::scale_` do what the host path does. The rule between them is part of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from ..._compute import host
from ..._core.path import CollectedPath, Path
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from .conditions import is_real

NormByOperations = Callable[[Sequence[Tensor], float, bool], Scalar]
CollectedPathOf = Callable[[Sequence[Tensor]], CollectedPath | None]
HostPathOf = Callable[[Sequence[Tensor]], Path]

LIBRARY = torch.library.Library("unified_clip", "DEF")
LIBRARY.define("norm(Tensor[] tensors, float p, bool per_tensor) -> Tensor")
LIBRARY.define("scale_(Tensor(a!)[] tensors, Tensor coef, bool per_tensor) -> ()")

ENABLED = KERNELS is not None and host.kernels_in_graphs("pairs")


def supports(tensors: Sequence[Tensor]) -> bool:
    """Return whether the operators compute on these tensors: dense real ones on the CPU, in a graph for this process.

    A program of `torch.export` may run where unified_clip is not installed.
    """
    if not (ENABLED and torch.compiler.is_compiling()) or torch.compiler.is_exporting():
        return False
    return bool(tensors) and all(tensor.device.type == "cpu" and is_real(tensor) for tensor in tensors)


def may_write(tensors: Sequence[Tensor]) -> bool:
    """Return whether `scale_` may write the tensors. PyTorch's compiler fails on several views of one base."""
    return all(tensor._base is None for tensor in tensors)


def norm(tensors: Sequence[Tensor], p: float, *, per_tensor: bool) -> Scalar:
    """Return the norm over all tensors, or a vector with one per tensor, in float64."""
    return torch.ops.unified_clip.norm(tensors, p, per_tensor)


def scale_(tensors: Sequence[Tensor], coef: Scalar, *, per_tensor: bool) -> None:
    """Multiply by the coefficient in place, or each tensor by its own from a vector."""
    torch.ops.unified_clip.scale_(tensors, coef, per_tensor)


def register(collected_path: CollectedPathOf, host_path: HostPathOf, norm_by_operations: NormByOperations) -> None:
    """Implement the operators.

    `collected_path`: returns the host path over tensors without gaps that are not empty, else None. `host_path`: over
    tensors of any layout. `norm_by_operations`: computes the norm by PyTorch's operations, which have derivatives and
    rules for `torch.func.vmap`.
    """

    def plain_path(tensors: list[Tensor], per_tensor: bool) -> tuple[Any, list[Tensor]]:
        """Return the path, and its tensors: copies of those with gaps in memory."""
        path = collected_path(tensors)
        if path is None:
            tensors = [tensor.resolve_neg().contiguous() for tensor in tensors]
            path = collected_path(tensors)
        assert path is not None
        return path.per_tensor() if per_tensor else path, tensors

    def compute_norm(tensors: list[Tensor], p: float, per_tensor: bool) -> Tensor:
        path: Path
        if per_tensor:
            path = plain_path(tensors, per_tensor)[0]
        else:
            path = collected_path(tensors) or host_path([tensor.resolve_neg() for tensor in tensors])
        with path.scope():
            return torch.from_numpy(np.asarray(path.norm(p), np.float64))

    def compute_products(tensors: list[Tensor], coef: Tensor, per_tensor: bool) -> None:
        path, plain = plain_path(tensors, per_tensor)
        with path.scope():
            for write in path.prepare_scale(coef.numpy() if per_tensor else coef.item()):
                write.make()
        for tensor, changed in zip(tensors, plain, strict=True):
            if changed is not tensor:
                tensor.copy_(changed)

    def describe_norm(tensors: list[Tensor], p: float, per_tensor: bool) -> Tensor:
        return tensors[0].new_empty([len(tensors)] if per_tensor else [], dtype=torch.float64)

    def norm_with_derivative(tensors: list[Tensor], p: float, per_tensor: bool) -> Tensor:
        recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if recorded or _have_tangents(tensors):
            return norm_by_operations(tensors, p, per_tensor)
        with torch._C._AutoDispatchBelowAutograd():
            return norm(tensors, p, per_tensor=per_tensor)

    LIBRARY.impl("norm", compute_norm, "CPU")
    LIBRARY.impl("norm", norm_with_derivative, "Autograd")
    LIBRARY.impl("norm", norm_by_operations, "FuncTorchBatchedDecomposition")
    LIBRARY.impl("scale_", compute_products, "CPU")
    torch.library.register_fake("unified_clip::norm", describe_norm, lib=LIBRARY)
    torch.library.register_fake("unified_clip::scale_", lambda tensors, coef, per_tensor: None, lib=LIBRARY)


def _have_tangents(tensors: Sequence[Tensor]) -> bool:
    """Return whether PyTorch computes a forward derivative by any tensor."""
    # Looking at each tensor takes longer than its norm.
    if forward_ad._current_level < 0 and torch._C._functorch.peek_interpreter_stack() is None:
        return False
    return any(forward_ad.unpack_dual(tensor, level=0).tangent is not None for tensor in tensors)
