"""Gradients on devices without float64, such as Apple's MPS: another path computes with copies in CPU memory.

Eager copies take the host path, so results have the same bits as on a CPU. In compiled graphs and for derivatives, the
copies are operations of PyTorch. This module has never run on a device without float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..._core.path import Change, Path
from ..._core.types import Scalar, Tensor, Write
from .device_path import PRIMITIVES


class CpuCopies:
    """The results are on the devices of `tensors`. Scalars, and norms of float64, are on the CPU."""

    def __init__(self, tensors: Sequence[Tensor], copies: Sequence[Tensor], path: Path) -> None:
        self._tensors, self._copies, self._path = list(tensors), copies, path
        # the members without tensors in their arguments and results
        self.on_host, self.framework, self.norm_dtype, self.xp = path.on_host, path.framework, path.norm_dtype, path.xp
        self.norm, self.tensor_norms, self.is_one, self.scope = path.norm, path.tensor_norms, path.is_one, path.scope
        self.is_finite, self.count_nonfinite = path.is_finite, path.count_nonfinite
        self.nonfinite_counts, self.read_later = path.nonfinite_counts, path.read_later
        self.in_graph, self.graph_callback = path.in_graph, path.graph_callback

    def slice_norms(self, axes: Sequence[int], groups: Tensor | None = None) -> Scalar:
        return self._path.slice_norms(axes, None if groups is None else groups.cpu())

    def scale(self, coef: Scalar) -> list[Tensor]:
        return self._returned(self._path.scale(coef))

    def prepare_scale(self, coef: Scalar) -> list[Write]:
        return self._written(self._path.prepare_scale(coef))

    def bounds_inverted(self, low: Any, high: Any) -> bool | None:
        return self._path.bounds_inverted(_on_cpu(low), _on_cpu(high))

    def clamp(self, low: Any, high: Any) -> list[Tensor]:
        return self._returned(self._path.clamp(_on_cpu(low), _on_cpu(high)))

    def prepare_clamp(self, low: Any, high: Any) -> list[Write]:
        return self._written(self._path.prepare_clamp(_on_cpu(low), _on_cpu(high)))

    def zeroed(self, results: list[Tensor], keep: Any) -> list[Tensor]:
        return self._returned(self._path.zeroed(results, keep))

    def prepare_zeroed(self, change: Change, keep: Any) -> list[Write]:
        return self._written(self._path.prepare_zeroed(change, keep))

    def unchanged(self) -> list[Tensor]:
        return self._returned(self._path.unchanged())

    def as_norm(self, n: Scalar) -> Tensor:
        norm = self._path.as_norm(n)
        return norm if norm.dtype == torch.float64 or not self._tensors else norm.to(self._tensors[0].device)

    def per_tensor(self) -> Path | None:
        return None

    def _returned(self, results: list[Tensor]) -> list[Tensor]:
        return [result.to(tensor.device) for result, tensor in zip(results, self._tensors, strict=True)]

    def _written(self, writes: list[Write]) -> list[Write]:
        """Change the copies, and then copy them into the gradients."""
        return [*writes, *PRIMITIVES.prepare_write(self._tensors, self._copies)] if writes else []


def copied(tensors: Sequence[Tensor], *, differentiable: bool) -> list[Tensor]:
    return [(tensor if differentiable else tensor.detach()).to("cpu", copy=True) for tensor in tensors]


def _on_cpu(bound: Any) -> Any:
    return bound.cpu() if isinstance(bound, torch.Tensor) else bound
