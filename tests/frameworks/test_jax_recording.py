"""Recording on JAX: graphs that are traced while a recording is open, and optax's clips and optimizers."""

from __future__ import annotations

import json
from collections.abc import Callable
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
from unified_clip.recording import runs
from unified_clip.recording.natives import optax as natives

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


LISTS = {"a": [3.0, -4.0], "b": [[12.0]]}


def by_unified_clip(threshold: float) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: uc.clip_by_global_norm(updates, threshold)[0])


@pytest.mark.parametrize("rate", [0.1, optax.exponential_decay(0.1, 1, 0.5)], ids=["constant", "schedule"])
@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize(
    "clip", [lambda limit: optax.clip_by_global_norm(limit), by_unified_clip], ids=["optax", "unified_clip"]
)
def test_steps_of_optimizers_have_their_learning_rate_and_place(
    tmp_path: Path, rate: Any, compile: Callable[..., Any], clip: Callable[[float], Any]
) -> None:
    gradients = jax.tree.map(jnp.array, LISTS, is_leaf=lambda each: isinstance(each, list))
    for name, is_late in (("before", False), ("after", True)):
        with unified_clip.record(tmp_path / f"{name}.jsonl"):
            parts = [clip(1.0), optax.adamw(rate, weight_decay=0.5)]
            transformation = optax.chain(*(parts[::-1] if is_late else parts))
            state, update = transformation.init(gradients), compile(transformation.update)
            for _ in range(3):
                _, state = update(gradients, state, gradients)
        run = runs.read(tmp_path / f"{name}.jsonl")
        steps = sorted(run.optimizer_steps, key=lambda step: step.calls)
        assert [step.calls for step in steps] == ([0, 1, 2] if is_late else [1, 2, 3])
        rates = [0.1, 0.05, 0.025] if callable(rate) else [0.1] * 3
        assert sorted((step.settings["lr"] for step in steps), reverse=True) == pytest.approx(rates)
        assert {step.settings["weight_decay"] for step in steps} == {0.5}


@pytest.mark.parametrize("inner_jit", [False, True])
def test_what_multi_steps_drops_is_not_recorded_and_does_not_end_the_training(tmp_path: Path, inner_jit: bool) -> None:
    """optax computes an update for each micro-batch. A jitted optimizer inside keeps its graph for later shapes."""
    with unified_clip.record(tmp_path / "run.jsonl"):
        adam = optax.adam(0.1)
        inner = optax.GradientTransformation(adam.init, jax.jit(adam.update) if inner_jit else adam.update)
        accumulated = optax.MultiSteps(inner, every_k_schedule=2).gradient_transformation()
        transformation = optax.chain(optax.clip_by_global_norm(1.0), accumulated)
        weight = jnp.ones(2)
        state, update = transformation.init(weight), jax.jit(lambda x, s, w: transformation.update(w * x.sum(), s, w))
        with pytest.warns(ClipWarning, match=r"a step of optax.MultiSteps is not recorded"):
            _, state = update(jnp.ones(3), state, weight)
        for size in (3, 5, 5):
            _, state = update(jnp.ones(size), state, weight)
    run = runs.read(tmp_path / "run.jsonl")
    assert len(run.lines) == 4
    assert len(run.optimizer_steps) == 0


@pytest.mark.parametrize("clip_in_graph", [False, True])
@pytest.mark.parametrize("step_in_graph", [False, True])
def test_a_clip_and_a_step_may_be_in_two_graphs_or_in_none(
    tmp_path: Path, clip_in_graph: bool, step_in_graph: bool
) -> None:
    weight = jnp.ones(2)
    with unified_clip.record(tmp_path / "run.jsonl"):
        clip, sgd = optax.clip_by_global_norm(1.0), optax.sgd(0.1)
        clipped = jax.jit(clip.update) if clip_in_graph else clip.update
        state = sgd.init(weight)
        for number in range(3):
            update = jax.jit(sgd.update) if step_in_graph and number else sgd.update
            gradient, _ = clipped(weight, clip.init(weight))
            _, state = update(gradient, state)
    assert [step.calls for step in runs.read(tmp_path / "run.jsonl").optimizer_steps] == [1, 2, 3]


@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
def test_every_optimizer_of_a_partition_follows_the_clip(tmp_path: Path, compile: Callable[..., Any]) -> None:
    params = {"fast": jnp.ones(2), "slow": jnp.ones(2)}
    with unified_clip.record(tmp_path / "run.jsonl"):
        parts = {"fast": optax.sgd(0.1), "slow": optax.sgd(0.01)}
        transformation = optax.chain(optax.clip_by_global_norm(1.0), optax.partition(parts, {n: n for n in params}))
        state, update = transformation.init(params), compile(transformation.update)
        for _ in range(3):
            _, state = update(params, state, params)
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert sorted((step.calls, step.settings["lr"]) for step in steps) == [
        (call, pytest.approx(rate)) for call in (1, 2, 3) for rate in (0.01, 0.1)
    ]


@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize(
    ("mask", "decays"),
    [
        ({"a": True, "b": False}, (0.0, 0.5)),  # "b" has two parameters
        (lambda tree: jax.tree.map(lambda each: each.size > 1, tree), (0.0, 0.5)),
        (lambda tree: jax.tree.map(lambda each: False, tree), 0.0),
        (True, 0.5),
    ],
)
def test_a_mask_of_weight_decay_is_recorded(
    tmp_path: Path, compile: Callable[..., Any], mask: Any, decays: Any
) -> None:
    params = {"a": jnp.ones(2), "b": [jnp.ones(2), jnp.ones(1)]}
    with unified_clip.record(tmp_path / "run.jsonl"):
        parts = [optax.clip_by_global_norm(1.0), optax.adamw(0.1, weight_decay=0.5, mask=mask)]
        transformation = optax.chain(*parts)
        compile(transformation.update)(params, transformation.init(params), params)
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert step.settings["weight_decay"] == decays


@pytest.mark.parametrize(
    ("optimizer", "arguments", "settings"),
    [
        ("rmsprop", {"decay": 0.75, "centered": True}, {"alpha": 0.75, "centered": True}),
        ("adadelta", {"rho": 0.75}, {"alpha": 0.75}),
        ("signum", {"beta": 0.75}, {"momentum": 0.75}),
    ],
)
def test_settings_of_the_moments_are_recorded(
    tmp_path: Path, optimizer: str, arguments: dict[str, Any], settings: dict[str, Any]
) -> None:
    with unified_clip.record(tmp_path / "run.jsonl"):
        transformation = optax.chain(optax.clip(1.0), getattr(optax, optimizer)(0.1, **arguments))
        transformation.update(GRADIENTS, transformation.init(GRADIENTS), GRADIENTS)
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert step.settings.items() >= settings.items()


def test_each_optimizer_of_optax_is_recorded_once_with_its_name(tmp_path: Path) -> None:
    """Some are functools.partial objects."""
    known = [name for name in natives.OPTIMIZERS if hasattr(optax, name)]
    assert {"sgd", "nadam"} <= {*known}
    with unified_clip.record(tmp_path / "run.jsonl"):
        for name in known:
            transformation = optax.chain(optax.clip(1.0), getattr(optax, name)(0.1))
            transformation.update(GRADIENTS, transformation.init(GRADIENTS), GRADIENTS)
    steps = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert [step.optimizer for step in steps] == [f"optax.{name}" for name in known]
