"""TensorFlow: gradients summed over replicas are clipped to the same bits as on one device."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from support import reference
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


@graphs
@layouts
def test_gradients_of_a_model_are_clipped_on_every_replica(tensorflow_worlds: Worlds, layout: str, graph: bool) -> None:
    processes = tensorflow_worlds(layout).run(replicas.clip_model_gradients, 0.5, graph)
    replica_results = [replica for process in processes for replica in process]
    for gradients, norm, clipped in replica_results:
        expected, n = np_uc.clip_by_global_norm(gradients, 0.5)
        assert norm == n == reference.norm(gradients)
        for result, expected_gradient, first_result in zip(clipped, expected, replica_results[0][2], strict=True):
            np.testing.assert_array_equal(result, expected_gradient, strict=True)
            np.testing.assert_array_equal(result, first_result, strict=True)


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
ROUNDING_CASES = {
    "above a middle": COUNTER_EXAMPLE,
    "on a middle below which is even": np.array([*BIG, 1.0], np.float32),
    "on a middle below which is odd": np.array([2.0**24 + 2, 2.0**12, 2.0**12, 2.0, 1.0], np.float32),
    "just above a middle": np.array([*BIG, 1.0, 2.0**-120], np.float32),
    "just above a middle between very small numbers": np.array([*BIG, 1 + 2.0**-23], np.float32)
    * np.float32(2.0**-126),
    "just below a middle": np.array([*BIG, 1 - 2.0**-24, 2.0**-12, 2.0**-12], np.float32),
    "the largest": np.array([np.finfo(np.float32).max, 2.0**115], np.float32),
    "between the largest and infinity": np.array([np.finfo(np.float32).max, 2.0**116, 2.0**110], np.float32),
    "infinite": np.full(4, 3e38, np.float32),
    "the smallest": np.full(7, 2.0**-126, np.float32),
    "none": np.zeros(0, np.float32),
    "zeros": np.zeros(3, np.float32),
    "16 bits": np.array([2048.0, 64.0, *[2.0**-8] * 70], np.float16),
    "complex": (COUNTER_EXAMPLE + 1j * COUNTER_EXAMPLE[::-1]).astype(np.complex64),
    "in two pieces": np.concatenate([np.zeros((1 << 18) - 3, np.float32), COUNTER_EXAMPLE]),
    "long": np.concatenate([np.full(600_000, 2.0**-9, np.float32), COUNTER_EXAMPLE]),
}


LONG = ("in two pieces", "long")


@pytest.mark.parametrize("unknown_length", [False, True], ids=["length known", "length unknown"])
@pytest.mark.parametrize("p", [1.0, 2.0])
@pytest.mark.parametrize("case", [*(case for case in ROUNDING_CASES if case not in LONG), *nightly(*LONG)])
def test_a_graph_rounds_as_the_host_does(case: str, p: float, unknown_length: bool) -> None:
    if case == "complex" and p == 1:
        pytest.skip("magnitudes of complex elements are rounded before they are summed")
    values = ROUNDING_CASES[case]
    shape = [None] if unknown_length else values.shape
    norm = tf.function(
        lambda gradient: ONE.run(uc.get_total_norm, ([gradient], p)),
        [tf.TensorSpec(shape, values.dtype)],
        autograph=False,
    )
    assert float(norm(values)) == float(np_uc.get_total_norm([values], p)) == reference.norm([values], p)


def test_a_graph_rounds_random_gradients_as_the_host_does() -> None:
    norm = tf.function(
        lambda gradient: ONE.run(uc.global_norm, ([gradient],)), [tf.TensorSpec([None])], autograph=False
    )
    random = np.random.default_rng(0)
    for _ in range(300):
        values = (random.standard_normal(random.integers(1, 400)) * 2.0 ** random.integers(-40, 40)).astype("float32")
        assert norm(values).numpy() == np_uc.global_norm([values])


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
