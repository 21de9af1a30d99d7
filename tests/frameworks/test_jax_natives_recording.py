"""Recordings of optax's own clipping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import unified_clip
from unified_clip import ClipWarning
from unified_clip.jax import transforms
from unified_clip.recording import runs

GRADIENTS = {"a": [3.0, -4.0], "b": [[12.0]]}


@pytest.mark.parametrize("rate", [0.1, optax.exponential_decay(0.1, 1, 0.5)], ids=["constant", "schedule"])
@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize("module", [optax, transforms], ids=["optax", "unified_clip"])
def test_steps_of_optimizers_have_their_learning_rate_and_place(
    tmp_path: Path, rate: Any, compile: Callable[..., Any], module: Any
) -> None:
    gradients = jax.tree.map(jnp.array, GRADIENTS, is_leaf=lambda each: isinstance(each, list))
    for name, is_late in (("before", False), ("after", True)):
        with unified_clip.record(tmp_path / f"{name}.jsonl"):
            parts = [module.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.5)]
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
    gradients = jax.tree.map(jnp.array, GRADIENTS, is_leaf=lambda each: isinstance(each, list))
    with unified_clip.record(tmp_path / "run.jsonl"):
        transformation = optax.chain(optax.clip(1.0), getattr(optax, optimizer)(0.1, **arguments))
        transformation.update(gradients, transformation.init(gradients), gradients)
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert step.settings.items() >= settings.items()


def test_a_step_that_cannot_be_reported_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report_step(*_: Any) -> None:
        raise ZeroDivisionError

    params = {"a": jnp.ones(2)}
    with unified_clip.record(tmp_path / "run.jsonl"):
        monkeypatch.setattr("unified_clip.recording.natives.optax.report_step", report_step)
        transformation = optax.sgd(0.5)
        with pytest.warns(ClipWarning, match="a step of an optimizer is not recorded: ZeroDivisionError"):
            updates, _ = transformation.update(params, transformation.init(params), params)
    assert updates["a"].tolist() == [-0.5, -0.5]
