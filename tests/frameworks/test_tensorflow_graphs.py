"""TensorFlow: sparse rows, long lists, derivatives, costs and names in graphs. Values are in test_each_compiled.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.kits import Kit, in_a_new_process
from support.tiers import nightly

import unified_clip.tensorflow as uc

v1 = tf.compat.v1

RANDOM = np.random.default_rng(7)
ARRAYS = [RANDOM.standard_normal((5, 3)).astype(np.float32), RANDOM.standard_normal(4).astype(np.float32)]

LONG = [(1 << 18) + 5, 3, (1 << 19,), (700, 701)]
"""Shapes that are split, joined with another, split evenly, and split across rows."""

Body = Callable[..., list[Any]]
Values = Sequence[np.ndarray]


def in_a_function(jit_compile: bool, shape: Callable[[np.ndarray], Any] = np.shape) -> Callable[[Body, Values], Values]:
    def run(body: Body, values: Values) -> Values:
        signature = [tf.TensorSpec(shape(value), value.dtype) for value in values]
        compiled = tf.function(body, input_signature=signature, jit_compile=jit_compile, autograph=False)
        return list(map(np.array, compiled(*map(tf.constant, values))))

    return run


def in_a_session(body: Body, values: Values) -> Values:
    with tf.Graph().as_default(), v1.Session() as session:
        placeholders = [v1.placeholder(value.dtype, None) for value in values]
        results: Values = session.run(body(*placeholders), dict(zip(placeholders, values, strict=True)))
        return results


MODES: dict[str, Callable[[Body, Values], Values]] = {
    "graph": in_a_function(False),
    "xla": in_a_function(True),
    "rank not known": in_a_function(False, lambda value: None),
    "session": in_a_session,
}


def assert_same_bits(result: Sequence[np.ndarray], expected: Sequence[Any]) -> None:
    assert [array.tobytes() for array in result] == [np.array(array).tobytes() for array in expected]
    assert [array.dtype for array in result] == [np.array(array).dtype for array in expected]
    assert [array.shape for array in result] == [np.shape(array) for array in expected]


def rows(values: Any, indices: Any, limit: Any) -> list[Any]:
    def slices_of_table() -> tf.IndexedSlices:
        return tf.IndexedSlices(values, indices, tf.constant([6, 3]))

    def dense(slices: Any) -> tf.Tensor:
        assert isinstance(slices, tf.IndexedSlices)
        assert slices.values.dtype == values.dtype
        return tf.convert_to_tensor(slices)

    (clipped,), norm = uc.clip_by_global_norm([slices_of_table()], limit)
    grads = [slices_of_table()]
    uc.clip_grad_norm_(grads, limit)
    return [
        dense(clipped), norm, dense(grads[0]), dense(uc.clip_by_norm(slices_of_table(), limit)),
        dense(uc.clip_by_value(slices_of_table(), -0.25, 0.5)),
        *(uc.get_total_norm([slices_of_table()], p) for p in (1, 2, math.inf)),
        *(dense(uc.clip_by_norm(slices_of_table(), limit, axes=axes)) for axes in (0, 1, -1, [], [0, 1])),
    ]  # fmt: skip


def with_constant_rows(body: Body, values: Values) -> Values:
    """XLA has to know how many rows are different."""
    numbers, indices, limit = values
    return in_a_function(True)(lambda *arrays: body(arrays[0], tf.constant(indices), arrays[1]), [numbers, limit])


@pytest.mark.parametrize("mode", [*MODES.values(), with_constant_rows], ids=[*MODES, "xla with constant rows"])
def test_repeated_rows_are_summed_before_clipping(mode: Callable[[Body, Values], list[np.ndarray]]) -> None:
    values = [ARRAYS[0], np.array([4, 0, 4, 1, 4]), np.array(0.3, np.float32)]
    expected = rows(*map(tf.constant, values))
    assert_same_bits(mode(rows, values), expected)
    summed = np.zeros((6, 3))
    np.add.at(summed, values[1], ARRAYS[0].astype(np.float64))
    np.testing.assert_allclose(expected[1], np.linalg.norm(summed), rtol=1e-6)
    np.testing.assert_allclose(expected[0], 0.3 / np.linalg.norm(summed) * summed, rtol=1e-6)
    table = tf.constant(summed, tf.float32)
    for axes, clipped in zip((0, 1, -1, [], [0, 1]), expected[-5:], strict=True):
        np.testing.assert_allclose(clipped, uc.clip_by_norm(table, 0.3, axes=axes), rtol=1e-6)


def test_thresholds_may_have_any_shape_with_one_element_and_any_dtype() -> None:
    for limit in (np.ones(1), np.ones((1, 1), np.float16), np.array(1, np.int32)):
        for mode in (MODES["graph"], MODES["session"]):
            (clipped,) = mode(lambda a, c: [uc.clip_by_norm(a, c)], [np.array([3.0, 4.0], np.float32), limit])
            np.testing.assert_allclose(clipped, [0.6, 0.8], rtol=1e-6)


def test_bounds_of_unknown_rank_broadcast() -> None:
    low, high = np.array([-1.0, -2.0, -3.0], np.float32), np.array(0.5, np.float32)
    (clipped,) = MODES["rank not known"](lambda *tensors: [uc.clip_by_value(*tensors)], [ARRAYS[0], low, high])
    assert_same_bits([clipped], [np.clip(ARRAYS[0], low, high)])


# -- tensors that are split or joined


@pytest.fixture(scope="module")
def long() -> list[np.ndarray]:
    arrays = [RANDOM.standard_normal(shape).astype(np.float32) for shape in LONG]
    arrays[0][0], arrays[2][-1] = 1e4, 3e18  # a float32 sum would lose all other elements
    return arrays


def test_long_tensors_match_eager(long: list[np.ndarray], kit: Kit) -> None:
    tame = [np.clip(array, -10, 10) for array in long]
    for dtype in ("float32", "bfloat16", "float64"):
        tensors = [tf.cast(array, dtype) for array in tame]
        for limit in (1.0, 1e6):
            expected, norm = uc.clip_by_global_norm(tensors, limit)
            clipped, graph_norm = tf.function(lambda grads, limit=limit: uc.clip_by_global_norm(grads, limit))(tensors)
            assert kit.bits(graph_norm) == kit.bits(norm)
            assert [kit.bits(t) for t in clipped] == [kit.bits(t) for t in expected]
            assert [t.shape for t in clipped] == [t.shape for t in expected]


def test_without_kernels_the_coefficient_is_not_rounded_to_the_dtype_of_the_gradient(kit: Kit) -> None:
    for dtype in ("bfloat16", "float16"):
        gradient = tf.cast(RANDOM.standard_normal(1000), dtype)
        clipped = tf.function(lambda tensor: uc.clip_by_norm(tensor, 0.3), jit_compile=True)(gradient)
        assert kit.bits(clipped) == kit.bits(uc.clip_by_norm(gradient, 0.3))


def test_a_long_list_within_the_threshold_is_unchanged(long: list[np.ndarray]) -> None:
    """Subnormal numbers too, which TensorFlow's multiplication by 1 flushes."""
    array = np.clip(long[0], -1, 1)
    array[:3] = [1e-40, -0.0, -1e-45]
    for mode in ("graph", "xla", "session", "rank not known"):
        ((clipped, short),) = [
            MODES[mode](lambda *tensors: uc.clip_by_global_norm(tensors, 1e6)[0], [array, array[:3]])
        ]
        assert_same_bits([clipped, short], [array, array[:3]])


# -- derivatives inside and outside functions

POINT = [3.0, 4.0]
FIRST, SECOND = [0.032, -0.024], [-0.01888, 0.01216]
"""The derivatives of the sum of POINT clipped to norm 1."""

JACOBIAN = [[0.128, -0.096], [-0.096, 0.072]]

GRAPH_TYPES: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda body: body,
    "graph": tf.function,
    "xla": tf.function(jit_compile=True),
}
every_graph_type = pytest.mark.parametrize("manner", GRAPH_TYPES.values(), ids=GRAPH_TYPES)


def clipped_alone(x: tf.Tensor) -> tf.Tensor:
    return uc.clip_by_global_norm([x], 1.0)[0][0]


def clipped_in_a_long_list(x: tf.Tensor) -> tf.Tensor:
    return uc.clip_by_global_norm([x, tf.zeros([2]), tf.zeros([(1 << 18) + 5])], 1.0)[0][0]


every_function = pytest.mark.parametrize(
    "function",
    [*nightly(clipped_alone), clipped_in_a_long_list, *nightly(lambda x: uc.clip_by_norm(x, 1.0))],
    ids=["alone", "many", "by_norm"],
)


@every_graph_type
@every_function
def test_derivatives_and_maps_in_graphs(manner: Callable[..., Any], function: Callable[..., Any]) -> None:
    def derive(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(x)
                clipped = function(x)
            first = inner.gradient(clipped, x)
        with tf.autodiff.ForwardAccumulator(x, tf.constant([1.0, 0.0])) as accumulator:
            moved = function(x)
        return first, outer.gradient(first, x), inner.jacobian(clipped, x), accumulator.jvp(moved)

    first, second, jacobian, product = manner(derive)(tf.constant(POINT))
    np.testing.assert_allclose(first, FIRST, rtol=1e-5)
    np.testing.assert_allclose(second, SECOND, rtol=1e-4)
    np.testing.assert_allclose(jacobian, JACOBIAN, rtol=1e-5)
    np.testing.assert_allclose(product, [row[0] for row in JACOBIAN], rtol=1e-5)
    for point in ([0.0, 0.0], [0.3, 0.4], [0.6, 0.8]):
        first, second, *_ = manner(derive)(tf.constant(point))
        assert first.numpy().tolist() == [1.0, 1.0]
        assert second is None or not second.numpy().any()
    rows = tf.constant([POINT, [0.3, 0.4], [0.0, 0.0]])
    result = manner(lambda rows: tf.vectorized_map(function, rows))(rows)
    np.testing.assert_allclose(result, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-6)


def test_derivatives_in_graphs_of_tensorflow_1() -> None:
    def body(x: tf.Tensor) -> list[tf.Tensor]:
        looped = v1.while_loop(lambda i, _: i < 1, lambda i, y: (i + 1, clipped_in_a_long_list(y)), (0, x))[1]
        return [tf.gradients(clipped, x)[0] for clipped in (clipped_alone(x), clipped_in_a_long_list(x), looped)]

    for point, expected in ((POINT, FIRST), ([0.0, 0.0], [1.0, 1.0])):
        for derivative in MODES["session"](body, [np.array(point, np.float32)]):
            np.testing.assert_allclose(derivative, expected, rtol=1e-5)


# -- cost of graphs


def test_multiplications_run_only_if_the_list_is_clipped() -> None:
    """The multiplications of a long list are in a branch."""
    tensors = [tf.zeros([1 << 18]), tf.zeros([8])]
    graph = tf.function(lambda grads: uc.clip_by_global_norm(grads, 1.0)).get_concrete_function(tensors).graph
    outside = [op for op in graph.get_operations() if op.type == "Mul" and op.outputs[0].dtype == tf.float32]
    assert not outside


def test_a_long_tensor_is_cast_in_pieces() -> None:
    function = tf.function(lambda tensors: uc.global_norm(tensors))
    graph = function.get_concrete_function([tf.zeros([3 << 20])]).graph
    casts = [op.outputs[0].shape.num_elements() for op in graph.get_operations() if op.type == "Cast"]
    assert max(casts) <= 1 << 18
    waiting = [op for op in graph.get_operations() if op.type == "Cast" and op.control_inputs]
    assert len(waiting) >= len(casts) - 6, "otherwise all are cast before the first is summed"


# -- names


def test_the_name_argument_is_a_name_scope() -> None:
    def body(a: Any) -> list[Any]:
        return [
            uc.clip_by_global_norm([a], 1.0, name="mine")[1],
            *uc.clip_by_global_norm([a], 1.0)[0],
            uc.clip_by_norm(a, 1.0, name="mine"),
            uc.clip_by_norm(a, 1.0),
            uc.clip_by_value(a, -1.0, 1.0, name="value"),
            uc.clip_by_value(a, -1.0, 1.0),
            uc.global_norm([a], name="norm"),
            uc.global_norm([a]),
        ]

    expected = [
        "mine", "clip_by_global_norm", "mine_1", "clip_by_norm", "value", "clip_by_value", "norm", "global_norm",
    ]  # fmt: skip
    with tf.Graph().as_default():
        assert [t.name.split("/")[0] for t in body(tf.constant(POINT))] == expected
        with tf.name_scope("outer"):
            assert uc.global_norm([tf.constant(POINT)]).name.startswith("outer/global_norm/")


# -- saved models, strategies and TensorFlow 1


def clip(a: Any, b: Any, limit: Any) -> list[Any]:
    clipped, norm = uc.clip_by_global_norm([a, b], limit)
    gradients = [a, b]
    uc.clip_grad_norm_(gradients, limit)
    return [*clipped, norm, *gradients, uc.clip_by_norm(a, limit, axes=[-1]), uc.clip_by_value(a, -limit, limit)]


@pytest.mark.nightly
def test_a_saved_model_gives_the_same_bits_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model saved without kernels needs no unified_clip. `test_tensorflow_kernels.py` tests models with kernels."""
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    module = tf.Module()
    module.clip = tf.function(clip, input_signature=[tf.TensorSpec(None)] * 3)
    module.rows = tf.function(
        rows, input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64), tf.TensorSpec([])]
    )
    values, indices = [*ARRAYS, np.array(0.3, np.float32)], np.array([4, 1, 4, 0, 4])
    tf.saved_model.save(module, str(tmp_path))
    np.savez(tmp_path / "values.npz", *values)
    code = f"""
import sys
import numpy as np, tensorflow as tf
module = tf.saved_model.load({str(tmp_path)!r})
assert not any(name.startswith("unified_clip") for name in sys.modules)
a, b, limit = map(tf.constant, np.load({str(tmp_path / "values.npz")!r}).values())
found = [*module.clip(a, b, limit), *module.rows(a, tf.constant({indices.tolist()}, tf.int64), limit)]
for part in found:
    print(part.numpy().tobytes().hex())
graphs = [f.graph.as_graph_def() for f in (module.clip.concrete_functions + module.rows.concrete_functions)]
parts = [part for graph in graphs for part in (graph.node, *(f.node_def for f in graph.library.function))]
nodes = [node for part in parts for node in part]
assert nodes and not any("PyFunc" in node.op for node in nodes)
"""
    expected = [*clip(*values), *rows(tf.constant(values[0]), tf.constant(indices), tf.constant(values[2]))]
    assert in_a_new_process(code).split() == [np.array(part).tobytes().hex() for part in expected]
