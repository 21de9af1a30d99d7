"""The placements and process groups of distributed tensors, and of plain parameters under `fleet`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import paddle

from ..._core.distributed import DistributedSpec
from ..._core.types import Leaf, Tensor
from ..._distributed.groups import Mesh, NormGroup, ProcessGroup, Ranks
from ..._distributed.norm import DistributedGradients
from ..._distributed.owners import Terminology
from ..._distributed.placements import Kind

PARAMETER = paddle.base.framework.EagerParamBase
MODEL_DIMENSIONS = ("model_parallel", "pipe_parallel", "sharding_parallel", "sep_parallel")


def is_dist(value: Any) -> bool:
    return isinstance(value, paddle.Tensor) and bool(value.is_dist())


def is_cleared(gradient: Any) -> bool:
    """Return whether `clear_gradient(set_to_zero=False)` has freed the memory of a gradient."""
    if is_dist(gradient) and not gradient._is_initialized():
        try:
            return gradient._local_shape is None
        except NotImplementedError:
            return True
    return False


def any_dist(values: Iterable[Any]) -> bool:
    return bool(paddle.distributed.is_initialized()) and any(map(is_dist, values))


def hybrid() -> Any | None:
    """Return None if `fleet` does not shard the model."""
    hcg = getattr(paddle.distributed.fleet.fleet, "_hcg", None)
    return hcg if hcg is not None and any(_degree(hcg, name) > 1 for name in MODEL_DIMENSIONS) else None


def find(
    gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, *, differentiable: bool
) -> PaddleShards | None:
    parameters = [_with_placements(leaf) for leaf in parameters]
    if not spec.is_given and not any(is_dist(leaf.tensor) for leaf in (*parameters, *gradients)):
        leaves = [*gradients, *parameters]
        may_be_fleet = not leaves or any(isinstance(leaf.parameter, PARAMETER) for leaf in leaves)
        if differentiable or spec.process_group is None or not may_be_fleet or hybrid() is None:
            return None
    return PaddleShards(gradients, parameters, spec)


def check_fleet(gradients: Sequence[Leaf], spec: DistributedSpec) -> None:
    """Raise ValueError if `fleet` shards the model and no gradient has placements."""
    hcg = None if spec.process_group is None or any(is_dist(leaf.tensor) for leaf in gradients) else hybrid()
    if hcg is not None:
        raise ValueError(
            f"fleet shards the model over the ranks {hcg.get_check_parallel_group().ranks}. "
            "unified_clip needs the parameters to find the shards, but you passed only gradients. Call "
            "clip_grad_norm_, or pass (parameter, gradient) tuples to GradientClipByGlobalNorm. Or pass process_group "
            "and ownership. To clip by the norm of this process's tensors, pass process_group=None"
        )


def _with_placements(leaf: Leaf) -> Leaf:
    return leaf._replace(tensor=leaf.parameter) if leaf.tensor is None and is_dist(leaf.parameter) else leaf


class PaddleGroup(ProcessGroup):
    """The argument None means the group of all ranks."""

    def __init__(self, group: Any) -> None:
        if group is None and paddle.distributed.is_initialized():
            group = paddle.distributed.get_group(0)
        super().__init__(group, Ranks([0] if group is None else group.ranks), here=paddle.distributed.get_rank())

    @property
    def name(self) -> str:
        return str(getattr(self.key, "id", ""))

    def all_reduce(self, numbers: Sequence[int], op: str) -> list[int]:
        place = paddle.CPUPlace() if self.key.backend == "GLOO" else None
        tensor = paddle.to_tensor(np.array(numbers, np.int64), place=place)
        paddle.distributed.all_reduce(tensor, getattr(paddle.distributed.ReduceOp, op), self.key)
        reduced: list[int] = tensor.tolist()
        return reduced


class PaddleShards(DistributedGradients):
    terminology = Terminology(
        "process mesh", "Call paddle.distributed.reshard first", "paddle.distributed.get_group(0)"
    )

    def __init__(self, gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec) -> None:
        super().__init__(gradients, parameters, spec)
        self._hcg = hybrid()
        self._rank = paddle.distributed.get_rank()
        self.values = [self._local(gradient) for gradient in self._gradients]
        self._with_copies: dict[bool, Ranks] = {}
        self._known_meshes: dict[tuple[tuple[int, ...], ...], Mesh] = {}

    @property
    def parameters(self) -> int | None:
        return None if self._uses_attributes() else super().parameters

    def norm_groups(self, known_only: bool = False) -> list[NormGroup]:
        if self._spec.process_group == "auto":
            self._check_all_reduced()
        return super().norm_groups(known_only)

    def check_by_value(self) -> None:
        self._check_all_reduced()
        super().check_by_value()

    def want_derivatives(self) -> bool:
        return any(is_dist(gradient) and not gradient.stop_gradient for gradient in self._gradients)

    def check_derivatives(self) -> None:
        meshes = [gradient.process_mesh if is_dist(gradient) else None for gradient in self._gradients]
        if any(mesh != meshes[0] for mesh in meshes):
            raise ValueError(
                "the tensors are on different process meshes, so Paddle cannot record the derivative of their norm. "
                "Clip under paddle.no_grad(), or clip the tensors of each mesh in a "
                "separate call"
            )

    def owned_alone(self, index: int) -> Tensor:
        gradient = self._gradients[index]
        if not is_dist(gradient):
            return self.values[index]
        reduced = self.reduced(index)
        part, is_sharded = self._part(gradient), any(placement.is_shard() for placement in gradient.placements)
        is_first = self.is_first(gradient, part)
        return paddle.empty([0], gradient.dtype) if is_sharded and not is_first else reduced

    def restored(self, index: int, value: Tensor) -> Any:
        like = self._gradients[index]
        if not is_dist(like):
            return value
        if self._rank not in like.process_mesh.process_ids:
            return like
        return paddle.Tensor(value, dims=like.shape, process_mesh=like.process_mesh, placements=like.placements)

    def _local(self, gradient: Any) -> Tensor:
        if not is_dist(gradient):
            return gradient
        if self._rank not in gradient.process_mesh.process_ids:
            return paddle.empty([0], gradient.dtype)  # Paddle's local value has a shape, but no memory
        return gradient._local_value()

    # -- placements

    def is_sharded(self, tensor: Any) -> bool:
        return is_dist(tensor)

    def mesh(self, tensor: Any) -> Mesh:
        mesh = tensor.process_mesh  # each access makes a mesh
        key = (tuple(mesh.process_ids), tuple(mesh.shape))
        if key not in self._known_meshes:
            self._known_meshes[key] = Mesh(np.array(key[0]).reshape(key[1]), self._rank)
        return self._known_meshes[key]

    def kinds(self, tensor: Any) -> list[Kind]:
        return [_kind(placement) for placement in tensor.placements]

    def _part(self, tensor: Any) -> ProcessGroup | None:
        is_declared = self._spec.process_group not in (None, "auto")
        return self._group if is_declared and self._group.size < len(self.ranks(tensor)) else None

    def reduced(self, index: int) -> Tensor:
        gradient = self._gradients[index]
        if not is_dist(gradient) or not self.is_partial(gradient):
            return self.values[index]
        partial = [placement for placement in gradient.placements if placement.is_partial()]
        if any(placement.reduce_type() != paddle.distributed.ReduceType.kRedSum for placement in partial):
            raise ValueError(
                f"the gradient at {self._leaves[index].place} has the placements {gradient.placements}, but Partial "
                "placements are only supported with the reduce type kRedSum. Call paddle.distributed.reshard first"
            )
        is_empty = 0 in self.values[index].shape  # on all these ranks, because reshard fails for no elements
        if is_empty or len(self.ranks_along(gradient, "partial")) < 2:
            return self.values[index]
        replicate = paddle.distributed.Replicate()
        placements = [replicate if placement.is_partial() else placement for placement in gradient.placements]
        with paddle.no_grad():
            return self._local(paddle.distributed.reshard(gradient, gradient.process_mesh, placements))

    def elements(self, index: int) -> int:
        leaf, shards = self._leaves[index], 1
        if not is_dist(leaf.tensor) and _is_shard(leaf.parameter):
            if self._hcg is not None:
                shards = _degree(self._hcg, "model_parallel")
            elif self._uses_attributes():
                shards = self._group.size
        return shards * int(math.prod(leaf.tensor.shape))

    def layout(self, tensor: Any) -> str:
        if not is_dist(tensor):
            return "plain"
        mesh = tensor.process_mesh
        along = zip(tensor.placements, mesh.dim_names, mesh.shape, strict=True)
        return ", ".join(f"{placement} over {name}={size}" for placement, name, size in along)

    # -- groups

    def world(self) -> ProcessGroup:
        return self._group_of(None)

    def group_from(self, process_group: Any) -> ProcessGroup:
        if isinstance(process_group, paddle.distributed.ProcessMesh):
            return self._group_of(_existing_group(process_group.process_ids))
        if not isinstance(process_group, paddle.distributed.communication.group.Group):
            raise TypeError(
                f"process_group is {process_group!r}. Pass a paddle.distributed group, a ProcessMesh, None, or 'auto'"
            )
        return self._group_of(process_group)

    def inferred_group(self) -> ProcessGroup | None:
        if self._hcg is None or any(map(is_dist, self._tensors())):
            return None
        self._check_all_reduced()
        return self._group_of(self._hcg.get_check_parallel_group())

    def shard_groups(self, leaf: Leaf, tensor: Any) -> list[ProcessGroup] | None:
        if is_dist(tensor):
            here = self._rank in tensor.process_mesh.process_ids
            if not (here and any(placement.is_shard() for placement in tensor.placements)):
                return []
            return [self._part(tensor) or self._group_of(_existing_group(tensor.process_mesh.process_ids))]
        if self._hcg is not None and _is_shard(leaf.parameter):
            return [self._group_of(self._hcg.get_model_parallel_group())]
        return [] if self.is_complete(leaf, tensor) else None

    def is_complete(self, leaf: Leaf, tensor: Any) -> bool:
        is_complete = self._uses_attributes() and not _is_shard(leaf.parameter)
        return is_complete or super().is_complete(leaf, tensor)

    def _group_of(self, group: Any) -> ProcessGroup:
        return self.cached_group(None if group is None else group.id, functools.partial(PaddleGroup, group))

    def _check_all_reduced(self) -> None:
        if self._hcg is None or any(map(is_dist, self._tensors())):
            return
        if _degree(self._hcg, "sharding_parallel") > 1 and any(
            leaf.tensor is leaf.parameter for leaf in self._parameters
        ):
            raise ValueError(
                "With fleet's sharding, the optimizer's step completes the gradients by an all-reduce. Pass "
                "grad_clip= to the optimizer, or pass process_group and ownership"
            )

    # -- attributes of plain parameters

    def inferred_owner(self, leaf: Leaf, group: ProcessGroup) -> bool | None:
        if isinstance(leaf.parameter, PARAMETER) and self._uses_attributes():
            self._check_all_shards(leaf, group)
            return self._is_first(leaf.parameter, group)
        return None

    def _check_all_shards(self, leaf: Leaf, group: ProcessGroup) -> None:
        if self._hcg is None or not _is_shard(leaf.parameter):
            return
        ranks = Ranks(self._hcg.get_model_parallel_group().ranks)
        if not ranks <= group.ranks:
            raise ValueError(
                f"the ranks {ranks} have shards of the gradient at {leaf.place}, but process_group has the ranks "
                f"{group.ranks}. Pass a group of all ranks that have the model, such as "
                "hcg.get_check_parallel_group(). To clip by the norm of this process's shards, pass process_group=None"
            )

    def inferred_copies(self, leaf: Leaf, group: ProcessGroup) -> Ranks | None:
        if isinstance(leaf.parameter, PARAMETER) and self._uses_attributes():
            return self._ranks_with_copies(group, _is_shard(leaf.parameter))
        return None

    def _uses_attributes(self) -> bool:
        if any(map(is_dist, self._tensors())) or self._spec.ownership is not None:
            return False
        return self._hcg is not None or any(_is_shard(leaf.parameter) for leaf in self._parameters)

    def _is_first(self, parameter: Any, group: ProcessGroup) -> bool:
        is_first = self._ranks_with_copies(group, _is_shard(parameter))[0] == self._rank
        return is_first and getattr(parameter, "is_firstly_shared", True) is not False

    def _ranks_with_copies(self, group: ProcessGroup, is_shard: bool) -> Ranks:
        if is_shard not in self._with_copies:
            self._with_copies[is_shard] = Ranks(self._list_with_copies(group, is_shard))
        return self._with_copies[is_shard]

    def _list_with_copies(self, group: ProcessGroup, is_shard: bool) -> list[int]:
        if self._hcg is None:
            return [self._rank] if is_shard else list(group.ranks)
        place_of = self._hcg.topology().get_coord
        differ = ["pipe", "sharding", *(["model"] if is_shard else [])]
        here = place_of(self._rank)
        return [r for r in group.ranks if all(getattr(place_of(r), name) == getattr(here, name) for name in differ)]


def _kind(placement: Any) -> Kind:
    return "replicate" if placement.is_replicated() else "partial" if placement.is_partial() else "shard"


def _degree(hcg: Any, name: str) -> int:
    return int(getattr(hcg, f"get_{name}_world_size")())


def _is_shard(parameter: Any) -> bool:
    return isinstance(parameter, PARAMETER) and bool(getattr(parameter, "is_distributed", False))


def _existing_group(ranks: Sequence[int]) -> Any:
    """Raise ValueError if no group has these ranks. A new group would need a call on every rank."""
    for group in paddle.distributed.collective._get_group_map().values():
        if sorted(group.ranks) == sorted(ranks):
            return group
    raise ValueError(
        f"a gradient is sharded over the ranks {sorted(ranks)}, but no process group has these ranks. Call "
        "paddle.distributed.new_group once with these ranks, on every rank"
    )
