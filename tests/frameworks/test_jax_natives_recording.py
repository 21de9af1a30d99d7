"""Recordings of optax's own clipping."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from support.agreement import agreeing
from support.optimizer_rules import EPS, RATE, check_rules

import unified_clip
from unified_clip import ClipWarning
from unified_clip.jax import transforms
from unified_clip.recording import runs

GRADIENTS = {"a": [3.0, -4.0], "b": [[12.0]]}


def lines(path: Path) -> list[dict[str, Any]]:
    result = map(json.loads, path.read_text().splitlines()[1:])
    return [line for line in result if "call" in line]


@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: optax.clip_by_global_norm(1.0), {"call": "optax.clip_by_global_norm", "norm": 13.0, "coef": 1 / 13}),
        (lambda: optax.clip(1.0), {"call": "optax.clip", "rule": "value", "threshold": [-1.0, 1.0], "norm": None}),
        (lambda: optax.chain(optax.clip_by_global_norm(50.0), optax.adam(0.1)), {"coef": 1.0, "clipped": False}),
    ],
)
def test_a_transformation_is_an_event_of_each_update(
    tmp_path: Path, make: Callable[[], Any], expected: dict[str, Any], compile: Callable[..., Any]
) -> None:
    def updates() -> list[bytes]:
        transformation = make()
        gradients = jax.tree.map(jnp.array, GRADIENTS, is_leaf=lambda each: isinstance(each, list))
        state, update = transformation.init(gradients), compile(transformation.update)
        results = []
        for _ in range(2):
            result, state = update(gradients, state, gradients)
            results += [each.tobytes() for each in jax.tree.leaves(result)]
        return results

    alone = updates()
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        assert updates() == alone
    output = lines(tmp_path / "run.jsonl")
    assert [line["step"] for line in output] == [1, 2]
    for line in output:
        assert {key: line[key] for key in expected} == expected
        assert {name: each["norm"] for name, each in line["parameters"].items()} == {"a": 5.0, "b": 12.0}


@pytest.mark.parametrize("name", ["clip_by_global_norm", "clip"])
@pytest.mark.parametrize("compile", [jax.jit, lambda function: function], ids=["jit", "eager"])
def test_events_agree_with_those_of_verify(tmp_path: Path, name: str, compile: Callable[..., Any]) -> None:
    gradients = jax.tree.map(jnp.array, GRADIENTS, is_leaf=lambda each: isinstance(each, list))
    with agreeing(tmp_path, calls=2):
        update = compile(getattr(optax, name)(1.0).update)
        for _ in range(2):
            update(gradients, optax.EmptyState(), gradients)


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


def test_an_optimizer_under_a_condition_has_no_negative_number_of_clips(tmp_path: Path) -> None:
    with unified_clip.record(tmp_path / "run.jsonl"):
        parts = {name: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)) for name in ("actor", "critic")}
        weights = {name: jnp.ones(2) for name in parts}
        states = {name: part.init(weights[name]) for name, part in parts.items()}

        @jax.jit
        def step(number: Any, states: Any) -> Any:
            def of(name: str) -> Any:
                return states | {name: parts[name].update(weights[name], states[name], weights[name])[1]}

            return jax.lax.cond(number % 3 == 2, lambda: of("actor"), lambda: of("critic"))

        for number in range(6):
            states = step(number, states)
    run = runs.read(tmp_path / "run.jsonl")
    # a graph can report a clip before or after its step
    assert all(abs(step.calls - number) <= 1 for number, step in enumerate(run.optimizer_steps, start=1))
    assert len(run.lines) == len(run.optimizer_steps) == 6


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


def test_an_injected_learning_rate_is_recorded(tmp_path: Path) -> None:
    gradients = jax.tree.map(jnp.array, GRADIENTS, is_leaf=lambda each: isinstance(each, list))
    with unified_clip.record(tmp_path / "run.jsonl"):
        transformation = optax.chain(
            optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
        )
        state, update = transformation.init(gradients), jax.jit(transformation.update)
        _, state = update(gradients, state, gradients)
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert (step.optimizer, step.settings["lr"]) == ("optax.sgd", pytest.approx(0.1))


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


def test_the_rules_of_its_optimizers_are_identified() -> None:
    def weights_of(name: str, gradients: Sequence[Any]) -> list[Any]:
        decay = {"weight_decay": 0.0} if name == "adamw" else {}
        optimizer = getattr(optax, name)(RATE, eps=EPS, **decay)
        weights = [jnp.zeros(len(gradients[0]))]
        state = optimizer.init(weights[0])
        for gradient in gradients:
            update, state = optimizer.update(jnp.array(gradient), state, weights[-1])
            weights.append(optax.apply_updates(weights[-1], update))
        return weights

    check_rules("optax", optax, weights_of)
