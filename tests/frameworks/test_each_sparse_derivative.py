"""Clips of sparse gradients have the derivatives of clips of dense ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

pytestmark = [pytest.mark.graphs, where(lambda kit: kit.has_coo)]


def sparse_of(kit: Kit, entries: Any) -> Any:
    """The entries in rows and columns as a sparse gradient, half of each entry in either of two places."""
    rows, columns = np.indices((4, 3)).reshape(2, -1)
    indices = np.stack([np.tile(rows, 2), np.tile(columns, 2)])
    if kit.name == "torch":
        import torch

        values = torch.cat([entries / 2] * 2)
        return torch.sparse_coo_tensor(torch.from_numpy(indices), values, (4, 3, 2), check_invariants=True)
    if kit.name == "paddle":
        import paddle

        return paddle.sparse.sparse_coo_tensor(
            indices, paddle.concat([entries / 2] * 2), [4, 3, 2], stop_gradient=False
        )
    from jax import numpy
    from jax.experimental.sparse import BCOO

    return BCOO((numpy.concatenate([entries / 2] * 2), indices.T.astype(np.int32)), shape=(4, 3, 2))


def dense_of(kit: Kit, tensor: Any) -> Any:
    return tensor.todense() if kit.name == "jax" else tensor.to_dense()


@pytest.mark.parametrize("axes", [None, [0, 1], 2, [], 0], ids=str)
def test_sparse_gradients_have_the_derivatives_of_dense_ones(kit: Kit, axes: Any) -> None:
    random = np.random.default_rng(6)
    entries, weights = random.standard_normal((12, 2)), kit.tensor(random.standard_normal((4, 3, 2)))

    def of_sparse(entries: Any) -> Any:
        return dense_of(kit, kit.namespace.clip_by_norm(sparse_of(kit, entries), 1.0, axes=axes)) * weights

    def of_dense(entries: Any) -> Any:
        return kit.namespace.clip_by_norm(entries.reshape([4, 3, 2]), 1.0, axes=axes) * weights

    first, second = (kit.derivative(function, kit.tensor(entries)) for function in (of_sparse, of_dense))
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
