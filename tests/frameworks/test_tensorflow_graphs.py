"""TensorFlow: every function in every type of graph matches eager, and graphs stay small."""

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
VARIABLES = [tf.Variable(np.zeros_like(array)) for array in ARRAYS]
"""For (gradient, variable) pairs. Nothing reads them, so graphs of TensorFlow 1 may have them."""

LONG = [(1 << 18) + 5, 3, (1 << 19,), (700, 701)]
"""Shapes that are split, joined with another, split evenly, and split across rows."""


def functional(a: Any, b: Any, limit: Any) -> list[Any]:
    clipped, norm = uc.clip_by_global_norm([a, None, b], limit)
    used, _ = uc.clip_by_global_norm([a, b], limit, use_norm=norm)
    return [
        clipped[0], clipped[2], norm, *used,
        uc.clip_by_norm(a, limit),
        uc.clip_by_norm(a, limit, axes=[-1]),
        uc.clip_by_value(a, -limit, limit),
        uc.clip_by_value(b, -0.25, 0.5),
        uc.global_norm([a, b]),
        *(uc.get_total_norm([a, b], p) for p in (1, 2, math.inf)),
    ]  # fmt: skip


def in_place(a: Any, b: Any, limit: Any) -> list[Any]:
    by_norm, by_value, with_norm, by_class = [a, b], {"a": a, "b": b}, [(a, VARIABLES[0]), (b, VARIABLES[1])], [a, b]
    norm = uc.clip_grad_norm_(by_norm, limit)
    uc.clip_grad_value_(by_value, limit)
    uc.clip_grads_with_norm_(with_norm, limit, norm)
    uc.GradientClipByGlobalNorm(0.5).clip_(by_class)
    return [norm, *by_norm, *by_value.values(), *(gradient for gradient, _ in with_norm), *by_class]


def classes(a: Any, b: Any, limit: Any) -> list[Any]:
    pairs = list(zip([a, b], VARIABLES, strict=True))
    clips = [uc.GradientClipByNorm(0.5), uc.GradientClipByGlobalNorm(0.5), uc.GradientClipByValue(0.5, -0.25)]
    grads = [gradient for clip in clips for gradient, _ in clip(pairs)]
    uc.set_gradient_clip(clips[1])
    grads += [gradient for gradient, _ in uc.append_gradient_clip_ops(pairs)]
    uc.set_gradient_clip(None)
    return [*grads, uc.ErrorClipByValue(0.5)(a)]


def call_all(a: Any, b: Any, limit: Any) -> list[Any]:
    return [*functional(a, b, limit), *in_place(a, b, limit), *classes(a, b, limit)]


Body = Callable[..., list[Any]]
Values = Sequence[np.ndarray]


def as_arrays(tensors: Sequence[Any]) -> list[np.ndarray]:
    return [np.array(tensor) for tensor in tensors]


def function(**options: Any) -> Callable[[Body, Values], list[np.ndarray]]:
    def run(body: Body, values: Values) -> list[np.ndarray]:
        return as_arrays(tf.function(body, **options)(*map(tf.constant, values)))

    return run


def unknown(shape: Callable[[np.ndarray], Any], **options: Any) -> Callable[[Body, Values], list[np.ndarray]]:
    def run(body: Body, values: Values) -> list[np.ndarray]:
        signature = [tf.TensorSpec(shape(value), value.dtype) for value in values]
        return as_arrays(tf.function(body, input_signature=signature, **options)(*map(tf.constant, values)))

    return run


def lengths(value: np.ndarray) -> list[None]:
    return [None] * value.ndim


def in_a_loop(body: Body, values: Values) -> list[np.ndarray]:
    @tf.function
    def run(*tensors: tf.Tensor) -> Any:
        start = [tf.zeros_like(t) for t in body(*tensors)]
        return tf.while_loop(lambda i, *_: i < 2, lambda i, *_: (i + 1, *body(*tensors)), (0, *start))[1:]

    return as_arrays(run(*map(tf.constant, values)))


def in_a_branch(body: Body, values: Values) -> list[np.ndarray]:
    @tf.function
    def run(*tensors: tf.Tensor) -> Any:
        return tf.cond(
            tensors[0][0, 0] > 1e9, lambda: [tf.zeros_like(t) for t in body(*tensors)], lambda: body(*tensors)
        )

    return as_arrays(run(*map(tf.constant, values)))


def in_a_dataset(body: Body, values: Values) -> list[np.ndarray]:
    data = tf.data.Dataset.from_tensors(tuple(values)).map(lambda *tensors: tuple(body(*tensors)))
    return as_arrays(next(iter(data)))


def in_a_session(shape: Callable[[np.ndarray], Any]) -> Callable[[Body, Values], list[np.ndarray]]:
    def run(body: Body, values: Values) -> list[np.ndarray]:
        with tf.Graph().as_default(), v1.Session() as session:
            placeholders = [v1.placeholder(value.dtype, shape(value)) for value in values]
            fetches = body(*placeholders)
            results: list[np.ndarray] = session.run(fetches, dict(zip(placeholders, values, strict=True)))
            return results

    return run


MODES: dict[str, Callable[[Body, Values], list[np.ndarray]]] = {
    "autograph": function(),
    "graph": function(autograph=False),
    "xla": function(jit_compile=True),
    "lengths not known": unknown(lengths),
    "rank not known": unknown(lambda value: None),
    "lengths not known to xla": unknown(lengths, jit_compile=True),
    "while": in_a_loop,
    "cond": in_a_branch,
    "dataset": in_a_dataset,
    "session": in_a_session(np.shape),
    "session, lengths not known": in_a_session(lengths),
    "session, rank not known": in_a_session(lambda value: None),
}
QUICK = ("graph", "xla")
every_mode = pytest.mark.parametrize(
    "mode",
    [*map(MODES.get, QUICK), *nightly(*(MODES[name] for name in MODES if name not in QUICK))],
    ids=[*QUICK, *(name for name in MODES if name not in QUICK)],
)


def assert_same_bits(result: Sequence[np.ndarray], expected: Sequence[Any]) -> None:
    assert [array.tobytes() for array in result] == [np.array(array).tobytes() for array in expected]
    assert [array.dtype for array in result] == [np.array(array).dtype for array in expected]
    assert [array.shape for array in result] == [np.shape(array) for array in expected]


# -- every function in every mode


@every_mode
def test_every_function_in_a_graph_matches_eager(mode: Callable[[Body, Values], list[np.ndarray]]) -> None:
    values = [*ARRAYS, np.array(0.3, np.float32)]
    assert_same_bits(mode(call_all, values), call_all(*map(tf.constant, values)))


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
        dense(uc.GradientClipByNorm(0.5)([(VARIABLES[0], slices_of_table())])[0][1]),
        *(uc.get_total_norm([slices_of_table()], p) for p in (1, 2, math.inf)),
        *(dense(uc.clip_by_norm(slices_of_table(), limit, axes=axes)) for axes in (0, 1, -1, [], [0, 1])),
    ]  # fmt: skip


@every_mode
def test_repeated_rows_are_summed_before_clipping(mode: Callable[[Body, Values], list[np.ndarray]]) -> None:
    values = [ARRAYS[0], np.array([4, 1, 4, 0, 4]), np.array(0.3, np.float32)]
    expected = rows(*map(tf.constant, values))
    assert_same_bits(mode(rows, values), expected)
    summed = np.zeros((6, 3))
    np.add.at(summed, values[1], ARRAYS[0].astype(np.float64))
    np.testing.assert_allclose(expected[1], np.linalg.norm(summed), rtol=1e-6)
    np.testing.assert_allclose(expected[0], 0.3 / np.linalg.norm(summed) * summed, rtol=1e-6)
    table = tf.constant(summed, tf.float32)
    for axes, clipped in zip((0, 1, -1, [], [0, 1]), expected[-5:], strict=True):
        np.testing.assert_allclose(clipped, uc.clip_by_norm(table, 0.3, axes=axes), rtol=1e-6)


@every_mode
def test_error_if_nonfinite_is_rejected_at_trace_time(mode: Callable[[Body, Values], list[np.ndarray]]) -> None:
    for body in (
        lambda a: [uc.get_total_norm([a], error_if_nonfinite=True)],
        lambda a: [uc.clip_grad_norm_([a], 1.0, error_if_nonfinite=True)],
    ):
        with pytest.raises(TypeError, match="return the norm from the graph, and check the norm outside"):
            mode(body, ARRAYS[:1])


@every_mode
def test_a_traced_threshold_is_not_checked(mode: Callable[[Body, Values], list[np.ndarray]]) -> None:
    def body(a: Any, limit: Any) -> list[Any]:
        return [*uc.clip_by_global_norm([a], limit)[0], uc.clip_by_norm(a, limit)]

    array = np.array([[3.0], [4.0]], np.float32)
    negative, nan, infinite, zero = (
        mode(body, [array, np.array(limit, np.float32)]) for limit in (-1.0, math.nan, math.inf, 0.0)
    )
    for clipped in negative:
        np.testing.assert_allclose(clipped, -array / 5, rtol=1e-6)
    assert np.isnan(nan).all()
    assert_same_bits(infinite, [array, array])
    assert_same_bits(zero, [0 * array, 0 * array])


def test_thresholds_may_have_any_shape_with_one_element_and_any_dtype() -> None:
    for limit in (np.ones(1), np.ones((1, 1), np.float16), np.array(1, np.int32)):
        for mode in (MODES["graph"], MODES["session, rank not known"]):
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


@pytest.mark.nightly
@pytest.mark.parametrize("p", [1, 2, 3.0])
def test_norms_of_long_tensors_are_exact(long: list[np.ndarray], p: float) -> None:
    tame = [np.clip(array, -10, 10) for array in long]
    for arrays in (long, tame):
        powers = [np.sum(np.abs(array.astype(np.float64)) ** p) for array in arrays]
        for mode in ("graph", "xla", "rank not known", "session"):
            (norm,) = MODES[mode](lambda *tensors: [uc.get_total_norm(tensors, p)], arrays)
            np.testing.assert_allclose(norm, sum(powers) ** (1 / p), rtol=2.0**-23)


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


def test_a_long_list_within_the_threshold_is_unchanged(long: list[np.ndarray]) -> None:
    """Subnormal numbers too, which TensorFlow's multiplication by 1 flushes."""
    array = np.clip(long[0], -1, 1)
    array[:3] = [1e-40, -0.0, -1e-45]
    for mode in ("graph", "xla", "session", "rank not known"):
        ((clipped, short),) = [
            MODES[mode](lambda *tensors: uc.clip_by_global_norm(tensors, 1e6)[0], [array, array[:3]])
        ]
        assert_same_bits([clipped, short], [array, array[:3]])


def test_joined_short_tensors_keep_their_dtypes(kit: Kit) -> None:
    tensors = [kit.tensor([3.0, 0.1], dtype) for dtype in (*kit.floating, *kit.floating, *kit.complex)]
    tensors += [kit.tensor(np.zeros((0, 2)), "float32"), kit.tensor(4.0, "float32"), kit.tensor([[5.0]], "float16")]
    for limit in (1.0, 1e6):
        expected, norm = uc.clip_by_global_norm(tensors, limit)
        clipped, graph_norm = tf.function(lambda grads, limit=limit: uc.clip_by_global_norm(grads, limit))(tensors)
        assert float(graph_norm) == pytest.approx(float(norm), rel=1e-12)
        for actual, reference in zip(clipped, expected, strict=True):
            assert (actual.dtype, actual.shape) == (reference.dtype, reference.shape)
            np.testing.assert_allclose(actual.numpy().astype(complex), reference.numpy().astype(complex), rtol=1e-6)


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
    [clipped_alone, clipped_in_a_long_list, lambda x: uc.clip_by_norm(x, 1.0)],
    ids=["alone", "many", "by_norm"],
)


@every_graph_type
@every_function
def test_first_and_second_derivatives_in_graphs(manner: Callable[..., Any], function: Callable[..., Any]) -> None:
    def derive(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                clipped = function(x)
            first = inner.gradient(clipped, x)
        return first, outer.gradient(first, x)

    first, second = manner(derive)(tf.constant(POINT))
    np.testing.assert_allclose(first, FIRST, rtol=1e-5)
    np.testing.assert_allclose(second, SECOND, rtol=1e-4)
    for point in ([0.0, 0.0], [0.3, 0.4], [0.6, 0.8]):
        first, second = manner(derive)(tf.constant(point))
        assert first.numpy().tolist() == [1.0, 1.0]
        assert second is None or not second.numpy().any()


@every_graph_type
@every_function
def test_jacobians_and_forward_derivatives(manner: Callable[..., Any], function: Callable[..., Any]) -> None:
    def derive(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            clipped = function(x)
        with tf.autodiff.ForwardAccumulator(x, tf.constant([1.0, 0.0])) as accumulator:
            moved = function(x)
        return tape.jacobian(clipped, x), accumulator.jvp(moved)

    jacobian, product = manner(derive)(tf.constant(POINT))
    np.testing.assert_allclose(jacobian, JACOBIAN, rtol=1e-5)
    np.testing.assert_allclose(product, [row[0] for row in JACOBIAN], rtol=1e-5)


@pytest.mark.parametrize("function", [clipped_alone, clipped_in_a_long_list], ids=["alone", "many"])
def test_derivatives_of_a_function_from_outside(function: Callable[..., Any]) -> None:
    for compiled in (tf.function(function), tf.function(function, jit_compile=True)):
        x = tf.constant(POINT)
        with tf.GradientTape() as tape:
            tape.watch(x)
            clipped = compiled(x)
        np.testing.assert_allclose(tape.gradient(clipped, x), FIRST, rtol=1e-5)


@every_graph_type
@every_function
def test_vectorized_map_clips_each_row(manner: Callable[..., Any], function: Callable[..., Any]) -> None:
    rows = tf.constant([POINT, [0.3, 0.4], [0.0, 0.0]])
    result = manner(lambda rows: tf.vectorized_map(function, rows))(rows)
    np.testing.assert_allclose(result, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "function",
    [
        lambda row: uc.clip_by_global_norm([row, 2.0 * row], 1.0),
        lambda row: uc.clip_by_norm(row, 1.0),
        lambda row: uc.clip_by_norm(tf.reshape(row, [2, -1]), 1.0, axes=1),
        lambda row: uc.clip_by_value(row, -1.0, 1.0),
        lambda row: uc.get_total_norm([row, tf.cast(row, tf.bfloat16)], 1),
        lambda row: uc.get_total_norm([tf.reduce_sum(row), tf.reshape(row, [2, -1])]),
        lambda row: uc.get_total_norm([row], math.inf),
        lambda row: uc.get_total_norm([row], 3),
    ],
    ids=["global norm", "norm", "slices", "value", "order 1", "scalars and matrices", "order inf", "order 3"],
)
@pytest.mark.parametrize(("length", "derived"), [(4, False), (4, True), (1 << 19, False)])
def test_vectorized_map_runs_no_loop(function: Callable[..., Any], length: int, derived: bool) -> None:
    def run(row: tf.Tensor) -> Any:
        if not derived:
            return function(row)
        with tf.GradientTape() as tape:
            tape.watch(row)
            result = function(row)
        return tape.gradient(result, row)

    numbers = np.random.default_rng(0).standard_normal((2, length)).astype(np.float32)
    rows = tf.constant(numbers)
    results = tf.nest.flatten(tf.vectorized_map(run, rows, fallback_to_while_loop=False))
    row_results = [tf.nest.flatten(tf.function(run)(row)) for row in rows]
    for batch, *rows_ in zip(results, *row_results, strict=True):
        np.testing.assert_allclose(batch, np.stack(rows_), rtol=3e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [tf.float16, tf.float32])
def test_a_vectorized_l2_loss_matches_each_row(dtype: tf.DType) -> None:
    rows = tf.cast(tf.constant([[250.0, 200.0], [3.0, 4.0]]), dtype)  # twice the loss is beyond the range of float16
    losses = tf.vectorized_map(tf.nn.l2_loss, rows, fallback_to_while_loop=False)
    assert losses.dtype == dtype
    assert losses.numpy().tolist() == [float(tf.nn.l2_loss(row)) for row in rows]


def test_derivatives_in_graphs_of_tensorflow_1() -> None:
    def body(x: tf.Tensor) -> list[tf.Tensor]:
        looped = v1.while_loop(lambda i, _: i < 1, lambda i, y: (i + 1, clipped_in_a_long_list(y)), (0, x))[1]
        return [tf.gradients(clipped, x)[0] for clipped in (clipped_alone(x), clipped_in_a_long_list(x), looped)]

    for point, expected in ((POINT, FIRST), ([0.0, 0.0], [1.0, 1.0])):
        for derivative in MODES["session"](body, [np.array(point, np.float32)]):
            np.testing.assert_allclose(derivative, expected, rtol=1e-5)


def test_derivatives_by_a_threshold_and_a_passed_norm() -> None:
    for manner in GRAPH_TYPES.values():

        def derive(x: tf.Tensor, limit: tf.Tensor, norm: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch([limit, norm])
                clipped, _ = uc.clip_by_global_norm([x], limit, use_norm=norm)
            return tape.gradient(clipped, [limit, norm])

        by_limit, by_norm = manner(derive)(tf.constant(POINT), tf.constant(1.0), tf.constant(5.0))
        np.testing.assert_allclose([by_limit, by_norm], [1.4, -0.28], rtol=1e-6)


# -- cost of graphs


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=["graph", "xla"])
def test_a_step_is_traced_once(options: dict[str, Any]) -> None:
    table, weight = tf.Variable(tf.ones([4, 2])), tf.Variable(POINT)

    @tf.function(**options)
    def step(scale: tf.Tensor, limit: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(scale * weight**2) + tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1, 2]) ** 2)
        gradients = tape.gradient(loss, [table, weight])
        clipped, norm = uc.clip_by_global_norm(gradients, limit)
        uc.clip_grad_norm_(gradients, 1.0)
        weight.assign_sub(clipped[1])
        table.assign_sub(tf.convert_to_tensor(gradients[0]))
        return norm

    for index in range(100):
        assert step(tf.constant(float(index)), tf.constant(0.01 * index)) >= 0.0
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.nightly
def test_xla_computes_the_sum_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeating the sum for each tensor made compiling a thousand tensors take minutes."""
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")  # the kernels compute the sum outside of XLA

    def additions(count: int) -> int:
        tensors = [tf.ones(300 + length) for length in range(count)]  # different lengths, so that they are not joined
        compiled = tf.function(lambda grads: uc.clip_by_global_norm(grads, 1.0), jit_compile=True)
        text: str = compiled.experimental_get_compiler_ir(tensors)(stage="optimized_hlo")
        return text.count(" add(")

    assert additions(10) > 0
    assert additions(40) < 5 * additions(10)


def count_nodes(function: Callable[..., Any], tensors: Sequence[tf.Tensor]) -> int:
    graph = tf.function(function).get_concrete_function(list(tensors)).graph.as_graph_def()
    return len(graph.node) + sum(len(function_.node_def) for function_ in graph.library.function)


@pytest.mark.nightly
@pytest.mark.parametrize("shape", [(3,), (2, 3), (100, 50), (1 << 16,)])
def test_a_graph_of_many_tensors_has_at_most_twice_the_nodes_of_tensorflows(shape: tuple[int, ...]) -> None:
    tensors = [tf.zeros(shape)] * 200
    native = count_nodes(lambda grads: tf.clip_by_global_norm(grads, 1.0), tensors)
    assert count_nodes(lambda grads: uc.clip_by_global_norm(grads, 1.0), tensors) <= 2 * native


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
        "mine",
        "clip_by_global_norm",
        "mine_1",
        "clip_by_norm",
        "value",
        "clip_by_value",
        "norm",
        "global_norm",
    ]
    with tf.Graph().as_default():
        assert [t.name.split("/")[0] for t in body(tf.constant(POINT))] == expected
        with tf.name_scope("outer"):
            assert uc.global_norm([tf.constant(POINT)]).name.startswith("outer/global_norm/")


# -- saved models, strategies and TensorFlow 1


@pytest.mark.nightly
def test_a_saved_model_gives_the_same_bits_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model saved without kernels needs no unified_clip. `test_tensorflow_kernels.py` tests models with kernels."""
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    module = tf.Module()
    module.every_name = tf.function(call_all, input_signature=[tf.TensorSpec(None)] * 3)
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
found = [*module.every_name(a, b, limit), *module.rows(a, tf.constant({indices.tolist()}, tf.int64), limit)]
for part in found:
    print(part.numpy().tobytes().hex())
graphs = [f.graph.as_graph_def() for f in (module.every_name.concrete_functions + module.rows.concrete_functions)]
parts = [part for graph in graphs for part in (graph.node, *(f.node_def for f in graph.library.function))]
nodes = [node for part in parts for node in part]
assert nodes and not any("PyFunc" in node.op for node in nodes)
"""
    expected = [*call_all(*values), *rows(tf.constant(values[0]), tf.constant(indices), tf.constant(values[2]))]
    assert in_a_new_process(code).split() == [np.array(part).tobytes().hex() for part in expected]


@pytest.mark.nightly
def test_a_mirrored_strategy_clips_in_replicas_and_in_the_sum() -> None:
    code = """
import keras, numpy as np, tensorflow as tf
import unified_clip.tensorflow as uc
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weight = tf.Variable([0.0, 0.0])
    trained, optimizer = keras.Variable([0.0, 0.0]), keras.optimizers.SGD(1.0)
    optimizer.build([trained])
given = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant([3.0, 4.0]) * (10.0 ** context.replica_id_in_sync_group))

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(x * weight)
    listed = [(tape.gradient(loss, weight), weight)]
    norm = uc.clip_grad_norm_(listed, 1.0)
    clipped, _ = clip([listed[0][0]])
    (total,) = tf.distribute.get_replica_context().all_reduce("sum", [clipped[0]])
    pair, = uc.GradientClipByNorm(0.25)([(total, weight)])
    weight.assign_sub(pair[0])
    return norm, clipped[0], pair[0]

def half(gradients):
    return uc.clip_by_global_norm(gradients, 0.5)

for clip, run in ((half, step), (half, tf.function(step)), (tf.function(half, jit_compile=True), tf.function(step))):
    weight.assign([0.0, 0.0])
    norms, clipped, last = (strategy.experimental_local_results(part) for part in strategy.run(run, (given,)))
    assert [float(norm) for norm in norms] == [5.0, 50.0], norms
    for part in clipped:
        np.testing.assert_allclose(part, [0.3, 0.4], rtol=1e-6)
    for part in (*last, -weight):
        np.testing.assert_allclose(part, [0.15, 0.2], rtol=1e-6)

@tf.function
def clip_the_sum(x):  # as docs/tensorflow.md says
    (total,) = tf.distribute.get_replica_context().all_reduce("sum", [x])
    clipped, norm = uc.clip_by_global_norm([total], 1.0)
    optimizer.apply([clipped[0] / strategy.num_replicas_in_sync], [trained])
    return norm

assert [float(norm) for norm in strategy.experimental_local_results(strategy.run(clip_the_sum, (given,)))] == [55.0] * 2
np.testing.assert_allclose(trained, [-0.6, -0.8], rtol=1e-6)
print("done")
"""
    assert in_a_new_process(code).split()[-1] == "done"


PORTED = """
import numpy as np
import tensorflow.compat.v1 as tf
import unified_clip.tensorflow as uc
tf.{switch}()

x = tf.placeholder(tf.float32, [None, 2])
y = tf.placeholder(tf.float32)
limit = tf.placeholder_with_default(1.0, [])
weight = tf.get_variable("weight", initializer=[[0.0], [0.0]])
table = tf.get_variable("table", initializer=tf.ones([4, 1]))
unused = tf.get_variable("unused", [3])
loss = tf.reduce_sum((tf.matmul(x, weight) - y) ** 2) + tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1, 2]))
optimizer = tf.train.GradientDescentOptimizer(0.1)
pairs = optimizer.compute_gradients(loss)
gradients, variables = zip(*pairs)
clipped, norm = uc.clip_by_global_norm(gradients, limit)
updated = list(pairs)
uc.clip_grad_norm_(updated, limit)
by_class = uc.GradientClipByGlobalNorm(1.0)([pair for pair in pairs if pair[0] is not None])
train = optimizer.apply_gradients(zip(clipped, variables))
own = [g if g is None else uc.clip_by_norm(g, 0.5) for g in gradients]
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    feed = {{x: [[3.0, 4.0]], y: -0.5}}  # gradients 3, 4; and 2, 1 in two rows of the table
    length, first, pair, from_class = session.run([norm, clipped[0], updated[0], by_class[0][0]], feed)
    np.testing.assert_allclose(length, 30 ** 0.5, rtol=1e-6)
    for part in (first, pair[0], from_class):
        np.testing.assert_allclose(part, np.array([[3.0], [4.0]]) / 30 ** 0.5, rtol=1e-5)
    assert clipped[2] is None and updated[2][0] is None
    np.testing.assert_allclose(session.run(own[0], feed), [[0.3], [0.4]], rtol=1e-6)
    session.run(train, feed | {{limit: 1.0}})
    np.testing.assert_allclose(session.run(table)[:, 0], 1 - 0.1 * np.array([0, 2, 1, 0]) / 30 ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(session.run(weight)[:, 0], -0.1 * np.array([3, 4]) / 30 ** 0.5, rtol=1e-6)
print("done")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("switch", ["disable_eager_execution", "disable_v2_behavior"])
def test_a_tensorflow_1_program_trains_with_clipping(switch: str) -> None:
    assert in_a_new_process(PORTED.format(switch=switch)).split()[-1] == "done"
