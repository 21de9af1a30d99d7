"""The list of the gradients that one call clips."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from . import observer, validation
from .backend import Backend
from .distributed import AWAITED, INFERRED, DistributedSpec, Measure, Measures, Shards
from .path import Change, CollectedPath, Path
from .types import Leaf, Scalar, Slices, Tensor
from .writers import InPlace, Writer


class GradientList:
    """`values` has one dense tensor for each gradient. For a sparse gradient, this tensor has only the stored rows.
    Rows with the same index are summed."""

    def __init__(
        self,
        backend: Backend,
        leaves: Iterable[Leaf],
        writer: Writer,
        *,
        differentiable: bool = False,
        extra_dtypes: Iterable[str] = (),
        reject_complex: bool = False,
        spec: DistributedSpec | None = None,
        parameters: Sequence[Leaf] | None = None,
        measures: Measures | None = None,
        function: str = "",
    ) -> None:
        """measures: The norms that other ranks wait for. If this rank fails, it sends its error to these ranks."""
        self._writer, self.function, self._differentiable = writer, function, differentiable
        self._spec = spec = spec or INFERRED  # torch.compile does not support INFERRED as a default
        all_leaves = list(leaves)
        self.leaves = [leaf for leaf in all_leaves if leaf.tensor is not None]
        self.backend = backend
        if backend.distributed is not None:
            self.backend = backend = backend.distributed.with_spec(spec)
        self._distributed = distributed = backend.distributed
        if distributed is not None:
            self.shards = distributed.shards(
                self.leaves, all_leaves if parameters is None else parameters, spec, differentiable=differentiable
            )
            self._measure = distributed.partial_sums
        elif spec.is_given:
            raise validation.not_distributed(backend)
        if measures:
            AWAITED.send_rejection = None if self.shards is None else partial(self.shards.send_rejection, measures)
        for leaf in self.leaves:
            validation.supported(backend, leaf)
            validation.gradient_dtype(
                backend.dtype(leaf.tensor), leaf, extra_dtypes=extra_dtypes, reject_complex=reject_complex
            )
        local = self.shards.values if self.shards else [leaf.tensor for leaf in self.leaves]
        self._must_match, self._tensor_norms = {}, {}
        tensors = [backend.as_tensor(tensor) for tensor in local]
        self._sparse = sparse_gradients = backend.sparse
        self._coalesced = [
            None if sparse_gradients is None else sparse_gradients.coalesce(tensor, differentiable=differentiable)
            for tensor in tensors
        ]
        self.values: list[Tensor] = [
            tensor if sparse is None else sparse.values for tensor, sparse in zip(tensors, self._coalesced, strict=True)
        ]
        if self.shards is not None:
            self.shards.values = self.values
            self.shards.stored_rows = {
                leaf.position: partial(backend.to_numpy, sparse.indices)
                for leaf, sparse in zip(self.leaves, self._coalesced, strict=True)
                if sparse is not None
            }

    shards: Shards | None = None
    is_collected = False
    """Whether the backend collected all gradients in one pass.

    These gradients are dense, are not distributed and share no memory.
    """
    places: list[int] | None = None
    """For collected gradients, the positions in the container that the user passed. None means 0, 1, 2, ..."""
    entries = 0
    """The number of entries in the container that the user passed. If 0, use the number of gradients."""

    _tensor_norms: dict[float, dict[int, float]]
    _must_match: dict[str, Any]
    _measure: Measure
    _is_measured = False

    def change(self, group: range, path: Path, change: Change) -> None:
        self._writer.change(self, group, path, change)

    def clip_at_once(self, p: float, threshold: float, eps: float, infinite_norm_gives_nan: bool) -> Tensor | None:
        """Clip in place by the total norm, and return the norm. Return None if no kernel does all of this."""
        return None

    def set_consensus_fields(self, fields: Mapping[str, Any]) -> None:
        """Set the values that must be equal on all ranks. The all-reduce of the norm also compares these values."""
        norms = observer.active is not None and observer.active.norms  # norms per tensor need all ranks
        self._must_match = {**fields, "norms= of unified_clip.record": norms}

    def check_total_norm(self) -> None:
        if self._differentiable and self.shards is None and self._distributed is not None:
            self._distributed.check_total_norm(self.leaves, self._spec)

    def path(self, group: range, extra_inputs: Sequence[Any] = ()) -> Path:
        values = [self.values[i] for i in group]
        if self.shards is None:
            return self.backend.path(values, differentiable=self._differentiable, extra_inputs=extra_inputs)
        path = None if extra_inputs else self.backend.collect_tensors(values, differentiable=False, in_place=True)
        return path or self.backend.path(values, differentiable=False, extra_inputs=extra_inputs)

    def parameter_path(self, index: int, parameter: Tensor, extra_inputs: Sequence[Any] = ()) -> Path:
        inputs = [*extra_inputs, self.values[index]]
        return self.backend.path([parameter], differentiable=self._differentiable, extra_inputs=inputs)

    def norm(self, path: Path, group: range, p: float) -> Scalar:
        """For distributed gradients, all ranks have to call this method."""
        if self.shards is None:
            return path.norm(p)
        is_first, self._is_measured = not self._is_measured, True
        options: dict[str, Any] = {"function": self.function, "is_first": is_first}
        return self.shards.norm(path, group, p, self._must_match, self._measure, **options)

    def nonfinite_elsewhere(self, path: Path) -> list[tuple[str, int, int]]:
        return [] if self.shards is None else self.shards.nonfinite_elsewhere(path)

    def tensor_norms(self, p: float, known_only: bool = False) -> dict[int, float] | None:
        """Return None if no gradient is distributed.

        If the ranks of a gradient are unknown, raise ValueError. With `known_only`, leave out this gradient instead.
        """
        if self.shards is None:
            return None
        norms = self._tensor_norms.get(p)
        if norms is not None and (known_only or len(norms) == len(self.leaves)):
            return norms
        if p not in (1, 2):
            raise ValueError(
                f"norms of order {p:g} per tensor are not supported for distributed gradients. Set norm_type to 1 or "
                "2. Or clip by the total norm: set rule = 'global_norm', and leave details=True out"
            )
        self._tensor_norms[p] = self.shards.tensor_norms(
            int(p), self._must_match, self._measure, known_only=known_only, function=self.function
        )
        return self._tensor_norms[p]

    def per_tensor_path(self, group: range) -> Path | None:
        return None if self.shards is not None else self.path(group).per_tensor()

    def restored(self, index: int, value: Tensor) -> Any:
        """Convert a dense local value to a tensor with the sparsity and placements of the gradient."""
        sparse = self._coalesced[index]
        if sparse is not None:
            value = sparse.restore(value)
        return value if self.shards is None else self.shards.restored(index, value)

    def is_sparse(self, index: int) -> bool:
        return self._coalesced[index] is not None

    def shape(self, index: int) -> tuple[int | None, ...] | None:
        """The length of a sparse axis is None."""
        shape, sparse = self.backend.shape(self.values[index]), self._coalesced[index]
        return shape if sparse is None or shape is None else (*[None] * sparse.sparse_axes, *shape[1:])

    def slices(self, index: int, axes: Sequence[int]) -> Slices:
        """Convert axes of the gradient to axes of `values[index]`."""
        if self.shards is not None:
            raise ValueError(
                "`axes` is not supported for distributed gradients, since a slice may be sharded. Leave out `axes`, "
                "or gather the gradient first"
            )
        sparse = self._coalesced[index]
        if sparse is None or sparse.sparse_axes == 1:
            return Slices(axes)  # the first axis of the values is that of the gradient
        sparse_axes = sparse.sparse_axes
        kept = [axis for axis in range(sparse_axes) if axis not in axes]
        dense_axes = [axis - sparse_axes + 1 for axis in axes if axis >= sparse_axes]
        if not kept:
            return Slices([0, *dense_axes])
        stored = self.backend.shape(self.values[index])
        if len(kept) == sparse_axes or (stored and stored[0] == 0):
            return Slices(dense_axes)
        assert self._sparse is not None
        return Slices(dense_axes, self._sparse.row_groups(sparse.indices, kept))


class CollectedGradients(GradientList):
    is_collected = True

    def __init__(self, path: CollectedPath, writer: Writer) -> None:
        self.values, self.leaves, self._path, self._writer = path.tensors, [], path, writer
        self._norms: dict[tuple[int, int, float], Scalar] = {}

    def clip_at_once(self, p: float, threshold: float, eps: float, infinite_norm_gives_nan: bool) -> Tensor | None:
        clip = getattr(self._path, "clip_at_once", None)
        return clip(p, threshold, eps, infinite_norm_gives_nan) if clip and isinstance(self._writer, InPlace) else None

    def check_total_norm(self) -> None:
        """Do nothing, because collected gradients are not distributed."""

    def norm(self, path: Path, group: range, p: float) -> Scalar:
        norm = self._norms.get((group.start, group.stop, p))
        if norm is None:
            norm = self._norms[group.start, group.stop, p] = path.norm(p)
        return norm

    def path(self, group: range, extra_inputs: Sequence[Any] = ()) -> Path:
        return self._path if len(group) == len(self.values) else self._path.part(group)

    def is_sparse(self, index: int) -> bool:
        return False
