"""Paddle's distributed tensors, and the plain parameters of `fleet`'s layers: what this process holds and counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import paddle

from ..._core.distributed import DistributedSpec
from ..._core.types import Leaf, Tensor
from ..._distributed.norm import NormGroup
from ..._distributed.placements import DistributedGradients, RankedGroup, Terminology

PARAMETER = paddle.base.framework.EagerParamBase
SPREAD = ("model_parallel", "pipe_parallel", "sharding_parallel", "sep_parallel")
"""The dimensions of `fleet` along which processes hold one model together. Along the others they hold copies."""


def is_dist(value: Any) -> bool:
    return isinstance(value, paddle.Tensor) and bool(value.is_dist())


def is_cleared(gradient: Any) -> bool:
    """Return whether `clear_gradient(set_to_zero=False)` has left nothing of it but its type."""
    if is_dist(gradient) and not gradient._is_initialized():
        try:
            return gradient._local_shape is None
        except NotImplementedError:
            return True
    return False


def any_dist(values: Iterable[Any]) -> bool:
    return bool(paddle.distributed.is_initialized()) and any(map(is_dist, values))


def hybrid() -> Any | None:
    """What `fleet.init` has set up, where it spreads a model over several processes."""
    hcg = getattr(paddle.distributed.fleet.fleet, "_hcg", None)
    return hcg if hcg is not None and any(_degree(hcg, name) > 1 for name in SPREAD) else None


def find(
    gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
) -> PaddleShards | None:
    """What processes hold together, where anything says so: a distributed tensor, `fleet` of its parameters, or the
    caller."""
    parameters = [_or_its_parameter(leaf) for leaf in parameters]
    if not spec.is_given and not any(is_dist(leaf.tensor) for leaf in (*parameters, *gradients)):
        given = [*gradients, *parameters]
        told = not given or any(isinstance(leaf.parameter, PARAMETER) for leaf in given)
        if differentiable or spec.process_group is None or not told or hybrid() is None:
            return None
    return PaddleShards(gradients, parameters, spec)


def _or_its_parameter(leaf: Leaf) -> Leaf:
    """Of a pair without a gradient, which other processes may have, the parameter tells."""
    return leaf._replace(tensor=leaf.parameter) if leaf.tensor is None and is_dist(leaf.parameter) else leaf


class PaddleGroup:
    """A group of `paddle.distributed`; None for that of all processes."""

    def __init__(self, group: Any) -> None:
        if group is None and paddle.distributed.is_initialized():
            group = paddle.distributed.get_group(0)
        self._group = self.key = group
        self.ranks: list[int] = [0] if group is None else list(group.ranks)
        self.size = len(self.ranks)
        here = paddle.distributed.get_rank()
        if here not in self.ranks:
            raise ValueError(
                f"this process, rank {here}, is not in process_group, which has the ranks {self.ranks}; call with a "
                "group that it is in, or not at all"
            )
        self.rank = self.ranks.index(here)

    def total(self, numbers: Sequence[int]) -> list[int]:
        return self._reduced(numbers, paddle.distributed.ReduceOp.SUM)

    def greatest(self, numbers: Sequence[int]) -> list[int]:
        return self._reduced(numbers, paddle.distributed.ReduceOp.MAX)

    def _reduced(self, numbers: Sequence[int], how: Any) -> list[int]:
        if self.size == 1:
            return list(numbers)
        place = paddle.CPUPlace() if self._group.backend == "GLOO" else None
        found = paddle.to_tensor(np.array(numbers, np.int64), place=place)
        paddle.distributed.all_reduce(found, how, self._group)
        reduced: list[int] = found.tolist()
        return reduced


class PaddleShards(DistributedGradients):
    """`Shards` of one call."""

    words = Terminology("process mesh", "reshard it first", "paddle.distributed.get_group(0)")

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self._hcg = hybrid()
        self._rank = paddle.distributed.get_rank()
        self.values = [self._held(gradient) for gradient in self._gradients]
        self._first: dict[bool, bool] = {}

    @property
    def parameters(self) -> int | None:
        return None if self._goes_by_attributes() else super().parameters

    def rows(self, known_only: bool = False) -> list[NormGroup]:
        if self._spec.process_group == "auto":
            self._check_summed()
        return super().rows(known_only)

    def check_by_value(self) -> None:
        self._check_summed()
        super().check_by_value()

    def want_derivatives(self) -> bool:
        return any(is_dist(gradient) and not gradient.stop_gradient for gradient in self._gradients)

    def check_derivatives(self) -> None:
        """ValueError where Paddle's own operations, which have a derivative, fail or end the process."""
        meshes = [gradient.process_mesh if is_dist(gradient) else None for gradient in self._gradients]
        if any(mesh != meshes[0] for mesh in meshes):
            raise ValueError(
                "a derivative is wanted, and the tensors are on several process meshes, or some on none, which Paddle "
                "cannot compute with; clip them under paddle.no_grad(), or one mesh's at a time"
            )

    def whole(self, index: int) -> Tensor:
        gradient = self._gradients[index]
        if not is_dist(gradient):
            return self.values[index]
        summed = self.summed(index)
        cut = any(placement.is_shard() for placement in gradient.placements)
        return paddle.empty([0], gradient.dtype) if cut and not self.is_first(gradient) else summed

    def restored(self, index: int, value: Tensor) -> Any:
        like = self._gradients[index]
        if not is_dist(like):
            return value
        if self._rank not in like.process_mesh.process_ids:
            return like
        return paddle.Tensor(value, dims=like.shape, process_mesh=like.process_mesh, placements=like.placements)

    def _held(self, gradient: Any) -> Tensor:
        """What this process holds, in the gradient's own memory."""
        if not is_dist(gradient):
            return gradient
        if self._rank not in gradient.process_mesh.process_ids:
            return paddle.empty([0], gradient.dtype)  # its own one has a shape, and no memory
        return gradient._local_value()

    # -- what distributed tensors tell

    def is_sharded(self, tensor: Any) -> bool:
        return is_dist(tensor)

    def ranks(self, tensor: Any) -> frozenset[int]:
        return frozenset(tensor.process_mesh.process_ids)

    def is_first(self, tensor: Any) -> bool:
        return self._alike(tensor, lambda placement: not placement.is_shard())[:1] == [self._rank]

    def is_replicated(self, tensor: Any) -> bool:
        return all(placement.is_replicated() for placement in tensor.placements)

    def is_partial(self, tensor: Any) -> bool:
        return any(placement.is_partial() for placement in tensor.placements)

    def summed(self, index: int) -> Tensor:
        gradient = self._gradients[index]
        if not is_dist(gradient) or not self.is_partial(gradient):
            return self.values[index]
        terms = [placement for placement in gradient.placements if placement.is_partial()]
        if any(placement.reduce_type() != paddle.distributed.ReduceType.kRedSum for placement in terms):
            raise ValueError(
                f"the gradient at {self._leaves[index].place} has the placements {gradient.placements}; "
                "reshard it first"
            )
        with_terms = self._alike(gradient, lambda placement: placement.is_partial())
        if len(with_terms) < 2 or 0 in self.values[index].shape:  # where all these have nothing, and reshard would fail
            return self.values[index]
        copies = paddle.distributed.Replicate()
        placements = [copies if placement.is_partial() else placement for placement in gradient.placements]
        with paddle.no_grad():
            return self._held(paddle.distributed.reshard(gradient, gradient.process_mesh, placements))

    def elements(self, index: int) -> int:
        leaf, parts = self._leaves[index], 1
        if not is_dist(leaf.tensor) and _is_part(leaf.parameter):
            if self._hcg is not None:
                parts = _degree(self._hcg, "model_parallel")
            elif self._goes_by_attributes():
                parts = self._group.size
        return parts * int(math.prod(leaf.tensor.shape))

    def layout(self, tensor: Any) -> str:
        if not is_dist(tensor):
            return "plain"
        mesh = tensor.process_mesh
        along = zip(tensor.placements, mesh.dim_names, mesh.shape, strict=True)
        return ", ".join(f"{placement} over {name}={size}" for placement, name, size in along)

    def _alike(self, gradient: Any, free: Callable[[Any], bool]) -> list[int]:
        """Return the processes of a mesh that differ from this one along the dimensions with such placements alone."""
        mesh = np.array(gradient.process_mesh.process_ids).reshape(gradient.process_mesh.shape)
        for at in np.argwhere(mesh == self._rank):
            choice = [slice(None) if free(p) else here for here, p in zip(at, gradient.placements, strict=True)]
            return [int(rank) for rank in mesh[tuple(choice)].reshape(-1)]
        return []

    # -- groups

    def world(self) -> PaddleGroup:
        return self._group_of(None)

    def named_group(self, stated: Any) -> PaddleGroup:
        if isinstance(stated, paddle.distributed.ProcessMesh):
            return self._group_of(_group_with(stated.process_ids))
        if not isinstance(stated, paddle.distributed.communication.group.Group):
            raise TypeError(
                f"process_group is {stated!r}; it has to be a group of paddle.distributed, a ProcessMesh, None, or "
                "'auto'"
            )
        return self._group_of(stated)

    def inferred_group(self) -> PaddleGroup | None:
        if self._hcg is None or any(map(is_dist, self._tensors())):
            return None
        self._check_summed()
        return self._group_of(self._hcg.get_check_parallel_group())

    def groups_over(self, leaf: Leaf, tensor: Any) -> list[PaddleGroup] | None:
        if is_dist(tensor):
            here = self._rank in tensor.process_mesh.process_ids
            cut = here and any(placement.is_shard() for placement in tensor.placements)
            return [self._group_of(_group_with(tensor.process_mesh.process_ids))] if cut else []
        if self._hcg is not None and _is_part(leaf.parameter):
            return [self._group_of(self._hcg.get_model_parallel_group())]
        return [] if self.is_complete_here(leaf.parameter, tensor) else None

    def is_complete_here(self, parameter: Any, tensor: Any) -> bool:
        told = self._goes_by_attributes() and not _is_part(parameter)
        return told or super().is_complete_here(parameter, tensor)

    def _group_of(self, group: Any) -> PaddleGroup:
        key = None if group is None else group.id
        if key not in self._groups:
            self._groups[key] = PaddleGroup(group)
        found: PaddleGroup = self._groups[key]
        return found

    def _check_summed(self) -> None:
        """Whether gradients can be complete: optimizers are given those that are, users have those that are not yet."""
        if self._hcg is None or any(map(is_dist, self._tensors())):
            return
        if _degree(self._hcg, "sharding_parallel") > 1 and any(
            leaf.tensor is leaf.parameter for leaf in self._parameters
        ):
            raise ValueError(
                "with fleet's sharding, gradients are added up over the processes by the optimizer's step, so that "
                "none is complete before; give the optimizer grad_clip=, or pass process_group and ownership"
            )

    # -- what plain parameters tell

    def inferred_owner(self, leaf: Leaf, group: RankedGroup) -> bool | None:
        if isinstance(leaf.parameter, PARAMETER) and self._goes_by_attributes():
            return self._is_first(leaf.parameter, group)
        return None

    def _goes_by_attributes(self) -> bool:
        """Return whether `is_distributed` of plain parameters tells: `fleet` has set it up, or something has set it."""
        if any(map(is_dist, self._tensors())) or self._spec.ownership is not None:
            return False
        return self._hcg is not None or any(_is_part(leaf.parameter) for leaf in self._parameters)

    def _is_first(self, parameter: Any, group: RankedGroup) -> bool:
        """Whether no process of the group that comes before this one has the same elements of a plain parameter."""
        part = _is_part(parameter)
        if part not in self._first:
            self._first[part] = self._copies(group, part)[0] == self._rank
        return self._first[part] and getattr(parameter, "is_firstly_shared", True) is not False

    def _copies(self, group: RankedGroup, part: bool) -> list[int]:
        """Return the processes of a group that hold what this one holds of a parameter."""
        if self._hcg is None:
            return [self._rank] if part else group.ranks
        place_of = self._hcg.topology().get_coord
        differ = ["pipe", "sharding", *(["model"] if part else [])]
        here = place_of(self._rank)
        return [r for r in group.ranks if all(getattr(place_of(r), name) == getattr(here, name) for name in differ)]


def _degree(hcg: Any, name: str) -> int:
    return int(getattr(hcg, f"get_{name}_world_size")())


def _is_part(parameter: Any) -> bool:
    return isinstance(parameter, PARAMETER) and bool(getattr(parameter, "is_distributed", False))


def _group_with(ranks: Sequence[int]) -> Any:
    """Return a group that exists: to make one takes processes that may not be here."""
    for group in paddle.distributed.collective._get_group_map().values():
        if sorted(group.ranks) == sorted(ranks):
            return group
    raise ValueError(
        f"there is no group of the processes {sorted(ranks)}, which hold a gradient together; make one once, on all "
        "processes, with paddle.distributed.new_group"
    )
