"""`unified-clip verify` compares a step that uses optax's own clipping with its port to unified_clip."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.port.verify_pairs import NUMPY, called_names, largest_ulps, verify_as_json

pytest.importorskip("optax")

OPTAX = """
import jax
import jax.numpy as jnp
import optax

def step(weights, batches):
    optimizer = optax.chain(optax.CLIP, optax.sgd(0.25))
    params = {name: jnp.asarray(array) for name, array in weights.items()}
    state = optimizer.init(params)

    def loss(params, batch):
        return jnp.mean((batch["x"] @ params["weight"] + params["bias"] - batch["y"]) ** 2)

    JIT
    def one(params, state, batch):
        updates, state = optimizer.update(jax.grad(loss)(params, batch), state, params)
        return optax.apply_updates(params, updates), state

    for batch in batches:
        params, state = one(params, state, batch)
        yield params, None
"""


@pytest.mark.nightly
@pytest.mark.parametrize("jit", ["", "@jax.jit"])
@pytest.mark.parametrize(
    ("clip", "replacement"),
    [
        ("clip_by_global_norm(0.5)", "grads, _ = uc.clip_by_global_norm(grads, 0.5)"),
        ("clip_by_global_norm(max_norm=0.5)", "grads, _ = uc.clip_by_global_norm(grads, 0.5)"),
        ("clip(0.25)", "uc.clip_grad_value_(grads, 0.25)"),
    ],
)
def test_optax_is_recorded_inside_jit_and_outside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clip: str, replacement: str, jit: str
) -> None:
    old = OPTAX.replace("CLIP", clip).replace("JIT", jit)
    data = verify_as_json(tmp_path, capsys, old, NUMPY.replace("CLIP", replacement), "--max-ulp", "64")
    assert data["same"]
    assert called_names(data, "old") == {f"optax.{clip.partition('(')[0]}"}
    assert all(len(step["old"]) == 1 for step in data["steps"])
    assert largest_ulps(data, "tensors") <= 64
