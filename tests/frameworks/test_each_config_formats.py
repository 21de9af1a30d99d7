"""Clip settings of real optimizers of Keras are imported, and exported settings clip the same in the framework."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from packaging.version import Version
from support.kits import Kit
from support.tiers import where

from unified_clip import ClipConfig
from unified_clip.config import documents
from unified_clip.config.formats import FORMATS
from unified_clip.config.formats.base import parse_version
from unified_clip.config.schema import Settings

pytestmark = pytest.mark.graphs  # older releases have other optimizers

GRADS = [np.array([3.0, -4.0], np.float32), np.array([[0.5, 12.0], [0.25, -0.125]], np.float32)]

on_keras = where(lambda kit: kit.name == "tensorflow")
on_paddle = where(lambda kit: kit.name == "paddle")
on_optax = where(lambda kit: kit.name == "jax")


def assert_close(results: Any, expected: Any) -> None:
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), np.asarray(array), rtol=1e-6)


# -- Keras

CLIPS = [{"clipnorm": 1.5}, {"global_clipnorm": 1.5}, {"clipvalue": 0.75}]
OFF: list[dict[str, float]] = [{"clipnorm": 0.0}, {"global_clipnorm": -1.0}, {"clipvalue": 0}, {}]


def by_keras(optimizer: Any) -> list[Any]:
    from keras import ops

    return [np.asarray(each) for each in optimizer._clip_gradients(list(map(ops.convert_to_tensor, GRADS)))]


def imported(optimizer: Any) -> ClipConfig:
    text = json.dumps(importlib.import_module("keras").optimizers.serialize(optimizer))
    return ClipConfig(**FORMATS["keras"].read(documents.parse(text, "json", "adam.json"), None).settings)


@on_keras
def test_what_keras_holds_clips_the_same_here_and_is_exported_as_it_was() -> None:
    keras: Any = importlib.import_module("keras")
    for clip in CLIPS + OFF:
        optimizer = keras.optimizers.Adam(1e-3, **clip)
        native = by_keras(optimizer)
        assert all(map(np.array_equal, native, GRADS)) == (clip in OFF)
        config = imported(optimizer)
        assert_close(config(GRADS), native)
        again = keras.optimizers.SGD(0.1, **FORMATS["keras"].write(config, Version(keras.__version__)))
        document = documents.parse(json.dumps(again.get_config()), "json", "sgd.json")
        assert Settings(**FORMATS["keras"].read(document, None).settings).meaning == config.meaning


@on_keras
def test_other_optimizers_and_models_of_keras_are_read() -> None:
    keras: Any = importlib.import_module("keras")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=2.0))
    config = imported(scaled)
    assert (config.rule, config.threshold, config.family) == ("global_norm", 2.0, "tensorflow")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(clipnorm=2.0), loss="mse")
    text = json.dumps({**json.loads(model.to_json()), "compile_config": model.get_compile_config()})
    document = documents.parse(text, "json", "config.json")
    assert FORMATS["keras"].recognises(document)
    settings = FORMATS["keras"].read(document, None).settings
    assert settings == {"rule": "norm", "threshold": 2.0, "family": "tensorflow"}


@on_keras
def test_keras_makes_gradients_nan_with_an_infinite_norm_which_is_refused() -> None:
    optimizer = importlib.import_module("keras").optimizers.Adam(global_clipnorm=float("inf"))
    assert np.isnan(by_keras(optimizer)[0]).all()
    with pytest.raises(ValueError, match=r"global_clipnorm: inf makes gradients NaN in training"):
        imported(optimizer)


# -- Paddle


@pytest.fixture
def pairs(kit: Kit) -> list[Any]:
    paddle: Any = importlib.import_module("paddle")
    return [(paddle.create_parameter(each.shape, "float32"), paddle.to_tensor(each)) for each in GRADS]


PADDLES: list[tuple[dict[str, Any], Callable[[Any], Any]]] = [
    ({"rule": "global_norm", "threshold": 1.5, "family": "paddle"}, lambda nn: nn.ClipGradByGlobalNorm(1.5)),
    ({"rule": "global_norm", "threshold": 0.0, "family": "paddle"}, lambda nn: nn.ClipGradByGlobalNorm(0.0)),
    ({"rule": "norm", "threshold": 1.5, "family": "paddle"}, lambda nn: nn.ClipGradByNorm(1.5)),
    ({"rule": "value", "threshold": 0.75}, lambda nn: nn.ClipGradByValue(0.75)),
    ({"rule": "value", "max": 0.75, "min": -0.5}, lambda nn: nn.ClipGradByValue(max=0.75, min=-0.5)),
]


@on_paddle
def test_what_is_exported_to_paddle_clips_the_same(pairs: list[Any]) -> None:
    paddle: Any = importlib.import_module("paddle")
    for settings, make in PADDLES:
        config, native, names = ClipConfig(**settings), make(paddle.nn), dict[str, Any]()
        exec(FORMATS["paddle"].dump(FORMATS["paddle"].write(config, Version(paddle.__version__))), names)
        assert (type(names["grad_clip"]), str(names["grad_clip"])) == (type(native), str(native))
        expected = [gradient for _, gradient in native(pairs)]
        assert_close([gradient for _, gradient in config.pairs(pairs)], expected)


# -- optax


@on_optax
@pytest.mark.parametrize(
    ("rule", "threshold"),
    [*(("global_norm", limit) for limit in (1.5, 0.0, 100.0, "inf")), *(("value", limit) for limit in (0.75, 0.0))],
)
def test_the_source_that_is_exported_to_optax_clips_the_same(rule: str, threshold: Any) -> None:
    family = {"family": "paddle"} if rule == "global_norm" else {}
    config, exported = ClipConfig(rule=rule, threshold=threshold, **family), dict[str, Any]()
    version = parse_version(importlib.import_module("optax").__version__)
    exec(FORMATS["optax"].dump(FORMATS["optax"].write(config, version)), exported)
    native, _ = exported["clip"].update(GRADS, exported["clip"].init(GRADS))
    assert_close(config(GRADS), native)
