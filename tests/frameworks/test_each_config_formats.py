"""Clip settings of real optimizers are imported, and exported settings clip the same in the framework."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
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
from unified_clip.errors import ConfigError

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
        for config in (imported(optimizer), ClipConfig.of(optimizer)):
            assert_close(config(GRADS), native)
            again = keras.optimizers.SGD(0.1, **FORMATS["keras"].write(config, Version(keras.__version__)))
            document = documents.parse(json.dumps(again.get_config()), "json", "sgd.json")
            assert Settings(**FORMATS["keras"].read(document, None).settings).meaning == config.meaning


@on_keras
def test_other_optimizers_and_models_of_keras_are_read() -> None:
    keras: Any = importlib.import_module("keras")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=2.0))
    for config in (imported(scaled), ClipConfig.of(scaled)):
        assert (config.rule, config.threshold, config.family) == ("global_norm", 2.0, "tensorflow")
    own = type("OfTheUser", (keras.optimizers.SGD,), {})
    assert ClipConfig.of(own(0.1, clipvalue=0.5)).threshold == 0.5
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(clipnorm=2.0), loss="mse")
    text = json.dumps({**json.loads(model.to_json()), "compile_config": model.get_compile_config()})
    document = documents.parse(text, "json", "config.json")
    assert FORMATS["keras"].recognises(document)
    settings = FORMATS["keras"].read(document, None).settings
    assert settings == {"rule": "norm", "threshold": 2.0, "family": "tensorflow"}
    config = ClipConfig.of(keras.optimizers.Adam(clipnorm=1.0))
    assert config.provenance is not None
    assert (config.provenance.format, config.provenance.version) == ("keras", keras.__version__)
    assert config.provenance.notes == ["clipnorm clips per tensor, not by the total norm."]
    assert ClipConfig.loads(config.dumps()) == config


@on_keras
def test_keras_makes_gradients_nan_with_an_infinite_norm_which_is_refused() -> None:
    optimizer = importlib.import_module("keras").optimizers.Adam(global_clipnorm=float("inf"))
    assert np.isnan(by_keras(optimizer)[0]).all()
    with pytest.raises(ValueError, match=r"Adam, global_clipnorm: inf makes gradients NaN in training"):
        ClipConfig.of(optimizer)


@on_keras
def test_the_example_of_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == printed


# -- Paddle


@pytest.fixture
def pairs(kit: Kit) -> list[Any]:
    paddle: Any = importlib.import_module("paddle")
    return [(paddle.create_parameter(each.shape, "float32"), paddle.to_tensor(each)) for each in GRADS]


def optimizer_of(clip: Any, parameters: Any) -> Any:
    return importlib.import_module("paddle").optimizer.SGD(0.1, parameters=parameters, grad_clip=clip)


PADDLES: list[Callable[[Any], Any]] = [
    lambda nn: nn.ClipGradByGlobalNorm(1.5),
    lambda nn: nn.ClipGradByGlobalNorm(0.0),
    lambda nn: nn.ClipGradByNorm(1.5),
    lambda nn: nn.ClipGradByValue(0.75),
    lambda nn: nn.ClipGradByValue(max=0.75, min=-0.5),
]


@on_paddle
def test_what_paddle_holds_clips_the_same_here_and_is_exported_as_it_was(kit: Kit, pairs: list[Any]) -> None:
    paddle: Any = importlib.import_module("paddle")
    for make in PADDLES:
        native, expected = make(paddle.nn), [gradient for _, gradient in make(paddle.nn)(pairs)]
        for held in (native, make(kit.namespace)):
            config = ClipConfig.of(optimizer_of(held, [pairs[0][0]]))
            assert_close([gradient for _, gradient in config.pairs(pairs)], expected)
            names: dict[str, Any] = {}
            exec(FORMATS["paddle"].dump(FORMATS["paddle"].write(config, Version(paddle.__version__))), names)
            assert type(names["grad_clip"]) is type(native)
            assert str(names["grad_clip"]) == str(native)


@on_paddle
def test_optimizers_of_paddle_without_a_clip_or_around_another_are_read(pairs: list[Any]) -> None:
    paddle: Any = importlib.import_module("paddle")
    assert ClipConfig.of(optimizer_of(None, [pairs[0][0]])).rule == "none"
    look_ahead, inner = paddle.incubate.optimizer.LookAhead, paddle.nn.ClipGradByGlobalNorm(1.5)
    config = ClipConfig.of(look_ahead(look_ahead(optimizer_of(inner, [pairs[0][0]]))))
    assert (config.rule, config.threshold) == ("global_norm", 1.5)


@on_paddle
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("left_out", [False, True])
def test_notes_say_what_paddle_does_otherwise(pairs: list[Any], grouped: bool, left_out: bool) -> None:
    paddle: Any = importlib.import_module("paddle")
    (first, _), (second, _) = pairs
    second.need_clip = not left_out
    parameters = [{"params": [first]}, {"params": [second]}] if grouped else [first, second]
    provenance = ClipConfig.of(optimizer_of(paddle.nn.ClipGradByGlobalNorm(1.0), parameters)).provenance
    assert provenance is not None
    assert (provenance.format, provenance.version) == ("paddle", paddle.__version__)
    notes = " ".join(provenance.notes)
    assert ("each group of parameters separately" in notes, "need_clip=False" in notes) == (grouped, left_out)


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "OwnClip, which unified_clip cannot import": lambda nn, _: type("OwnClip", (nn.ClipGradByGlobalNorm,), {})(1.0),
    "ShardedClip, which unified_clip cannot import": lambda nn, _: type(
        "ShardedClip", (nn.ClipGradByGlobalNorm,), {"__module__": "paddle.distributed.fleet"}
    )(1.0),
    "the grad_clip of SGD selects parameters by its argument need_clip": lambda _, uc: uc.ClipGradByNorm(
        1.0, need_clip=lambda parameter: True
    ),
    "SGD, ClipGradByNorm, clip_norm: training fails with 0": lambda nn, _: nn.ClipGradByNorm(0.0),
    "group_name: this argument makes static programs": lambda nn, _: nn.ClipGradByGlobalNorm(1.0, group_name="a"),
    "inf makes gradients NaN in training": lambda nn, _: nn.ClipGradByGlobalNorm(float("inf")),
}


@on_paddle
def test_a_clip_that_cannot_be_said_is_refused(kit: Kit, pairs: list[Any]) -> None:
    nn: Any = importlib.import_module("paddle").nn
    for reason, make in REFUSED.items():
        with pytest.raises(ConfigError, match=reason):
            ClipConfig.of(optimizer_of(make(nn, kit.namespace), [pairs[0][0]]))
    groups = [{"params": [pairs[0][0]]}, {"params": [pairs[1][0]], "grad_clip": nn.ClipGradByNorm(1.0)}]
    with pytest.raises(ConfigError, match="the parameter groups of SGD have different grad_clip values"):
        ClipConfig.of(optimizer_of(nn.ClipGradByGlobalNorm(1.0), groups))


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


# -- other objects

OTHERS: dict[str, list[tuple[Callable[[Any], Any], str]]] = {
    "keras": [
        (lambda keras: keras.Sequential(), r"^keras\..*Sequential is not a Keras optimizer\. Pass the optimizer"),
        (lambda keras: keras.optimizers.schedules.CosineDecay(0.1, 10), r"^keras\..*CosineDecay is not a Keras opt"),
    ],
    "paddle": [(lambda paddle: paddle.nn.Linear(2, 2), r"^paddle\..*\.Linear is not a paddle\.optimizer\.Optimizer")],
    "optax": [(lambda optax: optax.clip(1.0), r"does not expose its clip settings\. Pass the threshold of its clip")],
}


@where(lambda kit: kit.name in ("tensorflow", "paddle", "jax"))
def test_what_is_no_optimizer_is_a_type_error(kit: Kit) -> None:
    name = {"tensorflow": "keras", "jax": "optax"}.get(kit.name, kit.name)
    for make, message in OTHERS[name]:
        with pytest.raises(TypeError, match=message):
            ClipConfig.of(make(importlib.import_module(name)))
