"""Paddle: with UNIFIED_CLIP_GRAPH=kernels, static programs call the kernels, with the bits of the host path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from support.paddle_programs import program

import unified_clip
import unified_clip.paddle as uc
from unified_clip._native import KERNELS

pytestmark = [
    pytest.mark.skipif(KERNELS is None, reason="this build has no compiled kernels"),
    pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning"),  # Paddle's backward pass
]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIED_CLIP_PATH", raising=False)
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "kernels")


def gradients(scale: float = 1.0) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [
        (random.standard_normal(shape) * scale).astype("float32") for shape in ((5, 7), (3,), (), (0, 4), (2, 1, 4))
    ]


@contextmanager
def static_mode() -> Iterator[None]:
    paddle.enable_static()
    try:
        yield
    finally:
        paddle.disable_static()


def values(arrays: Sequence[np.ndarray], dtype: str = "float32") -> tuple[list[Any], dict[str, np.ndarray]]:
    """Return values of the current program, and what to feed them with."""
    fed = {f"g{index}": array for index, array in enumerate(arrays)}
    return [paddle.static.data(name, array.shape, "float32").astype(dtype) for name, array in fed.items()], fed


def operators(block_or_program: Any = None) -> list[str]:
    """Return the operators of unified_clip in the main program."""
    ops = paddle.static.default_main_program().global_block().ops
    return [op.name().removeprefix("py_op.unified_clip_") for op in ops if "unified_clip" in op.name()]


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


CALLS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "clip_by_global_norm": lambda t: [*(both := uc.clip_by_global_norm(t, 1.5))[0], both[1]],
    "below the threshold": lambda t: uc.clip_by_global_norm(t, 1e30)[0],
    "order 1": lambda t: [uc.get_total_norm(t, 1)],
    "a norm per tensor": in_pairs(uc.GradientClipByNorm(1.5)),
    "the norm over all": in_pairs(uc.ClipGradByGlobalNorm(1.5)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("scale", [1.0, 1e-42, 1e38])
def test_a_program_has_the_bits_of_the_host_path(name: str, dtype: str, scale: float) -> None:
    arrays = gradients(scale)
    assert in_program(CALLS[name], arrays, dtype) == eagerly(CALLS[name], arrays, dtype)


def test_lists_of_dtypes_have_the_bits_of_the_host_path() -> None:
    def clip(tensors: list[Any]) -> list[Any]:
        dtypes = ("float32", "bfloat16", "float64", "float16", "float32")
        mixed = [tensor.astype(dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
        clipped, norm = uc.clip_by_global_norm(mixed, 1.5)
        return [*clipped, norm]

    assert in_program(clip, gradients(), "float32") == eagerly(clip, gradients(), "float32")


def test_an_unknown_number_of_rows_may_be_none() -> None:
    with static_mode(), program():
        rows = paddle.static.data("rows", [-1, 3], "float32")
        clipped, norm = uc.clip_by_global_norm([rows], 1.0)
        each = in_pairs(uc.GradientClipByNorm(1.0))([rows])
        executor = paddle.static.Executor()
        for count in (0, 2):
            fed = np.full((count, 3), 2.0, np.float32)
            found = executor.run(feed={"rows": fed}, fetch_list=[norm, *clipped, *each])
            exact = np.float32(np.sqrt(12.0 * count))
            assert found[0] == exact
            for result in found[1:]:
                np.testing.assert_array_equal(result, fed * np.float32(1 / max(exact, 1)), strict=True)


# -- training


class Net(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        constant = paddle.nn.initializer.Constant(0.25)
        self.layers = paddle.nn.LayerList(
            [paddle.nn.Linear(4, 4, paddle.ParamAttr(initializer=constant)) for _ in "ab"]
        )

    def forward(self, x: Any) -> Any:
        return self.layers[1](paddle.tanh(self.layers[0](x))).square().mean()


def batch(step: int) -> np.ndarray:
    return np.random.default_rng(step).standard_normal((8, 4)).astype("float32")


@pytest.mark.parametrize("clip", [uc.ClipGradByGlobalNorm(0.05), uc.ClipGradByNorm(0.05)], ids=["global", "per tensor"])
def test_optimizers_of_a_program_train_as_in_dynamic_mode(clip: Any) -> None:
    net = Net()
    optimizer = paddle.optimizer.SGD(0.5, parameters=net.parameters(), grad_clip=clip)
    losses = []
    for step in range(5):
        losses.append(loss := net(paddle.to_tensor(batch(step))))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
    with static_mode(), program():
        x = paddle.static.data("x", [8, 4], "float32")
        loss = Net()(x)
        paddle.optimizer.SGD(0.5, grad_clip=clip).minimize(loss)
        assert [name.split("_")[0] for name in operators()] == ["norm", "scale"]
        executor = paddle.static.Executor()
        executor.run(paddle.static.default_startup_program())
        found = [executor.run(feed={"x": batch(step)}, fetch_list=[loss])[0] for step in range(5)]
    np.testing.assert_array_equal(found, [float(loss) for loss in losses])


def test_branches_and_loops_call_the_kernels() -> None:
    def clip(t: Any) -> Any:
        return uc.clip_by_norm(t, 0.5)

    def step(index: Any, t: Any) -> list[Any]:
        return [index + 1, clip(t) * 3.0]

    with static_mode(), program():
        t = paddle.static.data("t", [2], "float32")
        chosen = paddle.static.nn.cond(t.sum() > 0, lambda: clip(t), lambda: t)
        looped = paddle.static.nn.while_loop(lambda index, _: index < 3, step, [paddle.full([], 0, "int64"), t])[1]
        executor = paddle.static.Executor()
        for sign in (1, -1):
            fed = np.float32([3.0, 4.0]) * np.float32(sign)
            found = executor.run(feed={"t": fed}, fetch_list=[chosen, looped])
            np.testing.assert_allclose(found[0], fed / 10 if sign > 0 else fed, rtol=1e-6)
            np.testing.assert_allclose(found[1], fed * 0.3, rtol=1e-6)


def test_a_result_shares_no_memory_with_an_unchanged_gradient() -> None:
    with static_mode(), program():
        given, fed = values(gradients())
        results = in_pairs(uc.GradientClipByNorm(1e9))(given)
        paddle.assign(given[0] * 2.0, results[0])
        afterwards = given[0] + (results[0] - results[0])
        found = paddle.static.Executor().run(feed=fed, fetch_list=[afterwards, results[0]])
    np.testing.assert_array_equal(found[0], fed["g0"])
    np.testing.assert_array_equal(found[1], fed["g0"] * 2)


def test_programs_run_in_several_threads() -> None:
    """An operator computes eagerly in its own thread. Another thread that builds a program stays in static mode."""
    arrays = [np.random.default_rng(0).standard_normal((300, 400)).astype("float32")] * 20
    found: list[bytes] = []
    with static_mode():
        with program():
            given, fed = values(arrays)
            fetched = uc.clip_by_global_norm(given, 1.0)[1]
            main = paddle.static.default_main_program()

        def run(executor: Any, scope: Any, times: int) -> None:
            for _ in range(times):
                found.append(executor.run(main, feed=fed, fetch_list=[fetched], scope=scope)[0].tobytes())

        both = [(paddle.static.Executor(), paddle.static.Scope()) for _ in range(2)]
        for executor, scope in both:
            run(executor, scope, 1)  # Paddle prepares a program in one thread only
        threads = [threading.Thread(target=run, args=(*one, 20)) for one in both]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert not paddle.in_dynamic_mode()
        for thread in threads:
            thread.join()
    assert len(found) == 42
    assert set(found) == {uc.global_norm([paddle.to_tensor(array) for array in arrays]).numpy().tobytes()}


# -- without the kernels


def test_derivatives_need_operations_of_paddle() -> None:
    with static_mode(), program():
        t = paddle.static.data("t", [3], "float32")
        t.stop_gradient = False
        clipped = uc.clip_by_norm(t, 1.0)
        (derivative,) = paddle.static.gradients([clipped.sum()], [t])
        assert operators() == []
        found = paddle.static.Executor().run(feed={"t": np.float32([3, 0, 4])}, fetch_list=[derivative])[0]
    np.testing.assert_allclose(found, [0.032, 0.2, -0.024], rtol=1e-6)


@pytest.mark.parametrize("variable", ["UNIFIED_CLIP_GRAPH", "UNIFIED_CLIP_PATH"])
def test_operations_of_paddle_compute_on_request(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "framework")
    with static_mode(), program():
        uc.clip_by_global_norm(values(gradients())[0], 1.0)
        assert operators() == []


def test_programs_can_be_saved_by_default_but_not_with_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with static_mode(), program():
        uc.clip_by_global_norm(values(gradients())[0], 1.0)
        with pytest.raises(ValueError, match="Unknown Attr"):
            paddle.static.save(paddle.static.default_main_program(), str(tmp_path / "with"))
    monkeypatch.delenv("UNIFIED_CLIP_GRAPH")
    with static_mode(), program():
        uc.clip_by_global_norm(values(gradients())[0], 1.0)
        assert operators() == []
        paddle.static.save(paddle.static.default_main_program(), str(tmp_path / "without"))
    assert (tmp_path / "without.json").is_file()


def test_native_available_is_what_programs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unified_clip.native_available("paddle")
    monkeypatch.delenv("UNIFIED_CLIP_GRAPH")
    assert not unified_clip.native_available("paddle")
