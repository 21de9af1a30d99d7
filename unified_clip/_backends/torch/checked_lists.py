"""Lists of DTensor parameters that an earlier clip has checked. What follows from their layout is not computed again.

A list is known by the identity of its parameters. Any other list, declaration or layout of a gradient is checked anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..._core.collect import wants_clipping
from ..._core.distributed import DistributedSpec
from ..._core.types import Leaf, Tensor
from ..._distributed.norm import ProcessGroup
from ..._distributed.ranks import KeptByIdentity
from . import conditions


class Checked(NamedTuple):
    """What follows from parameters and from the layout of their gradients. It must not refer to a parameter."""

    parameters: list[weakref.ref[Any]]
    layouts: list[Any]
    """The mesh, placements and shape of each parameter, then of each gradient, or None without a gradient."""

    declaration: tuple[Any, ...]
    world: Any
    group: ProcessGroup
    is_counted: list[bool]
    labels: list[str] | None


class Recalled(NamedTuple):
    """A call with a list that was checked."""

    checked: Checked
    gradients: list[Leaf]
    parameters: list[Leaf]
    values: list[Tensor]


_CHECKED: KeptByIdentity[Checked] = KeptByIdentity()
"""The last list that begins with a parameter."""


def remember(
    gradients: Sequence[Leaf], parameters: Sequence[Leaf], spec: DistributedSpec, group: ProcessGroup,
    is_counted: list[bool], labels: list[str] | None,
) -> None:  # fmt: skip
    """Keep what follows from a list of DTensor parameters, if nothing else can change it."""
    listed, gradient_of = [leaf.parameter for leaf in parameters], {leaf.position: leaf.tensor for leaf in gradients}
    is_fixed = isinstance(spec.ownership, str | None) or getattr(spec.ownership, "reads_only_meshes", False)
    if (
        is_fixed
        and len(set(map(id, listed))) == len(listed) > 0
        and len(is_counted) == len(gradients)
        and all(leaf.name is None and leaf.position == at for at, leaf in enumerate(parameters))
        and all(isinstance(parameter, torch.nn.Parameter) for parameter in listed)
    ):
        layouts = _layouts(listed, [gradient_of.get(leaf.position) for leaf in parameters])
        if False not in layouts:
            _CHECKED.put(
                listed[0],
                Checked(
                    list(map(weakref.ref, listed)), layouts, _fields(spec), torch.distributed.group.WORLD, group,
                    is_counted, labels,
                ),
            )  # fmt: skip


def recall(listed: Sequence[Any], spec: DistributedSpec) -> Recalled | None:
    """Return the gradients of a list that was checked, and has the same layout; else None."""
    checked = _CHECKED.find(listed[0]) if listed else None
    if (
        checked is None
        or len(listed) != len(checked.parameters)
        or any(known() is not parameter for known, parameter in zip(checked.parameters, listed, strict=True))
        or _fields(spec) != checked.declaration
        or torch.distributed.group.WORLD is not checked.world
        or conditions.is_watched()
    ):
        return None
    gradients = [parameter.grad for parameter in listed]
    if _layouts(listed, gradients) != checked.layouts or not all(map(wants_clipping, listed)):
        return None
    if any(g is None and getattr(p, "main_grad", None) is not None for p, g in zip(listed, gradients, strict=True)):
        return None
    leaves = [Leaf(gradient, at, None, listed[at]) for at, gradient in enumerate(gradients) if gradient is not None]
    values = [leaf.tensor._local_tensor for leaf in leaves]
    return Recalled(
        checked, leaves, [Leaf(parameter, at, None, parameter) for at, parameter in enumerate(listed)], values
    )


def _fields(spec: DistributedSpec) -> tuple[Any, ...]:
    return spec.process_group, spec.ownership, spec.check_numel


def _layouts(parameters: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Return the layout of each tensor: None for None, and False for one that is no DTensor."""
    return [None if tensor is None else getattr(tensor, "_spec", False) for tensor in (*parameters, *gradients)]
