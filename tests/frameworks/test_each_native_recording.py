"""Recordings of each framework's own clips and optimizers: the events, and what `compare` reads from them."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.agreement import agreeing
from support.kits import Kit
from support.optimizer_rules import EPS, RATE, check_rules
from support.tiers import where

import unified_clip
from unified_clip.recording import runs

WEIGHTS = [np.array([3.0, -4.0], np.float32), np.array([[12.0], [84.0]], np.float32)]
"""They are also their gradients, since the loss is half of the sum of their squares."""

SECOND = math.sqrt(144 + 7056)
TOTAL = math.sqrt(25 + SECOND**2)


class Torch:
    def __init__(self) -> None:
        import torch

        self.torch, self.optim, self.utils = torch, torch.optim, torch.nn.utils

    def weights(self) -> list[Any]:
        return [self.torch.nn.Parameter(self.torch.from_numpy(array.copy())) for array in WEIGHTS]

    def gradients(self, weights: list[Any], factor: float = 1.0) -> list[Any]:
        (sum((each**2).sum() for each in weights) * (factor / 2)).backward()
        return [each.grad for each in weights]

    def optimizer(self, make: Callable[..., Any], weights: list[Any]) -> Any:
        return make(weights, lr=0.1)

    def step(self, optimizer: Any, weights: list[Any], gradients: list[Any]) -> None:
        optimizer.step()
        optimizer.zero_grad()


class Paddle(Torch):
    def __init__(self) -> None:
        import paddle

        self.torch, self.optim, self.utils, self.nn = paddle, paddle.optimizer, paddle.nn.utils, paddle.nn

    def weights(self) -> list[Any]:
        make = self.nn.initializer.Assign
        return [self.torch.create_parameter(a.shape, "float32", default_initializer=make(a)) for a in WEIGHTS]

    def optimizer(self, make: Callable[..., Any], weights: list[Any]) -> Any:
        return make(learning_rate=0.1, parameters=weights)

    def step(self, optimizer: Any, weights: list[Any], gradients: list[Any]) -> None:
        optimizer.step()
        optimizer.clear_grad()

    def by_class(self, name: str) -> Callable[[list[Any], list[Any]], list[Any]]:
        def clip(weights: list[Any], gradients: list[Any]) -> list[Any]:
            clipped = getattr(self.nn, name)(0.5)
            self.optimizer(partial(self.optim.SGD, grad_clip=clipped), weights).step()
            return weights

        return clip


class Tensorflow:
    def __init__(self) -> None:
        import keras
        import tensorflow

        self.tf, self.optim, self.v1 = tensorflow, keras.optimizers, tensorflow.compat.v1.train

    def weights(self) -> list[Any]:
        return [self.tf.Variable(array) for array in WEIGHTS]

    def gradients(self, weights: list[Any], factor: float = 1.0) -> list[Any]:
        with self.tf.GradientTape() as tape:
            loss = self.tf.add_n([self.tf.reduce_sum(each**2) for each in weights]) * (factor / 2)
        return tape.gradient(loss, weights)

    def optimizer(self, make: Callable[..., Any], weights: list[Any]) -> Any:
        return make(0.1)

    def step(self, optimizer: Any, weights: list[Any], gradients: list[Any]) -> None:
        optimizer.apply_gradients(list(zip(gradients, weights, strict=True)))

    def in_graph(self, clip: Callable[[list[Any]], Any]) -> Callable[[list[Any], list[Any]], list[Any]]:
        def run(weights: list[Any], gradients: list[Any]) -> list[Any]:
            step = lambda: clip(self.gradients(weights))  # noqa: E731
            return self.tf.function(step)()

        return run

    def by_keras(self, setting: str) -> Callable[[list[Any], list[Any]], list[Any]]:
        def clip(weights: list[Any], gradients: list[Any]) -> list[Any]:
            self.step(self.optim.SGD(0.1, **{setting: 0.5}), weights, gradients)
            return weights

        return clip


class Jax:
    def __init__(self) -> None:
        import jax
        import optax

        self.jax, self.optim = jax, optax

    def weights(self) -> list[Any]:
        return [self.jax.numpy.asarray(array) for array in WEIGHTS]

    def gradients(self, weights: list[Any]) -> list[Any]:
        return weights

    def by(self, make: Callable[[], Any], jitted: bool) -> Callable[[list[Any], list[Any]], list[Any]]:
        def clip(weights: list[Any], gradients: list[Any]) -> list[Any]:
            transformation = make()
            update = self.jax.jit(transformation.update) if jitted else transformation.update
            return update(gradients, transformation.init(weights), weights)[0]

        return clip


GLOBAL = {"rule": "global", "norm": TOTAL, "clipped": True}
VALUE = {"rule": "value", "norm": None}


def clips(name: str, of: Any) -> dict[str, tuple[Callable[[list[Any], list[Any]], Any], list[dict[str, Any]]]]:
    """Return {title: (clip of weights and gradients, which returns tensors; the expected fields of its events)}."""
    if name == "torch":
        utils = of.utils
        return {
            "norm": (
                lambda w, g: [utils.clip_grad_norm_(iter(w), 1.0, foreach=True), *g],
                [GLOBAL | {"call": "torch.nn.utils.clip_grad_norm_", "coef": 1 / (TOTAL + 1e-6), "eps": 1e-6}],
            ),
            "order inf": (
                lambda w, g: [utils.clip_grad_norm_(w, 1000.0, math.inf), *g],
                [{"norm": 84.0, "coef": 1.0, "clipped": False, "norm_type": "inf"}],
            ),
            "passed norm": (
                lambda w, g: [utils.clip_grads_with_norm_(w, 1.0, of.torch.tensor(4.0)), *g][1:],
                [{"call": "torch.nn.utils.clip_grads_with_norm_", "passed_norm": 4.0, "coef": 1 / (4 + 1e-6)}],
            ),
            "value": (
                lambda w, g: [utils.clip_grad_value_(w, 2.5), *g][1:],
                [VALUE | {"call": "torch.nn.utils.clip_grad_value_", "threshold": [-2.5, 2.5]}],
            ),
        }
    if name == "paddle":
        return {
            "norm": (
                lambda w, g: [of.utils.clip_grad_norm_(w, 1.0), *g],
                [GLOBAL | {"call": "paddle.nn.utils.clip_grad_norm_"}],
            ),
            "value": (
                lambda w, g: [of.utils.clip_grad_value_(w, 2.5), *g][1:],
                [VALUE | {"call": "paddle.nn.utils.clip_grad_value_", "threshold": [-2.5, 2.5]}],
            ),
            "global": (
                of.by_class("ClipGradByGlobalNorm"),
                [GLOBAL | {"call": "paddle.nn.ClipGradByGlobalNorm", "coef": 0.5 / TOTAL}],
            ),
            "each": (of.by_class("ClipGradByNorm"), [{"call": "paddle.nn.ClipGradByNorm", "norm": [5.0, SECOND]}]),
            "class value": (of.by_class("ClipGradByValue"), [VALUE | {"threshold": [-0.5, 0.5]}]),
        }
    if name == "tensorflow":
        tf = of.tf
        by_global = lambda g: tf.clip_by_global_norm(g, 1.0)[0]  # noqa: E731
        each = lambda g: [tf.clip_by_norm(grad, 6.0) for grad in g]  # noqa: E731
        of_each = [{"norm": [5.0], "coef": [1.0], "clipped": False}, {"norm": [SECOND], "clipped": True}]
        return {
            "norm": (lambda w, g: by_global(g), [GLOBAL | {"call": "tf.clip_by_global_norm", "coef": 1 / TOTAL}]),
            "norm in a graph": (of.in_graph(by_global), [GLOBAL | {"eps": 0.0}]),
            "each": (lambda w, g: each(g), of_each),
            "each in a graph": (of.in_graph(each), of_each),
            "value": (lambda w, g: [tf.clip_by_value(g[0] / 2.0, -1.0, 1.0)], [VALUE | {"threshold": [-1.0, 1.0]}]),
            **{
                setting: (of.by_keras(setting), [{"call": f"keras.optimizers.SGD({setting}=)", "rule": rule}])
                for setting, rule in (("clipnorm", "each"), ("global_clipnorm", "global"), ("clipvalue", "value"))
            },
        }
    optax = of.optim
    made = {
        "norm": (lambda: optax.clip_by_global_norm(1.0), GLOBAL | {"call": "optax.clip_by_global_norm"}),
        "value": (lambda: optax.clip(1.0), VALUE | {"call": "optax.clip", "threshold": [-1.0, 1.0]}),
        "in a chain": (lambda: optax.chain(optax.clip_by_global_norm(500.0), optax.adam(0.1)), {"coef": 1.0}),
    }
    return {
        f"{title}, {'jit' if jitted else 'eager'}": (of.by(make, jitted), [fields])
        for title, (make, fields) in made.items()
        for jitted in (False, True)
    }


FRAMEWORKS: dict[str, Any] = {"torch": Torch, "paddle": Paddle, "tensorflow": Tensorflow, "jax": Jax}
pytestmark = [pytest.mark.graphs, where(lambda kit: kit.name in FRAMEWORKS)]


@pytest.fixture
def framework(kit: Kit) -> Any:
    return FRAMEWORKS[kit.name]()


def events_of(path: Path) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, path.read_text().splitlines()[1:]) if "call" in line]


def close(value: Any) -> Any:
    is_number = isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float))
    return pytest.approx(value, rel=1e-6) if is_number else value


@pytest.mark.parametrize("norms", [False, True])
def test_a_native_clip_is_an_event_and_its_results_are_unchanged(
    kit: Kit, framework: Any, tmp_path: Path, norms: bool
) -> None:
    for number, (title, (clip, expected)) in enumerate(clips(kit.name, framework).items()):
        held = [framework.weights() for _ in range(2)]
        alone = [kit.bits(each) for each in clip(held[0], framework.gradients(held[0]))]
        with unified_clip.record(tmp_path / f"{number}.jsonl", norms=norms):
            assert [kit.bits(each) for each in clip(held[1], framework.gradients(held[1]))] == alone, title
        events = events_of(tmp_path / f"{number}.jsonl")
        assert len(events) == len(expected), title
        for event, fields in zip(events, expected, strict=True):
            assert event["watched"]
            assert {key: event[key] for key in fields} == {key: close(value) for key, value in fields.items()}, title
            assert ("parameters" in event) == norms


def test_events_agree_with_those_of_verify(kit: Kit, framework: Any, tmp_path: Path) -> None:
    for number, (clip, expected) in enumerate(clips(kit.name, framework).values()):
        weights = framework.weights()
        (tmp_path / str(number)).mkdir()
        with agreeing(tmp_path / str(number), calls=len(expected)):
            clip(weights, framework.gradients(weights))


@where(lambda kit: kit.name != "jax")  # which computes no loss
@pytest.mark.filterwarnings("ignore:.*No clip calls:unified_clip.ClipWarning")
def test_the_losses_of_backward_passes_are_recorded_with_each_step(kit: Kit, framework: Any, tmp_path: Path) -> None:
    weights = framework.weights()
    optimizer = framework.optimizer(framework.optim.SGD, weights)
    with unified_clip.record(tmp_path / "run.jsonl"):
        framework.gradients(weights)
        framework.step(optimizer, weights, framework.gradients(weights, 3.0))
    (step,) = runs.read(tmp_path / "run.jsonl").optimizer_steps
    assert list(step.losses) == [pytest.approx(TOTAL**2 / 2), pytest.approx(1.5 * TOTAL**2)]


SETTINGS: dict[str, list[tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "torch": [
        ("Adadelta", {"rho": 0.75}, {"alpha": 0.75}),
        ("SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
        ("AdamW", {"weight_decay": 0.5, "amsgrad": True}, {"weight_decay": 0.5, "amsgrad": True}),
    ],
    "paddle": [
        ("Adam", {"amsgrad": True}, {"amsgrad": True, "betas": (0.9, 0.999), "eps": 1e-8}),
        ("Momentum", {"use_nesterov": True}, {"nesterov": True, "dampening": 0.0}),
        ("Adagrad", {"initial_accumulator_value": 0.5}, {"initial_accumulator_value": 0.5}),
        ("RMSProp", {"rho": 0.75, "centered": True}, {"alpha": 0.75, "centered": True}),
        ("AdamW", {"weight_decay": 0.125}, {"weight_decay": 0.125}),
        ("Lamb", {"lamb_weight_decay": 0.125}, {"weight_decay": 0.125}),
    ],
    "tensorflow": [
        ("Adagrad", {}, {"initial_accumulator_value": 0.1}),
        ("Adam", {"amsgrad": True}, {"amsgrad": True}),
        ("RMSprop", {"rho": 0.75, "centered": True}, {"alpha": 0.75, "centered": True}),
        ("v1 Adagrad", {}, {"initial_accumulator_value": 0.1}),
        ("v1 Ftrl", {}, {"initial_accumulator_value": 0.1}),
        ("v1 RMSProp", {"decay": 0.75, "centered": True}, {"alpha": 0.75, "centered": True}),
        ("v1 Adadelta", {"rho": 0.75}, {"alpha": 0.75}),
    ],
}


@where(lambda kit: kit.name in SETTINGS)
@pytest.mark.filterwarnings("ignore:.*No clip calls:unified_clip.ClipWarning")
def test_settings_of_optimizers_are_recorded(kit: Kit, framework: Any, tmp_path: Path) -> None:
    for number, (name, options, expected) in enumerate(SETTINGS[kit.name]):
        weights, v1 = framework.weights(), name.removeprefix("v1 ")
        make = getattr(framework.optim, name, None) or getattr(framework.v1, f"{v1}Optimizer")
        optimizer = framework.optimizer(partial(make, **options), weights)
        with unified_clip.record(tmp_path / f"{number}.jsonl"):
            framework.step(optimizer, weights, framework.gradients(weights))
        (step,) = runs.read(tmp_path / f"{number}.jsonl").optimizer_steps
        assert {key: step.settings.get(key) for key in expected} == expected, name
        assert step.settings["lr"] == pytest.approx(0.1)


# -- `compare` identifies the rules of optimizers from their updates


def updated_by(kit: Kit, framework: Any, name: str, gradients: Sequence[Any]) -> list[Any]:
    if kit.name == "jax":
        optimizer = getattr(framework.optim, name)(RATE, eps=EPS, **({"weight_decay": 0.0} if name == "adamw" else {}))
        weight = framework.jax.numpy.zeros(len(gradients[0]))
        weights, state = [weight], optimizer.init(weight)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, weights[-1])
            weights.append(weights[-1] + updates)
        return weights
    decay = {"weight_decay": 0.0} if name == "AdamW" else {}
    zeros = np.zeros(len(gradients[0]), np.float32)
    weight = kit.tensor(zeros)
    if kit.name == "torch":
        weight = framework.torch.nn.Parameter(weight)
        optimizer = getattr(framework.optim, name)([weight], lr=RATE, eps=EPS, **decay)
    elif kit.name == "paddle":
        weight = framework.torch.create_parameter(
            zeros.shape, "float32", default_initializer=framework.nn.initializer.Assign(zeros)
        )
        optimizer = getattr(framework.optim, name)(RATE, epsilon=EPS, parameters=[weight], **decay)
    else:
        weight = framework.tf.Variable(zeros)
        optimizer = (getattr(framework.v1, name, None) or getattr(framework.optim, name))(RATE, epsilon=EPS, **decay)
    weights = [kit.array(weight)]
    for gradient in gradients:
        if kit.name != "tensorflow":
            weight.grad = kit.from_array(gradient)
        framework.step(optimizer, [weight], [kit.from_array(gradient)])
        weights.append(kit.array(weight))
    return weights


def test_the_rules_of_its_optimizers_are_identified(kit: Kit, framework: Any) -> None:
    weights_of = partial(updated_by, kit, framework)
    libraries = {"jax": "optax", "tensorflow": "keras"}
    check_rules(libraries.get(kit.name, kit.name), framework.optim, weights_of)
    if kit.name == "tensorflow":
        check_rules("tf", importlib.import_module("tensorflow").compat.v1.train, weights_of, "optimizer")
