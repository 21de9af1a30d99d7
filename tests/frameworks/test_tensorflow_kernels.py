"""TensorFlow: graphs on a CPU call the compiled kernels, with the bits of the host path. Graphs of XLA do not."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.kits import in_a_new_process

import unified_clip
import unified_clip.tensorflow as uc
from unified_clip._backends.tensorflow import kernel_operations

pytestmark = pytest.mark.skipif(not kernel_operations.REGISTERED, reason="this build has no compiled kernels")

NORM, SCALE = kernel_operations.NORM, kernel_operations.SCALE


def gradients(dtype: str = "float32", scale: float = 1.0, seed: int = 0) -> list[tf.Tensor]:
    random = np.random.default_rng(seed)
    arrays = (random.standard_normal(shape) * scale for shape in ((5, 7), (3,), (), (2, 1, 4)))
    return [tf.cast(tf.constant(array), dtype) for array in arrays]


def operations_of(function: Callable[..., Any], *arguments: Any, **settings: Any) -> list[str]:
    concrete = tf.function(lambda *arguments_: function(*arguments_), **settings).get_concrete_function(*arguments)
    return [op.type for op in concrete.graph.get_operations() if op.type in (NORM, SCALE)]


def in_pairs(clip: Any) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
    variables = [tf.Variable(tf.zeros_like(grad)) for grad in gradients()]
    return lambda grads: [grad for grad, _ in clip(list(zip(grads, variables, strict=True)))]


# -- which graphs


def test_a_graph_measures_and_scales_by_one_operation_each() -> None:
    assert operations_of(lambda grads: uc.clip_by_global_norm(grads, 1.0), gradients()) == [NORM, SCALE]
    assert operations_of(lambda grads: uc.clip_grad_norm_(list(grads), 1.0), gradients()) == [NORM, SCALE]
    assert operations_of(in_pairs(uc.GradientClipByNorm(1.0)), gradients()) == [NORM, SCALE]
    assert operations_of(uc.global_norm, gradients()) == [NORM]


def test_only_strategies_without_remote_workers_use_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert operations_of(uc.global_norm, gradients()) == [NORM]
        monkeypatch.setattr(kernel_operations, "STRATEGIES", (tf.distribute.OneDeviceStrategy,))
        assert operations_of(uc.global_norm, gradients()) == []


@pytest.mark.parametrize("p", [3.0, math.inf])
def test_norms_of_other_orders_use_operations_of_tensorflow(p: float) -> None:
    assert operations_of(lambda grads: uc.clip_grad_norm_(list(grads), 1.0, norm_type=p), gradients()) == [SCALE]


@pytest.mark.parametrize("variable", ["UNIFIED_CLIP_GRAPH", "UNIFIED_CLIP_PATH"])
def test_settings_switch_the_kernels_off(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    assert unified_clip.native_available("tensorflow")
    monkeypatch.setenv(variable, "framework")
    assert not unified_clip.native_available("tensorflow")
    assert operations_of(lambda grads: uc.clip_by_global_norm(grads, 1.0), gradients()) == []


# -- values


def test_a_gradient_that_is_used_later_is_not_overwritten() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        kept, unused = x * 2.0, x * 3.0
        (first, second), _ = uc.clip_by_global_norm([kept, unused], 1.0)
        return kept, first, second

    x = tf.random.normal([100_000], seed=1)
    kept, first, second = step(x)
    np.testing.assert_array_equal(kept, x * 2.0)
    (expected_first, expected_second), _ = uc.clip_by_global_norm([x * 2.0, x * 3.0], 1.0)
    np.testing.assert_array_equal(first, expected_first)
    np.testing.assert_array_equal(second, expected_second)


def row_clips() -> dict[str, Callable[[tf.Tensor], tf.Tensor]]:
    variables = [tf.Variable(tf.zeros(4)), tf.Variable(tf.zeros(4))]

    def per_tensor(row: tf.Tensor) -> tf.Tensor:
        (first, _), (second, _) = uc.GradientClipByNorm(0.5)(list(zip([row, row * row], variables, strict=True)))
        return first + 3.0 * second

    return {
        "norm": lambda row: uc.global_norm([row]),
        "order 1": lambda row: uc.get_total_norm([row], 1.0),
        "clip": lambda row: uc.clip_by_global_norm([row, row * row], 1.0)[0][0],
        "per tensor": per_tensor,
    }


@pytest.mark.parametrize("name", row_clips())
def test_nested_vectorized_map(name: str) -> None:
    clip = row_clips()[name]
    rows = tf.random.normal([2, 3, 4], seed=4)

    def clip_all(batches: tf.Tensor) -> tf.Tensor:
        by_rows = functools.partial(tf.vectorized_map, clip, fallback_to_while_loop=False)
        return tf.vectorized_map(by_rows, batches, fallback_to_while_loop=False)

    expected = [[clip(rows[i, j]).numpy() for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(tf.function(clip_all)(rows), expected)
    of_any_shape = tf.function(clip_all, input_signature=[tf.TensorSpec(None)])
    np.testing.assert_array_equal(of_any_shape(rows), expected)


# -- saved programs


SAVE = """
import tensorflow as tf
import unified_clip.tensorflow as uc


class Program(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([2])], jit_compile={jit})
    def clip(self, x):
        return uc.clip_by_global_norm([x], 1.0)[0][0]


tf.saved_model.save(Program(), {path!r})
"""
LOAD = """
import tensorflow as tf

print(tf.saved_model.load({path!r}).clip(tf.constant([3.0, 4.0])).numpy().tolist())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("jit", [False, True])
def test_only_a_saved_model_with_kernels_needs_unified_clip(tmp_path: Path, jit: bool) -> None:
    path = str(tmp_path / "program")
    in_a_new_process(SAVE.format(path=path, jit=jit))
    expected = str(np.float32([0.6, 0.8]).tolist())
    assert in_a_new_process("import unified_clip.tensorflow" + LOAD.format(path=path)).strip() == expected
    command = [sys.executable, "-P", "-c", LOAD.format(path=path)]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    if jit:
        assert alone.stdout.strip() == expected
    else:
        assert "Op type not registered 'UnifiedClipNorm'" in alone.stderr


OTHER_COPY = """
import shutil, tempfile
from importlib.util import module_from_spec, spec_from_file_location
import tensorflow as tf
import unified_clip
from unified_clip._native import KERNELS
spec = spec_from_file_location("_kernels", shutil.copy(KERNELS.__file__, tempfile.mkdtemp()))
copy = module_from_spec(spec)
spec.loader.exec_module(copy)
copy.register_tensorflow()
import unified_clip.tensorflow as uc
print(unified_clip.native_available("tensorflow"))
print(tf.function(uc.global_norm)([tf.constant([3.0, 4.0])]).numpy())
"""


@pytest.mark.nightly
def test_what_another_copy_has_registered_is_not_registered_again() -> None:
    assert in_a_new_process(OTHER_COPY).split() == ["False", "5.0"]


def test_a_tensorflow_1_graph_runs_the_kernels() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        grads = [tf.constant([3.0, 4.0]), tf.constant([12.0])]
        clipped, norm = uc.clip_by_global_norm(grads, 6.5)
        assert {NORM, SCALE} <= {op.type for op in norm.graph.get_operations()}
        results, norm_value = session.run([clipped, norm])
    assert norm_value == 13.0
    assert [result.tolist() for result in results] == [[1.5, 2.0], [6.0]]


def test_results_outlive_the_function() -> None:
    def results() -> list[tf.Tensor]:
        compiled = tf.function(lambda grads: uc.clip_by_global_norm(grads, 1.0)[0])
        return compiled([tf.fill([100_000], float(k)) for k in (1, 2, 3)])

    all_results = [results() for _ in range(20)]
    assert all(
        np.array_equal(actual, reference)
        for clipped in all_results
        for actual, reference in zip(clipped, all_results[0], strict=True)
    )


# -- graphs that XLA compiles


def compiled(function: Callable[..., Any], **settings: Any) -> Any:
    return tf.function(lambda *tensors: function(*tensors), jit_compile=True, autograph=False, **settings)


def clip(grads: Any) -> tuple[Any, tf.Tensor]:
    clipped, norm = uc.clip_by_global_norm(list(grads), 1.0)
    return clipped, norm


def assert_close(result: Any, expected: Any) -> None:
    for one, other in zip(*map(tf.nest.flatten, (result, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=2.0**-22)


def test_constant_row_indices_have_a_known_number() -> None:
    """XLA does not know how many different rows `tf.unique` finds, even of constants."""
    values = tf.reshape(tf.range(10.0), [5, 2])

    def clip_rows(values: tf.Tensor, dense: tf.Tensor) -> tuple[Any, ...]:
        slices = tf.IndexedSlices(values, tf.reshape(tf.constant([[4, 1], [4, 0]]), [-1]), tf.constant([6, 2]))
        (clipped, dense_result), norm = clip([slices, dense])
        return clipped.values, clipped.indices, dense_result, norm

    dense = tf.constant([1.0, 2.0])
    result = compiled(clip_rows)(values[:4], dense)
    np.testing.assert_array_equal(result[1], [4, 1, 0])
    (expected, dense_result), norm = clip([tf.stack([values[0] + values[2], values[1], values[3]]), dense])
    assert_close([result[0], *result[2:]], [expected, dense_result, norm])


def test_an_unknown_number_of_rows() -> None:
    values = tf.reshape(tf.range(8.0), [4, 2])

    def clip_rows(indices: tf.Tensor) -> tuple[Any, tf.Tensor]:
        (clipped,), norm = clip([tf.IndexedSlices(values, indices, tf.constant([6, 2]))])
        return clipped.values, norm

    expected, norm = clip([tf.stack([values[0] + values[2], values[1], values[3]])])
    assert_close(compiled(clip_rows)(tf.constant([4, 1, 4, 0])), [*expected, norm])


@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_function_traced_for_xla_also_runs_without_xla(compiled_first: bool) -> None:
    inner = tf.function(lambda *grads: clip(grads), autograph=False)
    function = compiled(inner)
    if compiled_first:
        assert_close(function(*gradients()), clip(gradients()))
    function.get_concrete_function(*gradients())
    assert_close(inner(*gradients()), clip(gradients()))


@pytest.mark.parametrize("length", [3, None])
def test_vectorized_map_gives_each_member_its_own_norm(length: int | None) -> None:
    rows = tf.random.normal([2, 3, 4], seed=2)
    variables = [tf.Variable(tf.zeros(4)), tf.Variable(tf.zeros(4))]

    def clip_row(row: tf.Tensor) -> list[tf.Tensor]:
        (first, second), norm = clip([row, row * row])
        (per_tensor, _), _ = uc.GradientClipByNorm(0.5)(list(zip([row, row * row], variables, strict=True)))
        return [first, second, tf.fill([4], norm), per_tensor]

    def clip_all(batch: tf.Tensor) -> Any:
        return tf.vectorized_map(clip_row, batch, fallback_to_while_loop=False)

    function = compiled(clip_all, input_signature=[tf.TensorSpec([length, 4])])
    assert_close(tf.stack(function(rows[0]), axis=1), tf.stack([clip_row(row) for row in rows[0]]))
    if length:
        of_batches = compiled(lambda rows: tf.vectorized_map(clip_all, rows, fallback_to_while_loop=False))
        expected = tf.stack([tf.stack([clip_row(row) for row in batch]) for batch in rows])
        assert_close(tf.stack(of_batches(rows), axis=2), expected)
