"""Keras under a strategy: a configuration clips the sum of the replicas' gradients. Keras clips each of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.processes import tensorflow_replicas as replicas
from support.processes.tensorflow_replicas import Worlds
from support.tiers import nightly

THRESHOLD = 0.1


def norm_of(arrays: list[np.ndarray]) -> float:
    return math.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in arrays))


def assert_replicas_agree(step: dict[str, Any]) -> None:
    for copies in step["copies"]:
        for copy in copies:
            np.testing.assert_array_equal(copy, copies[0])


@pytest.mark.parametrize("layout", ["2 replicas", *nightly("1 replica", "4 replicas")])
def test_the_norm_of_an_update_is_the_threshold_and_larger_with_keras_own_clip(
    tensorflow_worlds: Worlds, layout: str
) -> None:
    (by_keras,), (by_config,) = (
        tensorflow_worlds(layout).run(replicas.fit_one_step, clip, THRESHOLD, {}) for clip in ("Keras", "ClipConfig")
    )
    if layout == "1 replica":
        assert norm_of(by_keras["update"]) == pytest.approx(THRESHOLD, rel=1e-2)  # Keras does not sum repeated rows
    else:
        assert norm_of(by_keras["update"]) > 1.2 * THRESHOLD
    assert norm_of(by_config["update"]) == pytest.approx(THRESHOLD, rel=1e-5)
    assert by_config["last"].norm_clipped == pytest.approx(THRESHOLD, rel=1e-6)
    assert_replicas_agree(by_config)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"scale": 16.0}], ids=["graph", "eager", "scaled loss"])
def test_two_replicas_make_the_same_update_as_one(tensorflow_worlds: Worlds, options: dict[str, Any]) -> None:
    (on_one,), (on_two,) = (
        tensorflow_worlds(layout).run(replicas.fit_one_step, "ClipConfig", THRESHOLD, options)
        for layout in ("1 replica", "2 replicas")
    )
    assert_replicas_agree(on_two)
    assert on_two["last"].norm == pytest.approx(
        on_one["last"].norm, rel=1e-6
    )  # gradients are added up in another order
    for result, expected in zip(on_two["update"], on_one["update"], strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("nonfinite", ["skip", "zero"])
def test_nan_on_one_replica_is_handled_on_all_replicas(tensorflow_worlds: Worlds, nonfinite: str, eager: bool) -> None:
    options = {"run_eagerly": eager, "settings": {"nonfinite": nonfinite}}
    (step,) = tensorflow_worlds("2 replicas").run(replicas.fit_one_step, "ClipConfig", THRESHOLD, options, math.nan)
    assert_replicas_agree(step)
    assert norm_of(step["update"]) == 0
    assert math.isnan(step["last"].norm)
    assert (step["last"].skipped, step["step"]) == (nonfinite == "skip", 1)


def test_an_error_is_raised_for_all_replicas(tensorflow_worlds: Worlds) -> None:
    options = {"run_eagerly": True, "settings": {"nonfinite": "raise"}}
    (failure,) = tensorflow_worlds("2 replicas").attempt(
        replicas.fit_one_step, "ClipConfig", THRESHOLD, options, math.nan
    )
    assert "NonFiniteNormError" in str(failure)
    assert "dense" in str(failure)
