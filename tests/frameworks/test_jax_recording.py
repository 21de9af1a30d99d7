"""Recording on JAX: what is traced while a recording is open is recorded whenever it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import unified_clip
import unified_clip.jax as uc
from unified_clip import ClipWarning

GRADIENTS = {"w": np.array([[3.0], [4.0]], np.float32), "b": np.array([12.0], np.float32)}
"""NumPy arrays, because JAX must not start before the kit has set the number of devices."""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_jitted_call_is_recorded_with_its_coefficient_in_float64(tmp_path: Path) -> None:
    clip = jax.jit(lambda gradients: uc.clip_by_global_norm(gradients, 1.0))
    with unified_clip.record(tmp_path / "run.jsonl", norms=True) as run:
        for _ in range(2):
            run.next_step()
            clip(GRADIENTS)
    clip(GRADIENTS)  # no recording is open
    result = lines(tmp_path / "run.jsonl")
    assert [(line["step"], line["norm"], line["coef"]) for line in result] == [(1, 13.0, 1 / 13), (2, 13.0, 1 / 13)]
    assert result[0]["seconds"] is None
    gradients = {"b": {"shape": [1], "norm": 12.0}, "w": {"shape": [2, 1], "norm": 5.0}}
    samples = {name: each.pop("sample") for name, each in result[0]["parameters"].items()}
    assert result[0]["parameters"] == gradients
    assert {name: {*each} for name, each in samples.items()} == {"b": {12.0}, "w": {3.0, 4.0}}


@pytest.mark.nightly
def test_loops_vectors_and_derivatives_are_recorded_as_often_as_they_run(tmp_path: Path) -> None:
    with unified_clip.record(tmp_path / "run.jsonl"):
        jax.vmap(lambda x: uc.clip_by_norm(x, 1.0))(jnp.array([[3.0, 4.0], [6.0, 8.0]]))
        jax.grad(lambda x: uc.clip_by_norm(x, 1.0).sum())(jnp.array([3.0, 4.0]))
        jax.lax.scan(lambda x, _: (uc.clip_by_norm(2 * x, 8.0), None), jnp.array([3.0, 4.0]), length=2)
    norms = [line["norm"][0] for line in lines(tmp_path / "run.jsonl")]
    assert sorted(norms[:3]) == [5.0, 5.0, 10.0]
    assert norms[3:] == [10.0, 16.0]


def test_transformations_of_optax_are_recorded(tmp_path: Path) -> None:
    optimizer = optax.chain(uc.transforms.clip_grad_norm(1.0), uc.transforms.clip_by_norm(0.5), optax.sgd(0.1))
    step = jax.jit(lambda gradients, state: optimizer.update(gradients, state))
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        step(GRADIENTS, optimizer.init(GRADIENTS))
    first, second = lines(tmp_path / "run.jsonl")
    assert (first["call"], first["norm"], first["eps"]) == ("transforms.clip_grad_norm", 13.0, 1e-6)
    assert (second["call"], len(second["norm"]), len(second["parameters"])) == ("transforms.clip_by_norm", 2, 2)


def test_transformations_that_are_made_anew_for_each_step_have_different_numbers(tmp_path: Path) -> None:
    """The address of a deleted transformation can be that of the next one."""
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        injected = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), injected)
        state = optimizer.init(GRADIENTS)
        for _ in range(20):
            _, state = optimizer.update(GRADIENTS, state)
    instances = [line["instance"] for line in lines(tmp_path / "run.jsonl") if "instance" in line]
    assert len({*instances}) == len(instances) == 20


def test_a_call_that_was_traced_before_is_not_recorded_and_the_recording_says_so(tmp_path: Path) -> None:
    clip = jax.jit(lambda gradients: uc.clip_by_global_norm(gradients, 1.0))
    clip(GRADIENTS)
    before = pytest.warns(ClipWarning, match="Graphs that were compiled before the recording began")
    with before, unified_clip.record(tmp_path / "run.jsonl"):
        clip(GRADIENTS)


def test_gradients_inside_a_graph_are_not_stored_and_the_recording_says_so(tmp_path: Path) -> None:
    clip = jax.jit(lambda gradients: uc.clip_by_global_norm(gradients, 1.0))
    with unified_clip.record(tmp_path / "run.jsonl", gradients_every=1), pytest.warns(ClipWarning, match="not stored"):
        clip(GRADIENTS)
    assert "gradients" not in lines(tmp_path / "run.jsonl")[0]
