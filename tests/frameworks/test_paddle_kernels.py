"""Paddle: static programs call the kernels, with the bits of the host path."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from support.paddle_programs import BACKWARD_WARNS, program

import unified_clip
import unified_clip.paddle as uc
from unified_clip import numpy
from unified_clip._backends.paddle.kernel_operators import REGISTERED, SHORT

pytestmark = [
    pytest.mark.skipif(not REGISTERED, reason="no compiled kernels, or a Paddle whose programs cannot call them"),
    BACKWARD_WARNS,
]


def gradients(scale: float = 1.0) -> list[np.ndarray]:
    """Return arrays. The last one is so long that the kernels multiply it, not Paddle."""
    random = np.random.default_rng(0)
    shapes = ((5, 7), (3,), (), (0, 4), (2, 1, 4), (2, SHORT))
    return [(random.uniform(-3, 3, shape) * scale).astype("float32") for shape in shapes]


@contextmanager
def static_mode() -> Iterator[None]:
    paddle.enable_static()
    try:
        yield
    finally:
        paddle.disable_static()


def values(arrays: Sequence[np.ndarray], dtype: str = "float32") -> tuple[list[Any], dict[str, np.ndarray]]:
    fed = {f"g{index}": array for index, array in enumerate(arrays)}
    return [paddle.static.data(name, array.shape, "float32").astype(dtype) for name, array in fed.items()], fed


def operators(program: Any = None) -> list[str]:
    ops = (program or paddle.static.default_main_program()).global_block().ops
    prefix = "custom_op.unified_clip_"
    return [op.name().removeprefix(prefix) for op in ops if op.name().startswith(prefix)]


def in_program(function: Callable[[list[Any]], list[Any]], arrays: list[np.ndarray], dtype: str) -> list[bytes]:
    with static_mode(), program():
        given, fed = values(arrays, dtype)
        fetched = function(given)
        assert operators()
        results = paddle.static.Executor().run(feed=fed, fetch_list=fetched)
    return [result.tobytes() for result in results]


def eagerly(function: Callable[[list[Any]], list[Any]], arrays: list[np.ndarray], dtype: str) -> list[bytes]:
    return [result.numpy().tobytes() for result in function([paddle.to_tensor(a).astype(dtype) for a in arrays])]


def in_pairs(clip: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda tensors: [clipped for _, clipped in clip([(None, tensor) for tensor in tensors])]


def test_lists_of_dtypes_have_the_bits_of_the_host_path() -> None:
    def clip(tensors: list[Any]) -> list[Any]:
        dtypes = ("float32", "bfloat16", "float64", "float16", "float32", "bfloat16")
        mixed = [tensor.astype(dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
        clipped, norm = uc.clip_by_global_norm(mixed, 1.5)
        return [*clipped, norm]

    assert in_program(clip, gradients(), "float32") == eagerly(clip, gradients(), "float32")


# -- training


def test_a_result_shares_no_memory_with_an_unchanged_gradient() -> None:
    with static_mode(), program():
        given, fed = values(gradients())
        results = in_pairs(uc.GradientClipByNorm(1e9))(given)
        for index in (0, 5):  # a short and a long one
            paddle.assign(given[index] * 2.0, results[index])
            afterwards = given[index] + (results[index] - results[index])
            result = paddle.static.Executor().run(feed=fed, fetch_list=[afterwards, results[index]])
            np.testing.assert_array_equal(result[0], fed[f"g{index}"])
            np.testing.assert_array_equal(result[1], fed[f"g{index}"] * 2)


# -- without the kernels


@pytest.mark.parametrize("variable", ["UNIFIED_CLIP_GRAPH", "UNIFIED_CLIP_PATH"])
def test_operations_of_paddle_compute_on_request(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unified_clip.native_available("paddle")
    monkeypatch.setenv(variable, "framework")
    assert not unified_clip.native_available("paddle")
    with static_mode(), program():
        uc.clip_by_global_norm(values(gradients())[0], 1.0)
        assert operators() == []


# -- memory


def long_value(dtype: str = "float32") -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    fed = np.random.default_rng(0).standard_normal((2, SHORT)).astype("float32")
    return paddle.static.data("x", fed.shape, "float32").astype(dtype) * 2.0, fed * 2, {"x": fed}


def numpy_clipped(array: np.ndarray, threshold: float) -> np.ndarray:
    (clipped,), _ = numpy.clip_by_global_norm([array], threshold)
    return clipped


def run(fed: dict[str, np.ndarray], fetched: list[Any]) -> list[np.ndarray]:
    return paddle.static.Executor().run(feed=fed, fetch_list=fetched)


def test_a_gradient_that_is_read_after_the_clip_keeps_its_value() -> None:
    for read_later in ("fetched", "used", "not read"):
        with static_mode(), program():
            value, array, fed = long_value()
            clipped = uc.clip_by_global_norm([value], 1.0)[0][0]
            assert operators() == ["norm_2", "scale_"]
            other = {"fetched": value, "used": value - 1.0, "not read": clipped}[read_later]
            results = run(fed, [clipped, other])
        expected = numpy_clipped(array, 1.0)
        np.testing.assert_array_equal(results[0], expected)
        np.testing.assert_array_equal(
            results[1], {"fetched": array, "used": array - 1, "not read": expected}[read_later]
        )


def test_equal_clips_of_one_gradient_are_not_merged_into_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """to_static eliminates common subexpressions. The copies of a gradient are such, but are written to."""
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "kernels")

    def function(x: Any) -> tuple[Any, Any]:
        value = x * 2.0
        first, second = (uc.clip_by_global_norm([value], threshold)[0][0] for threshold in (1.0, 2.0))
        return first, second

    array = np.random.default_rng(0).standard_normal((2, SHORT)).astype("float32")
    compiled = paddle.jit.to_static(function, full_graph=True)
    for result, threshold in zip(compiled(paddle.to_tensor(array)), (1.0, 2.0), strict=True):
        np.testing.assert_array_equal(result.numpy(), numpy_clipped(array * 2, threshold))
    names = [op.name() for op in compiled.concrete_program.main_program.global_block().ops]
    assert names.count("custom_op.unified_clip_scale_") == 2


# -- saved programs

ZEROS = paddle.nn.initializer.Constant(0.0)

LOADS_A_PROGRAM = """
import sys
{imports}
import numpy as np, paddle
paddle.enable_static()
executor = paddle.static.Executor()
program, feeds, fetches = paddle.static.load_inference_model(sys.argv[1], executor)
for _ in "ab":
    results = executor.run(program, feed={{feeds[0]: np.load(sys.argv[1] + ".npy")}}, fetch_list=fetches)
np.save(sys.argv[1] + ".result.npy", results[0])
"""


def load_elsewhere(path: Path, imports: str) -> subprocess.CompletedProcess[str]:
    code = LOADS_A_PROGRAM.format(imports=imports)
    return subprocess.run([sys.executable, "-P", "-c", code, str(path)], capture_output=True, text=True, timeout=300)


def paddle_data() -> Any:
    ops = paddle.static.default_main_program().global_block().ops
    return next(op.result(0) for op in ops if op.name() == "pd_op.data")


def save_clip(path: Path) -> np.ndarray:
    with static_mode(), program():
        value, array, fed = long_value()
        with paddle.no_grad():  # for an inference
            value = value + paddle.static.create_parameter([1], "float32", default_initializer=ZEROS)
            clipped = uc.clip_by_global_norm([value], 1.0)[0][0]
        executor = paddle.static.Executor()
        executor.run(paddle.static.default_startup_program())
        paddle.static.save_inference_model(str(path), [paddle_data()], [clipped], executor)
    np.save(f"{path}.npy", fed["x"])
    return numpy_clipped(array, 1.0)


def test_a_saved_program_runs_where_unified_clip_is_imported(tmp_path: Path) -> None:
    expected = save_clip(tmp_path / "clip")
    loaded = load_elsewhere(tmp_path / "clip", "import unified_clip.paddle")
    assert loaded.returncode == 0, loaded.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "clip.result.npy"), expected)
    loaded = load_elsewhere(tmp_path / "clip", "")
    assert loaded.returncode != 0
    assert "defs should equal op outputs" in loaded.stderr  # Paddle's words, which docs/paddle.md explains


def test_a_program_saved_with_operations_needs_paddle_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    expected = save_clip(tmp_path / "clip")
    loaded = load_elsewhere(tmp_path / "clip", "sys.modules['unified_clip'] = None")
    assert loaded.returncode == 0, loaded.stderr
    np.testing.assert_allclose(np.load(tmp_path / "clip.result.npy"), expected, rtol=1e-6)


# -- where the kernels compute


def test_complex_gradients_have_the_bits_of_the_host_path() -> None:
    random = np.random.default_rng(0)
    arrays = [(random.standard_normal(shape) + 1j * random.standard_normal(shape)) for shape in ((2, SHORT), (3,), ())]
    arrays = [array.astype("complex64") for array in arrays]
    with static_mode(), program():
        values = [paddle.static.data(f"g{index}", array.shape, "complex64") for index, array in enumerate(arrays)]
        clipped, norm = uc.clip_by_global_norm(values, 1.5)
        assert operators()[0] == "norm_2"
        results = run({f"g{index}": array for index, array in enumerate(arrays)}, [*clipped, norm])
    expected = uc.clip_by_global_norm([paddle.to_tensor(array) for array in arrays], 1.5)
    for result, tensor in zip(results, [*expected[0], expected[1]], strict=True):
        np.testing.assert_array_equal(result, tensor.numpy())


def test_graphs_of_to_static_call_the_kernels_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, a model that paddle.jit.save saves needs no unified_clip."""

    def function(x: Any) -> Any:
        return uc.clip_by_norm(x, 1.0)

    names = []
    for setting in ("", "kernels"):
        monkeypatch.setenv("UNIFIED_CLIP_GRAPH", setting)
        compiled = paddle.jit.to_static(function, full_graph=True)
        assert compiled(paddle.to_tensor([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
        names.append(operators(compiled.concrete_program.main_program))
    assert names == [[], ["norm_2"]]


def test_native_available_is_what_programs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unified_clip.native_available("paddle")
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    assert not unified_clip.native_available("paddle")
