"""TensorFlow: graphs on a CPU call the compiled kernels, by two operations, with the bits of the host path.

Graphs that XLA compiles are in test_tensorflow_xla.py.
"""

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


@pytest.fixture(autouse=True)
def _default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIED_CLIP_PATH", raising=False)
    monkeypatch.delenv("UNIFIED_CLIP_GRAPH", raising=False)


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


def test_an_imported_graph_has_per_tensor_derivatives() -> None:
    """TensorFlow infers no shape of the norms when it imports the graph."""

    def derivatives(graph: tf.Graph) -> list[Any]:
        with graph.as_default(), tf.compat.v1.Session() as session:
            x, clipped = ([graph.get_tensor_by_name(f"{name}{k}:0") for k in (0, 1)] for name in ("x", "clipped"))
            weighted = tf.reduce_sum(clipped[0] * [1.0, 2.0]) + tf.reduce_sum(clipped[1] * [3.0, 4.0])
            results: list[Any] = session.run(tf.gradients(weighted, x))
            return results

    with tf.Graph().as_default() as graph:
        x = [tf.constant([3.0, 4.0], name="x0"), tf.constant([6.0, 1.0], name="x1")]
        variables = [tf.compat.v1.get_variable(f"v{index}", [2]) for index in range(2)]
        pairs = uc.GradientClipByNorm(1.0)(list(zip(x, variables, strict=True)))
        for index, (grad, _) in enumerate(pairs):
            tf.identity(grad, name=f"clipped{index}")
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph.as_graph_def(), name="")
    np.testing.assert_array_equal(derivatives(imported), derivatives(graph))
    np.testing.assert_allclose(derivatives(graph)[0], [-0.064, 0.048], rtol=1e-6)


SAVE = """
import sys
import tensorflow as tf
import unified_clip
import unified_clip.tensorflow as uc


class Program(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def clip(self, x):
        return uc.clip_by_global_norm([x], 1.0)[0][0]


tf.saved_model.save(Program(), sys.argv[1])
"""
LOAD = """
import sys
import tensorflow as tf

print(tf.saved_model.load({path!r}).clip(tf.constant([3.0, 4.0])).numpy().tolist())
"""


@pytest.mark.nightly
def test_loading_a_saved_model_without_unified_clip_names_the_operation(tmp_path: Path) -> None:
    path = str(tmp_path / "program")
    in_a_new_process(SAVE.replace("sys.argv[1]", repr(path)))
    loaded = in_a_new_process("import unified_clip.tensorflow" + LOAD.format(path=path))
    assert loaded.strip() == str(np.float32([0.6, 0.8]).tolist())
    failed = subprocess.run([sys.executable, "-c", LOAD.format(path=path)], capture_output=True, text=True, check=False)
    assert failed.returncode
    assert "Op type not registered 'UnifiedClipNorm'" in failed.stderr


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
print(tf.function(uc.global_norm)([tf.constant([3.0, 4.0])]).numpy(), unified_clip.native_available("tensorflow"))
"""


@pytest.mark.nightly
def test_operations_of_another_copy_are_not_registered_again() -> None:
    assert in_a_new_process(OTHER_COPY).strip() == "5.0 False"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
# TensorFlow allocates one result, and the kernels several
@pytest.mark.nightly
@pytest.mark.parametrize("lengths", [[60_000_000], [3, 60_000_000]])
def test_a_lack_of_memory_raises_resource_exhausted(lengths: list[int]) -> None:
    assert in_a_new_process(NO_MEMORY.format(lengths=lengths)).strip() == "ResourceExhaustedError"


NO_MEMORY = """
import resource
import tensorflow as tf
import unified_clip.tensorflow as uc
clip = tf.function(lambda grads: uc.clip_by_global_norm(grads, 1.0))
grads = [tf.ones(length) for length in {lengths}]
clip([tf.ones(3)] * len(grads))
clip.get_concrete_function(grads)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
try:
    clip(grads)
except tf.errors.OpError as error:
    print(type(error).__name__)
"""


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
