"""TensorFlow: when raw memory can be read, the types of containers, and results that compilers must not change."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import unified_clip.tensorflow as uc
from unified_clip._backends.tensorflow.backend import BACKEND

GRADIENT = [3.0, 4.0]
DERIVATIVE = [0.032, -0.024]
"""The derivative of the sum of clip_by_norm(GRADIENT, 1)."""


def on_host(*tensors: Any, differentiable: bool = True, others: tuple[Any, ...] = ()) -> bool:
    return BACKEND.path(
        [BACKEND.as_tensor(tensor) for tensor in tensors], differentiable=differentiable, extra_inputs=others
    ).on_host


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


COMPILED: list[Callable[..., Any]] = [
    lambda function: tf.function(function, autograph=False),
    lambda function: tf.function(function, autograph=False, jit_compile=True),
]


# -- the host path is taken for plain eager tensors only


def test_a_tape_that_keeps_recording_watches_the_gradients_it_gives() -> None:
    variable = tf.Variable(GRADIENT)
    with tf.GradientTape(persistent=True) as tape:
        gradient = tape.gradient(tf.reduce_sum(variable**3), variable)
        assert not on_host(gradient)
        clipped = uc.clip_by_norm(gradient, 1.0)
    # v -> 3 v**2 -> clipped, at [27, 48]
    norm = math.hypot(27, 48)
    jacobian = np.eye(2) / norm - np.outer([27, 48], [27, 48]) / norm**3
    close(tape.gradient(clipped, variable), np.ones(2) @ jacobian @ np.diag([18, 24]))


def test_a_trainable_variable_under_a_tape() -> None:
    for variable in (tf.Variable(GRADIENT), keras.Variable(GRADIENT)):
        assert on_host(variable)
        with tf.GradientTape() as tape:
            assert not on_host(variable)
            clipped = uc.clip_by_norm(variable, 1.0)
        close(tape.gradient(clipped, variable), DERIVATIVE)
    with tf.GradientTape():
        assert on_host(tf.Variable(GRADIENT, trainable=False))


@pytest.mark.parametrize("path", ["", "framework"])
def test_in_place_names_and_classes_record_no_gradient(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_PATH", path)
    tensor, variable = tf.constant(GRADIENT), tf.Variable(GRADIENT)
    for clip in (uc.GradientClipByNorm(1.0), uc.GradientClipByGlobalNorm(1.0), uc.GradientClipByValue(1.0)):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(tensor)
            ((_, gradient),) = clip([(variable, tensor)])
            gradients = [tensor]
            norm = uc.clip_grad_norm_(gradients, 1.0)
        assert gradient is not tensor
        assert tape.gradient(gradient, tensor) is None
        assert tape.gradient(gradients[0], tensor) is None
        assert tape.gradient(norm, tensor) is None


def test_tensors_of_another_device() -> None:
    class Elsewhere:
        backing_device = "/job:localhost/replica:0/task:0/device:GPU:0"

    from unified_clip._backends.tensorflow import arithmetic

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arithmetic, "EAGER", Elsewhere)
        assert not arithmetic.in_host_memory([Elsewhere()])
        Elsewhere.backing_device = "/job:localhost/replica:0/task:0/device:CPU:0"
        assert arithmetic.in_host_memory([Elsewhere()])
        assert not arithmetic.in_host_memory([type("Subclass", (Elsewhere,), {})()])


def test_py_function_keeps_subnormal_numbers_and_derivatives() -> None:
    tiny, limit = tf.constant([3e-40, 4e-40]), tf.constant(1e-40)
    norm = tf.py_function(lambda x: uc.global_norm([x]), [tiny], tf.float32)
    assert norm.numpy().tobytes() == uc.global_norm([tiny]).numpy().tobytes() != bytes(4)
    clipped = tf.py_function(lambda x, c: uc.clip_by_norm(x, c), [tiny, limit], tf.float32)
    assert clipped.numpy().tobytes() == uc.clip_by_norm(tiny, limit).numpy().tobytes() != bytes(8)
    tensor = tf.constant(GRADIENT)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        clipped = tf.py_function(lambda x: uc.clip_by_norm(x, 1.0), [tensor], tf.float32)
    close(tape.gradient(clipped, tensor), DERIVATIVE)


# -- reading and making tensors


def test_arrays_given_are_copied() -> None:
    for offset in range(0, 64, 4):
        memory = np.zeros(128, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        array = memory[start : start + 8].view(np.float32)
        clipped = uc.clip_by_norm(array, 1.0)
        array[:] = 5.0
        assert clipped.numpy().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "limit", [tf.constant(1.0), tf.constant([1], tf.int64), tf.constant([[1.0]], tf.bfloat16), tf.Variable(1.0),
              keras.Variable(1.0), np.float32(1.0), np.array([1])], ids=lambda limit: type(limit).__name__,
)  # fmt: skip
def test_thresholds_of_every_kind(limit: Any) -> None:
    close(uc.clip_by_norm(tf.constant(GRADIENT), limit), [0.6, 0.8])
    close(uc.clip_by_value(tf.constant(GRADIENT), -1.0, limit), [1.0, 1.0])


# -- what the compilers must not change


def test_bounds_that_are_tensors_are_rounded_once_and_have_derivatives() -> None:
    # Just above the middle between 1 and the next bfloat16; a cast by way of float32 would give 1.
    tensor, bound = tf.constant([5.0, 0.5], tf.bfloat16), tf.fill([2], tf.constant(1 + 2.0**-8 + 2.0**-40, tf.float64))
    for compiled in COMPILED:
        clip = compiled(uc.clip_by_value)
        assert clip(tensor, -9.0, bound).numpy().tolist() == [1 + 2.0**-7, 0.5]
        assert clip(-tensor, -bound, 9.0).numpy().tolist() == [-1 - 2.0**-7, -0.5]
        assert clip(tensor, -9.0, bound * 1e300).numpy().tolist() == [5.0, 0.5]
        assert clip(tensor, -9.0, bound * math.inf).numpy().tolist() == [5.0, 0.5]
    bound = tf.constant(2.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(bound)
        clipped = uc.clip_by_value(tensor, -9.0, bound)
    assert tape.gradient(clipped, bound).numpy() == 1.0


# -- containers


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
def test_accumulators_are_assigned(kind: Any) -> None:
    accumulator = kind(GRADIENT, trainable=False)
    gradients = [accumulator, tf.constant([12.0]), accumulator]
    assert float(uc.clip_grad_norm_(gradients, 1.0)) == 13.0  # once, though listed twice
    assert gradients[0] is accumulator
    assert gradients[2] is accumulator
    np.testing.assert_allclose(accumulator.numpy(), [3 / 13, 4 / 13], rtol=1e-6)
    close(gradients[1], [12 / 13])
    assert float(uc.clip_grad_norm_(accumulator, 0.1)) == pytest.approx(5 / 13, rel=1e-6)
    np.testing.assert_allclose(accumulator.numpy(), [0.06, 0.08], rtol=1e-4)


@pytest.mark.parametrize("kind", [tf.Variable, keras.Variable])
def test_weights_are_no_gradients(kind: Any) -> None:
    weight = kind(GRADIENT, name="kernel")
    for container in (weight, [weight], {"w": weight}):
        with pytest.raises(TypeError, match="trainable variable 'kernel"):
            uc.clip_grad_norm_(container, 1.0)
    assert weight.numpy().tolist() == GRADIENT
    frozen = keras.layers.Dense(1)
    frozen.build((None, 1))
    frozen.trainable = False  # of the Keras variables only; the tf.Variable inside stays trainable
    uc.clip_grad_norm_(frozen.kernel, 1.0)


def test_the_variable_of_a_pair_without_a_gradient_is_no_gradient() -> None:
    variable = tf.Variable([9.0])
    for pair in ((None, variable), (variable, None)):
        pairs = [(tf.constant([3.0, 4.0]), tf.Variable([1.0, 2.0])), pair]
        assert uc.clip_by_global_norm(pairs, 1.0)[1] == 5.0
        assert uc.clip_grad_norm_(pairs, 1.0) == 5.0
        assert [each is None or each is variable for each in pairs[1]] == [True, True]


def test_pairs_of_classes_in_either_order() -> None:
    for variable in (tf.Variable(GRADIENT, name="w"), keras.Variable(GRADIENT, name="w")):
        gradient = tf.constant(GRADIENT)
        clip = uc.GradientClipByNorm(1.0)
        for pair in ((variable, gradient), (gradient, variable)):
            (returned,) = clip([pair])
            place = int(pair[1] is variable)
            assert returned[place] is variable
            close(returned[1 - place], [0.6, 0.8])
        for wrong, count in (((gradient, gradient), 0), ((variable, variable), 2)):
            with pytest.raises(TypeError, match=f"has {count} Variables. Pass .gradient, variable. or"):
                clip([wrong])
        variable.need_clip = False
        assert clip([(variable, gradient)])[0][1] is gradient
        variable.need_clip = True
        with pytest.raises(RuntimeError, match=r"position 0 \(parameter '.*w"):
            uc.clip_grad_norm_([(tf.constant([math.nan]), variable)], 1.0, error_if_nonfinite=True)


def test_only_tensors_of_tensorflow_are_taken() -> None:
    for wrong in (tf.sparse.from_dense([1.0]), tf.ragged.constant([[1.0]]), tf.TensorSpec([2])):
        with pytest.raises(TypeError, match=r"position 0 is a (Sparse|Ragged|tensorflow.*)Tensor"):
            uc.global_norm([wrong])
    with pytest.raises(TypeError, match="string"):
        uc.global_norm([tf.constant("weight")])


# -- rows given more than once


def slices(rows: list[int], values: Any, dtype: Any = tf.float32) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values, dtype), tf.constant(rows), tf.constant([4, 1]))


def test_rows_of_short_numbers_are_summed_in_a_wider_format() -> None:
    for run in (lambda function: function, *COMPILED):
        for dtype in (tf.float16, tf.bfloat16):
            # In float16 the sum would stop at 2048, in bfloat16 at 256.
            norm = run(lambda g: uc.global_norm([g]))(slices([1] * 3000, [[1.0]] * 3000, dtype))
            assert float(norm) == (3000.0 if dtype == tf.float16 else 3008.0)


def test_an_embeddings_gradient_and_its_derivative() -> None:
    table = tf.Variable([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1, 2]) * tf.constant([[3.0], [4.0], [24.0]]))
    gradients = [(tape.gradient(loss, table), table)]
    assert float(uc.clip_grad_norm_(gradients, 1.0)) == 25.0
    keras.optimizers.SGD(1.0).apply_gradients(gradients)
    close(table, [[1.0], [1.72], [2.04]])
    values = tf.constant([[3.0], [4.0], [24.0]])
    with tf.GradientTape() as tape:
        tape.watch(values)
        norm = uc.global_norm([tf.IndexedSlices(values, tf.constant([1, 1, 2]), tf.constant([4, 1]))])
    close(tape.gradient(norm, values), [[0.28], [0.28], [0.96]])


def test_slices_without_a_dense_shape_or_with_a_tuple() -> None:
    for shape in (None, (4, 1)):
        clipped = uc.clip_by_norm(tf.IndexedSlices(np.array([[3.0], [4.0]]), np.array([1, 1]), shape), 1.0)
        assert clipped.dense_shape == shape
        close(clipped.values, [[1.0]])


# -- a real step


def test_autograph_converts_nothing_of_the_package(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        clipped, _ = uc.clip_by_global_norm([x], 1.0)
        grads = [x]
        uc.clip_grad_norm_(grads, 1.0)
        ((_, by_class),) = uc.GradientClipByNorm(1.0)([(variable, x)])
        return [clipped[0], grads[0], by_class]

    variable = tf.Variable([0.0, 0.0])
    tf.autograph.set_verbosity(1, alsologtostdout=True)
    try:
        results = step(tf.constant([3.0, 4.0]))
    finally:
        tf.autograph.set_verbosity(0, alsologtostdout=False)
    for result in results:
        np.testing.assert_allclose(result, [0.6, 0.8], rtol=1e-6)
    assert "could not transform" not in caplog.text
    converted = re.findall(r"<function (\S+) at \S+> is not cached", capsys.readouterr().out)
    assert len(converted) == 1
    assert converted[0].endswith("step")


def test_workers_import_tensorflow_without_jax_and_scikit_learn() -> None:
    assert not {"jax", "sklearn"} & sys.modules.keys()


@pytest.mark.parametrize("kind", ["RaggedTensor", "SparseTensor"])
def test_the_advice_for_other_kinds_of_tensors_works(kind: str) -> None:
    ragged, dense = tf.ragged.constant([[3.0], [0.0, 4.0]]), tf.constant([[0.0, 3.0], [4.0, 0.0]])
    gradient = ragged if kind == "RaggedTensor" else tf.sparse.from_dense(dense)
    for function in (lambda: uc.global_norm([gradient]), lambda: uc.clip_by_norm(gradient, 1.0)):
        with pytest.raises(TypeError, match=f"a {kind}") as caught:
            function()
    advice = str(caught.value).partition("Pass ")[2].partition(", ")[0]
    assert float(uc.global_norm([eval(advice, {"tf": tf, "gradient": gradient})])) == 5.0


def test_in_place_names_sum_rows_exactly_under_a_tape() -> None:
    gradients = [slices([1, 1, 1], [[2.0**60], [1.0], [-(2.0**60)]])]  # a float64 sum would be 0
    with tf.GradientTape() as tape:
        tape.watch(gradients[0].values)
        assert float(uc.clip_grad_norm_(gradients, 0.5)) == 1.0
    close(gradients[0].values, [[0.5 / (1 + 1e-6)]])
