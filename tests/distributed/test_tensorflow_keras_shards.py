"""Keras under a strategy: a configuration clips what the replicas' gradients add up to; Keras clips each of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.processes import tensorflow_replicas as replicas
from support.processes.worlds import World
from support.tiers import nightly

LAYOUTS = {"1 replica": 1, "2 replicas": 2, "4 replicas": 4}
LIMIT = 0.1

Worlds = Callable[[str], World]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    made: dict[str, World] = {}

    def of(layout: str) -> World:
        if layout not in made:
            made[layout] = World(functools.partial(replicas.start, LAYOUTS[layout]), 1)
        return made[layout]

    yield of
    for world in made.values():
        world.close()


def length(arrays: list[np.ndarray]) -> float:
    return math.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in arrays))


def check_copies(found: dict[str, Any]) -> None:
    """All replicas hold the same variables."""
    for copies in found["copies"]:
        for copy in copies:
            np.testing.assert_array_equal(copy, copies[0])


@pytest.mark.parametrize("layout", ["2 replicas", *nightly("1 replica", "4 replicas")])
def test_an_update_is_as_long_as_the_limit_and_that_of_keras_is_longer(worlds: Worlds, layout: str) -> None:
    (by_keras,), (ours,) = (worlds(layout).run(replicas.fitted, how, LIMIT, {}) for how in ("Keras", "ours"))
    if layout == "1 replica":
        assert length(by_keras["update"]) == pytest.approx(LIMIT, rel=1e-2)  # it counts repeated rows one by one
    else:
        assert length(by_keras["update"]) > 1.2 * LIMIT
    assert length(ours["update"]) == pytest.approx(LIMIT, rel=1e-5)
    assert ours["last"].norm_clipped == pytest.approx(LIMIT, rel=1e-6)
    check_copies(ours)


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"scale": 16.0}], ids=["graph", "eager", "scaled loss"])
def test_two_replicas_make_the_update_of_one(worlds: Worlds, options: dict[str, Any]) -> None:
    (one,), (two,) = (worlds(layout).run(replicas.fitted, "ours", LIMIT, options) for layout in list(LAYOUTS)[:2])
    check_copies(two)
    assert two["last"].norm == pytest.approx(one["last"].norm, rel=1e-6)  # gradients are added up in another order
    for got, wanted in zip(two["update"], one["update"], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("nonfinite", ["skip", "zero"])
def test_what_is_not_finite_on_one_replica_is_known_to_all(worlds: Worlds, nonfinite: str, eager: bool) -> None:
    options = {"run_eagerly": eager, "settings": {"nonfinite": nonfinite}}
    (found,) = worlds("2 replicas").run(replicas.fitted, "ours", LIMIT, options, math.nan)
    check_copies(found)
    assert length(found["update"]) == 0
    assert math.isnan(found["last"].norm)
    assert (found["last"].skipped, found["step"]) == (nonfinite == "skip", 1)


def test_an_error_is_raised_for_all_replicas(worlds: Worlds) -> None:
    options = {"run_eagerly": True, "settings": {"nonfinite": "raise"}}
    (failure,) = worlds("2 replicas").attempt(replicas.fitted, "ours", LIMIT, options, math.nan)
    assert "NonFiniteNormError" in str(failure)
    assert "dense" in str(failure)
