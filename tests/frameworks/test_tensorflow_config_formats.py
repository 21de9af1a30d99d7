"""Clip settings of real Keras optimizers: what `keras.optimizers.serialize` writes, and what optimizers accept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from packaging.version import Version

from unified_clip import ClipConfig
from unified_clip.config import documents
from unified_clip.config.formats import FORMATS
from unified_clip.config.schema import Settings

KERAS = FORMATS["keras"]
GRADS = [np.array([3.0, -4.0], np.float32), np.array([[0.5, 12.0], [0.25, -0.125]], np.float32)]
CLIPS = [{"clipnorm": 1.5}, {"global_clipnorm": 1.5}, {"clipvalue": 0.75}]
OFF = [{"clipnorm": 0.0}, {"global_clipnorm": -1.0}, {"clipvalue": 0}, {}]


def by_keras(optimizer: Any) -> list[Any]:
    return [np.asarray(each) for each in optimizer._clip_gradients([keras.ops.convert_to_tensor(g) for g in GRADS])]


def imported(optimizer: Any) -> ClipConfig:
    text = json.dumps(keras.optimizers.serialize(optimizer))
    return ClipConfig(**KERAS.read(documents.parse(text, "json", "adam.json"), None).settings)


@pytest.mark.parametrize("clip", CLIPS + OFF, ids=str)
@pytest.mark.parametrize("read", [imported, ClipConfig.of])
def test_what_keras_serializes_clips_the_same_here(clip: dict[str, float], read: Any) -> None:
    optimizer = keras.optimizers.Adam(1e-3, **clip)
    unified_clip_result = read(optimizer)(GRADS)
    for native, result, grad in zip(by_keras(optimizer), unified_clip_result, GRADS, strict=True):
        np.testing.assert_allclose(result, native, rtol=1e-6)
        assert np.array_equal(native, grad) == (clip in OFF)


@pytest.mark.parametrize("clip", CLIPS + OFF, ids=str)
def test_what_is_exported_is_what_keras_takes(clip: dict[str, float]) -> None:
    config = ClipConfig.of(keras.optimizers.SGD(0.1, **clip))
    exported = KERAS.write(config, Version(keras.__version__))
    optimizer = keras.optimizers.SGD(0.1, **exported)
    again = KERAS.read(documents.parse(json.dumps(optimizer.get_config()), "json", "sgd.json"), None)
    assert Settings(**again.settings).meaning == config.meaning


def test_a_loss_scale_optimizer_clips_as_its_inner_one() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=2.0))
    for config in (imported(optimizer), ClipConfig.of(optimizer)):
        assert (config.rule, config.threshold, config.family) == ("global_norm", 2.0, "tensorflow")


def test_the_compile_configuration_of_a_model_is_read() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(clipnorm=2.0), loss="mse")
    text = json.dumps({**json.loads(model.to_json()), "compile_config": model.get_compile_config()})
    document = documents.parse(text, "json", "config.json")
    assert KERAS.recognises(document)
    assert KERAS.read(document, None).settings == {"rule": "norm", "threshold": 2.0, "family": "tensorflow"}


def test_an_optimizer_tells_where_its_clipping_is_from() -> None:
    config = ClipConfig.of(keras.optimizers.Adam(clipnorm=1.0))
    assert config.provenance is not None
    assert (config.provenance.format, config.provenance.version) == ("keras", keras.__version__)
    assert config.provenance.notes == ["clipnorm clips per tensor, not by the total norm."]
    assert ClipConfig.loads(config.dumps()) == config


def test_keras_makes_gradients_nan_with_an_infinite_norm_which_is_refused() -> None:
    optimizer = keras.optimizers.Adam(global_clipnorm=float("inf"))
    assert np.isnan(by_keras(optimizer)[0]).all()
    with pytest.raises(ValueError, match=r"Adam, global_clipnorm: inf makes gradients NaN in training"):
        ClipConfig.of(optimizer)


def test_the_example_of_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", page, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == printed


class InOptimizerStudy(keras.Model):
    """A model in a module whose name contains "optimizer"."""


InOptimizerStudy.__module__ = "optimizer_study"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (keras.Sequential, "keras.src.models.sequential.Sequential"),
        (InOptimizerStudy, "optimizer_study.InOptimizerStudy"),
        (
            lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9),
            "keras.src.optimizers.schedules.learning_rate_schedule.ExponentialDecay",
        ),
        (keras.callbacks.EarlyStopping, "keras.src.callbacks.early_stopping.EarlyStopping"),
    ],
)
def test_what_is_no_optimizer_is_a_type_error(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{re.escape(name)} is not a Keras optimizer\. Pass the optimizer"):
        ClipConfig.of(make())


class OfTheUser(keras.optimizers.SGD):
    """An optimizer outside of Keras' modules."""


def test_an_optimizer_of_the_user_is_one() -> None:
    assert ClipConfig.of(OfTheUser(0.1, clipvalue=0.5)).threshold == 0.5
