"""Train with `clip.toml` on JAX, and write a line for every clip: python examples/train_optax.py RECORDS.jsonl"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import data
import jax
import jax.numpy as jnp
import optax

import unified_clip
from unified_clip import ClipConfig
from unified_clip.integrations.optax_transforms import last, rate


def loss_of(params: Any, inputs: Any, targets: Any) -> Any:
    hidden = jnp.tanh(inputs @ params["hidden.weight"] + params["hidden.bias"])
    return ((hidden @ params["output.weight"] + params["output.bias"] - targets) ** 2).mean()


def main(records: str) -> None:
    params = jax.tree.map(jnp.asarray, data.weights())
    clip = ClipConfig.load(Path(__file__).with_name("clip.toml")).as_optax()
    optimizer = optax.chain(clip, optax.sgd(data.LEARNING_RATE))
    state = optimizer.init(params)
    with unified_clip.record(records, norms=True):
        for inputs, targets in data.batches():
            loss, grads = jax.jit(jax.value_and_grad(loss_of))(params, inputs, targets)
            updates, state = optimizer.update(grads, state)  # nonfinite = "raise" needs eager steps
            params = optax.apply_updates(params, updates)
    print({"loss": loss.item(), **last(state).metrics(), "clip_rate": rate(state)})


if __name__ == "__main__":
    main(sys.argv[1])
