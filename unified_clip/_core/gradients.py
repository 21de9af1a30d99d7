"""The list of the gradients that one call clips."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from . import observer, validation
from .backend import Backend
from .distributed import AWAITED, INFERRED, DistributedSpec, Measures, PartialSums, Shards
from .path import Change, CollectedPath, Path
from .types import CoalescedSparse, Leaf, Scalar, Tensor


class Writer(Protocol):
    overwrites: bool
    """Whether the results go into the memory of the gradients."""

    def change(self, gradients: GradientList, change: Change) -> None: ...

    def drop(self) -> None:
        """Drop all results, because the step is skipped."""

    def finish(self) -> None:
        """Write the results into the caller's tensors or container."""


@dataclass(eq=False, repr=False)
class GradientList:
    backend: Backend
    values: list[Tensor]
    """One dense tensor for each gradient. For a sparse gradient, this tensor has only the stored rows. Rows with the
    same index are summed."""

    writer: Writer
    find_leaves: Callable[[], list[Leaf]]
    """Returns the leaves that the caller passed. Some may have no gradient."""

    function: str = ""
    differentiable: bool = False
    collected: CollectedPath | None = None
    """The path of `values`, if the backend collected all gradients in one pass. They are dense, real and not
    distributed, and share no memory."""

    arrange: Callable[[list[Leaf]], list[Leaf]] = list
    """Selects the gradients of `values` from the leaves, in the order of `values`."""

    spec: DistributedSpec | None = None
    shards: Shards | None = None
    sparse: Sequence[CoalescedSparse | None] = ()
    _leaves: list[Leaf] | None = None
    _must_match: Mapping[str, Any] = field(default_factory=dict)
    _norms: dict[tuple[int, int, float, bool], Scalar] = field(default_factory=dict)
    _tensor_norms: dict[float, dict[int, float]] = field(default_factory=dict)
    _is_measured: bool = False

    @classmethod
    def of_leaves(
        cls,
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
    ) -> GradientList:
        """Check gradients one by one.

        measures: The norms that other ranks wait for. If this rank fails, it sends its error to these ranks.
        """
        spec = spec or INFERRED  # torch.compile does not support INFERRED as a default
        all_leaves = list(leaves)
        own = [leaf for leaf in all_leaves if leaf.tensor is not None]
        shards = None
        if backend.distributed is not None:
            backend = backend.distributed.with_spec(spec)
        if backend.distributed is not None:
            members = all_leaves if parameters is None else parameters
            shards = backend.distributed.shards(own, members, spec, differentiable=differentiable)
        elif spec.is_given:
            raise validation.not_distributed(backend)
        if measures:
            AWAITED.send_rejection = None if shards is None else partial(shards.send_rejection, measures)
        for leaf in own:
            validation.supported(backend, leaf)
            validation.gradient_dtype(
                backend.dtype(leaf.tensor), leaf, extra_dtypes=extra_dtypes, reject_complex=reject_complex
            )
        tensors = [backend.as_tensor(tensor) for tensor in (shards.values if shards else [leaf.tensor for leaf in own])]
        sparse = [
            None if backend.sparse is None else backend.sparse.coalesce(tensor, differentiable=differentiable)
            for tensor in tensors
        ]
        values = [tensor if rows is None else rows.values for tensor, rows in zip(tensors, sparse, strict=True)]
        if shards is not None:
            shards.values = values
            shards.stored_rows = {
                leaf.position: partial(backend.to_numpy, rows.indices)
                for leaf, rows in zip(own, sparse, strict=True)
                if rows is not None
            }
        return cls(
            backend,
            values,
            writer,
            lambda: own,
            function,
            differentiable,
            spec=spec,
            shards=shards,
            sparse=sparse,
        )

    @property
    def leaves(self) -> list[Leaf]:
        """The gradients, with their names and places. Only errors, recordings and a few rules read them."""
        if self._leaves is None:
            self._leaves = self.arrange([leaf for leaf in self.find_leaves() if leaf.tensor is not None])
            assert len(self._leaves) == len(self.values), "bug in unified_clip: names and gradients do not match"
        return self._leaves

    def change(self, change: Change) -> None:
        self.writer.change(self, change)

    def clip_at_once(self, p: float, threshold: float, eps: float, infinite_norm_gives_nan: bool) -> Tensor | None:
        """Clip in place by the total norm, and return the norm. Return None if no kernel does all of this."""
        clip = getattr(self.collected, "clip_at_once", None)
        if clip is None or not self.writer.overwrites:  # `not clip` cannot be traced before PyTorch 2.10
            return None
        result: Tensor | None = clip(p, threshold, eps, infinite_norm_gives_nan)
        return result

    def set_consensus_fields(self, fields: Mapping[str, Any]) -> None:
        """Set the values that must be equal on all ranks. The all-reduce of the norm also compares these values."""
        norms = observer.active is not None and observer.active.norms  # norms per tensor need all ranks
        self._must_match = {**fields, "norms= of unified_clip.record": norms}

    def check_total_norm(self) -> None:
        distributed = self.backend.distributed
        if distributed is not None and self.differentiable and self.collected is None and self.shards is None:
            distributed.check_total_norm(self.leaves, self.spec or INFERRED)

    def path(self, group: range, extra_inputs: Sequence[Any] = ()) -> Path:
        if self.collected is not None and not extra_inputs:
            return self.collected if len(group) == len(self.values) else self.collected.part(group)
        values = [self.values[i] for i in group]
        if self.shards is None:
            return self.backend.path(values, differentiable=self.differentiable, extra_inputs=extra_inputs)
        path = None if extra_inputs else self.backend.collect_tensors(values, differentiable=False, in_place=True)
        return path or self.backend.path(values, differentiable=False, extra_inputs=extra_inputs)

    def parameter_path(self, index: int, parameter: Tensor, extra_inputs: Sequence[Any] = ()) -> Path:
        inputs = [*extra_inputs, self.values[index]]
        return self.backend.path([parameter], differentiable=self.differentiable, extra_inputs=inputs)

    def norm(self, path: Path, group: range, p: float) -> Scalar:
        """For distributed gradients, all ranks have to call this method."""
        if self.shards is None and self.collected is None:
            return path.norm(p)
        if self.shards is None:
            key = (group.start, group.stop, p, path.on_host)
            if key not in self._norms:  # the groups and the total of a configuration may be the same
                self._norms[key] = path.norm(p)
            return self._norms[key]
        is_first, self._is_measured = not self._is_measured, True
        options: dict[str, Any] = {"function": self.function, "is_first": is_first}
        return self.shards.norm(path, group, p, self._must_match, self._partial_sums, **options)

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
            int(p), self._must_match, self._partial_sums, known_only=known_only, function=self.function
        )
        return self._tensor_norms[p]

    def _partial_sums(self, tensors: Sequence[Tensor]) -> PartialSums:
        assert self.backend.distributed is not None, "bug in unified_clip: the backend has no distributed gradients"
        return self.backend.distributed.partial_sums(tensors)

    def per_tensor_path(self, group: range) -> Path | None:
        return None if self.shards is not None else self.path(group).per_tensor()

    def restored(self, index: int, value: Tensor) -> Any:
        """Convert a dense local value to a tensor with the sparsity and placements of the gradient."""
        rows = self._rows(index)
        if rows is not None:
            value = rows.restore(value)
        return value if self.shards is None else self.shards.restored(index, value)

    def is_sparse(self, index: int) -> bool:
        return self._rows(index) is not None

    def _rows(self, index: int) -> CoalescedSparse | None:
        return self.sparse[index] if self.sparse else None

    def shape(self, index: int) -> tuple[int | None, ...] | None:
        """The length of a sparse axis is None."""
        shape, rows = self.backend.shape(self.values[index]), self._rows(index)
        return shape if rows is None or shape is None else (*[None] * rows.sparse_axes, *shape[1:])

    def check_slices(self) -> None:
        if self.shards is not None:
            raise ValueError(
                "`axes` is not supported for distributed gradients, since a slice may be sharded. Leave out `axes`, "
                "or gather the gradient first"
            )
