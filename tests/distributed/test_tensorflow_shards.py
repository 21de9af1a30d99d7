"""TensorFlow: gradients summed over replicas are clipped to the same bits as on one device."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support import reference, situations
from support.kits import Kit
from support.processes import tensorflow_replicas as replicas
from support.processes.tensorflow_replicas import LAYOUTS, Worlds
from support.tiers import nightly

import unified_clip.numpy as np_uc
import unified_clip.tensorflow as uc

layouts = pytest.mark.parametrize("layout", ["2 replicas", "2 processes", *nightly("1 replica", "4 replicas")])
graphs = pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])


def replica_count(layout: str) -> int:
    return LAYOUTS[layout][0] or LAYOUTS[layout][1]


def arrays() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    shapes = [(7, 5), (53,), (1, 3), (129, 17), (2, 3, 4)]
    return [(random.standard_normal(shape) * 3.0**number).astype("float32") for number, shape in enumerate(shapes)]


def split_over_replicas(arrays: list[np.ndarray], number: int) -> list[list[np.ndarray]]:
    """Return the gradients of each replica. Their sum is exact: only one replica has an element, the rest have 0."""
    owners = [np.arange(array.size).reshape(array.shape) % number for array in arrays]
    return [
        [np.where(owner == rank, array, 0).astype(array.dtype) for array, owner in zip(arrays, owners, strict=True)]
        for rank in range(number)
    ]


BIG = [2.0**24, 2.0**12, 2.0**12]
COUNTER_EXAMPLE = np.array(BIG + [2.0**-3] * 70, np.float32)
"""Its norm is just above the midpoint of two float32, so a float64 sum depends on the order of additions."""


@graphs
@pytest.mark.parametrize("p", [2.0, math.inf])
@layouts
def test_every_replica_has_the_norm_and_the_gradients_of_one_device(
    tensorflow_worlds: Worlds, layout: str, p: float, graph: bool
) -> None:
    expected = arrays()
    n = np_uc.clip_grad_norm_(expected, 1.5, p)
    assert float(n) == reference.norm(arrays(), p)
    processes = tensorflow_worlds(layout).run(
        replicas.clip_summed, split_over_replicas(arrays(), replica_count(layout)), 1.5, p, graph
    )
    replica_results = [replica for process in processes for replica in process]
    assert len(replica_results) == replica_count(layout)
    for norm, gradients in replica_results:
        assert norm == n
        for result, expected_gradient in zip(gradients, expected, strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)


@graphs
@layouts
def test_the_norm_does_not_depend_on_the_order_of_additions(
    tensorflow_worlds: Worlds, layout: str, graph: bool
) -> None:
    assert reference.norm([COUNTER_EXAMPLE]) == 2.0**24 + 2
    shares = split_over_replicas([COUNTER_EXAMPLE], replica_count(layout))
    for process in tensorflow_worlds(layout).run(replicas.clip_summed, shares, 1.0, 2.0, graph):
        assert [norm for norm, _ in process] == [2.0**24 + 2] * len(process)


@layouts
def test_clipping_adds_no_collectives(tensorflow_worlds: Worlds, layout: str) -> None:
    for before, after in tensorflow_worlds(layout).run(replicas.count_collectives):
        assert before == after
        assert (before > 0) == (layout != "1 replica")


@graphs
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("layout", ["2 replicas", "2 processes"])
def test_nan_and_inf_on_one_replica_reach_the_norm_on_all_replicas(
    tensorflow_worlds: Worlds, layout: str, value: float, graph: bool
) -> None:
    shares = split_over_replicas(arrays(), 2)
    shares[1][0][3, 2] = value
    expected = [sum(gradients_of_replicas) for gradients_of_replicas in zip(*shares, strict=True)]
    n = np_uc.clip_grad_norm_(expected, 1.5)
    for process in tensorflow_worlds(layout).run(replicas.clip_summed, shares, 1.5, 2.0, graph):
        for norm, gradients in process:
            np.testing.assert_array_equal([norm, value], [n, value])
            for result, expected_gradient in zip(gradients, expected, strict=True):
                np.testing.assert_array_equal(result, expected_gradient, strict=True)


def test_gradients_of_single_replicas_are_rejected(tensorflow_worlds: Worlds) -> None:
    (text,) = tensorflow_worlds("2 replicas").run(replicas.clip_outside_of_replicas)
    assert text.startswith("a PerReplica has a gradient per replica, not the sum over replicas. Clip in")


# -- norms in graphs: functions that a strategy runs are always compiled

ONE = tf.distribute.OneDeviceStrategy("CPU:0")
LARGEST = np.finfo(np.float32).max
HARD = [
    np.array([*BIG, 1.0, 2.0**-120], np.float32),  # just above a midpoint
    np.array([*BIG, 1 - 2.0**-24, 2.0**-12, 2.0**-12], np.float32),  # just below
    np.array([LARGEST, 2.0**115], np.float32),
    np.array([LARGEST, 2.0**116, 2.0**110], np.float32),
    np.concatenate([np.zeros((1 << 18) - 3, np.float32), COUNTER_EXAMPLE]),  # in two pieces
]


def exact_norms(dtype: str) -> Callable[[np.ndarray, float], tuple[float, float, float]]:
    """Return a function that returns the norm of a graph, of the host, and of the oracle."""
    signature = [tf.TensorSpec([None], dtype)]
    graphs = {
        p: tf.function(lambda gradient, p=p: ONE.run(uc.get_total_norm, ([gradient], p)), signature, autograph=False)
        for p in (1.0, 2.0)
    }

    def norms(values: np.ndarray, p: float) -> tuple[float, float, float]:
        return float(graphs[p](values)), float(np_uc.get_total_norm([values], p)), reference.norm([values], p)

    return norms


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_graph_rounds_as_the_host_does(kit: Kit, dtype: str) -> None:
    norms = exact_norms(dtype)

    @given(situations.numbers(kit, dtype), st.sampled_from([1.0, 2.0]))
    def check(array: np.ndarray, p: float) -> None:
        if not (abs(array.astype("float64")) < 2.0**-120)[array != 0].any():  # TensorFlow takes subnormals for 0
            assert len({*map(str, norms(array.ravel(), p))}) == 1

    check()
    for values in HARD if dtype == "float32" else []:
        for p in (1.0, 2.0):
            assert len({*norms(values, p)}) == 1


@pytest.mark.nightly
def test_the_derivative_of_a_norm_in_a_graph() -> None:
    @tf.function(autograph=False)
    def derived(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            norm = ONE.run(uc.global_norm, ([values],))
        return norm, tape.gradient(norm, values)

    norm, derivative = derived(tf.constant(COUNTER_EXAMPLE))
    assert float(norm) == 2.0**24 + 2
    np.testing.assert_allclose(derivative, COUNTER_EXAMPLE / 2.0**24, rtol=1e-6)
