"""Clips of sparse gradients have the derivatives of clips of dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

pytestmark = [pytest.mark.graphs, where(lambda kit: kit.has_coo)]


def sparse_of(kit: Kit, entries: Any, shape: tuple[int, ...]) -> Any:
    """A sparse gradient with the sparse axes `shape` and one dense axis, with half of each entry in either of two
    places."""
    indices, shape = np.tile(np.indices(shape).reshape(len(shape), -1), 2), (*shape, 2)
    if kit.name == "torch":
        import torch

        values = torch.cat([entries / 2] * 2)
        return torch.sparse_coo_tensor(torch.from_numpy(indices), values, shape, check_invariants=True)
    if kit.name == "paddle":
        import paddle

        values = paddle.concat([entries / 2] * 2)
        return paddle.sparse.sparse_coo_tensor(indices, values, list(shape), stop_gradient=False)
    from jax import numpy
    from jax.experimental.sparse import BCOO

    return BCOO((numpy.concatenate([entries / 2] * 2), indices.T.astype(np.int32)), shape=shape)


def dense_of(kit: Kit, tensor: Any) -> Any:
    return tensor.todense() if kit.name == "jax" else tensor.to_dense()


@pytest.mark.parametrize(
    ("shape", "axes"), [((4, 3), None), *(((12,), axes) for axes in (None, [0, 1], 1, [], 0))], ids=str
)
def test_sparse_gradients_have_the_derivatives_of_dense_ones(kit: Kit, shape: tuple[int, ...], axes: Any) -> None:
    random = np.random.default_rng(6)
    entries, weights = random.standard_normal((12, 2)), kit.tensor(random.standard_normal((*shape, 2)))

    def of_sparse(entries: Any) -> Any:
        return dense_of(kit, kit.namespace.clip_by_norm(sparse_of(kit, entries, shape), 1.0, axes=axes)) * weights

    def of_dense(entries: Any) -> Any:
        return kit.namespace.clip_by_norm(entries.reshape([*shape, 2]), 1.0, axes=axes) * weights

    first, second = (kit.derivative(function, kit.tensor(entries)) for function in (of_sparse, of_dense))
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
