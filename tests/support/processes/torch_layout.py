"""Parts of the layouts in `torch_sharded_layouts.py`: gradients with known values, meshes, and pieces of gradients."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

WIDTH, HIDDEN, WORDS = 8, 12, 10
THRESHOLD = 0.75


class Piece(NamedTuple):
    name: str
    size: int
    positions: np.ndarray
    """The index of each element in the flattened full gradient."""

    values: np.ndarray


def join_pieces(pieces: Iterable[Piece]) -> dict[str, np.ndarray]:
    """Return the full arrays by name. Copies must be equal, and no element may be missing."""
    full: dict[str, np.ndarray] = {}
    for name, size, positions, values in pieces:
        present = full.setdefault(name, np.full(size, np.nan, np.float32))[positions]
        assert ((present == values) | np.isnan(present)).all(), f"copies of {name}, of {size} elements, differ"
        full[name][positions] = values
    assert not any(np.isnan(array).any() for array in full.values())
    return full


class Layout(NamedTuple):
    parameters: Sequence[Any]
    pieces: Callable[[bool], list[Piece]]
    """A function that returns the pieces of the current gradients. Every rank has to call it. The argument is True to
    sum `Partial` gradients, and False for local partial sums."""

    names: dict[str, Any] = {}  # noqa: RUF012
    has_padding: bool = False
    """Whether the gradients have more elements than the model."""


@functools.cache
def mesh_of(first: str, second: str) -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=(first, second))


@functools.cache
def row(name: str) -> DeviceMesh:
    return init_device_mesh("cpu", (4,), mesh_dim_names=(name,))


def gradient_of(name: str, shape: Sequence[int]) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))


def parameter_with(gradient: Tensor, **attributes: Any) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    for name, value in attributes.items():
        setattr(parameter, name, value)
    return parameter
