"""JAX: gradients of sharded models are clipped to the same bits as on one device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import reference
from support.jax_layouts import mesh_of
from support.kits import Kit
from support.processes.jax_sharded import assert_equal
from support.tiers import nightly

import unified_clip.jax as uc
import unified_clip.numpy as np_uc


@pytest.fixture(autouse=True)
def _eager_is_exact(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("the exact results are those of eager calls on the host path")


def transformer(params: dict[str, Any], tokens: Any) -> Any:
    x = params["embed"][tokens]
    q, k, v = (jnp.einsum("bsd,dhe->bshe", x, params[name]) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(jnp.einsum("bshe,bthe->bhst", q, k), axis=-1)
    x = x + jnp.einsum("bhst,bthe,hed->bsd", weights, v, params["out"])
    x = x + jax.nn.gelu(x @ params["up"] + params["bias"]) @ params["down"]
    logits = x @ params["embed"].T
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1).mean()


MODEL = {
    "embed": ((16, 8), P("y")), "q": ((8, 2, 4), P(None, "y")), "k": ((8, 2, 4), P(None, "y")),
    "v": ((8, 2, 4), P(None, "y")), "out": ((2, 4, 8), P("y")), "up": ((8, 32), P(None, "y")),
    "bias": ((32,), P("y")), "down": ((32, 8), P("y")),
}  # fmt: skip
"""Shapes, and the sharding of each parameter over the devices of a row."""


@pytest.mark.nightly
@pytest.mark.parametrize("layout", ["data and tensor parallel", "fully sharded"])
@pytest.mark.parametrize("devices", [4, *nightly(1, 2)])
def test_gradients_of_a_transformer_are_clipped(devices: int, layout: str) -> None:
    mesh, random = mesh_of(devices), np.random.default_rng(0)
    specs = {name: P("x", "y") if layout == "fully sharded" and len(shape) == 2 else spec
           for name, (shape, spec) in MODEL.items()}  # fmt: skip
    params = {
        name: jax.device_put((random.standard_normal(shape) / 3).astype(np.float32), NamedSharding(mesh, specs[name]))
        for name, (shape, _) in MODEL.items()
    }
    tokens = jax.device_put(random.integers(0, 16, (4, 6)), NamedSharding(mesh, P("x")))

    @jax.jit
    def step(params: Any, tokens: Any) -> Any:
        grads = jax.grad(transformer)(params, tokens)
        clipped, norm = uc.clip_by_global_norm(grads, 0.5)
        return grads, clipped, norm

    grads, clipped, norm = step(params, tokens)
    gathered = {name: np.asarray(grad) for name, grad in grads.items()}
    assert float(norm) == reference.norm(gathered.values())
    assert norm > 0.5
    expected = np_uc.clip_by_global_norm(gathered, 0.5)[0]
    assert_equal([clipped[name] for name in MODEL], [expected[name] for name in MODEL])
    eager, eager_norm = uc.clip_by_global_norm(grads, 0.5)
    assert float(eager_norm) == float(norm)
    assert_equal([eager[name] for name in MODEL], [expected[name] for name in MODEL])


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [4, *nightly(1, 2)])
def test_gradients_of_layers_in_shard_map_are_clipped(devices: int) -> None:
    mesh, random = mesh_of(devices), np.random.default_rng(1)
    specs = {"up": P(None, "y"), "bias": P("y"), "down": P("y"), "last": P()}
    shapes = {"up": (8, 32), "bias": (32,), "down": (32, 8), "last": (8,)}
    params = {
        name: jax.device_put(random.standard_normal(shapes[name]).astype(np.float32), NamedSharding(mesh, spec))
        for name, spec in specs.items()
    }
    batch = jax.device_put(random.standard_normal((8, 8)).astype(np.float32), NamedSharding(mesh, P("x")))

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jnp.tanh(batch @ params["up"] + params["bias"])
            out = jax.lax.psum(hidden @ params["down"], "y") + params["last"]
            return jax.lax.pmean((out**2).mean(), "x")

        grads = jax.grad(loss)(params)
        clipped, norm = uc.clip_by_global_norm(grads, 0.5)
        return grads, clipped, norm

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(specs, P("x")), out_specs=(specs, specs, P()))
    grads, clipped, norm = jax.jit(mapped)(params, batch)
    gathered = {name: np.asarray(grad) for name, grad in grads.items()}
    assert float(norm) == reference.norm(gathered.values())
    expected = np_uc.clip_by_global_norm(gathered, 0.5)[0]
    assert_equal([clipped[name] for name in specs], [expected[name] for name in specs])
