"""Compiled graphs on a CPU return the oracle's bits. Static programs of Paddle are in test_paddle_kernels.py."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import calls, reference, situations
from support.calls import CALLS, Result
from support.kits import Kit
from support.tiers import nightly, where

from unified_clip._native import KERNELS

pytestmark = [
    pytest.mark.graphs,
    pytest.mark.skipif(KERNELS is None, reason="only the compiled kernels return these bits"),
    where(lambda kit: kit.name in COMPILERS and kit.exact),
]

LIMIT = 1.0
NAMES = (
    "clip_by_global_norm", "clip_grad_norm_", "clip_grad_norm_, 1", "GradientClipByNorm", "GradientClipByValue",
    "GradientClipByGlobalNorm.clip_", "get_total_norm, 1", "global_norm",
)  # fmt: skip
"""The functions of one graph."""

COMPILERS: dict[str, dict[str, dict[str, Any]]] = {
    "jax": {"jit": {}},
    "tensorflow": {"graph": {"autograph": False}, "xla": {"autograph": False, "jit_compile": True}},
    "torch": {"aot_eager": {"backend": "aot_eager", "fullgraph": True}},
}
"""The options of `jax.jit`, `tf.function` and `torch.compile`."""


def in_a_graph(kit: Kit, mode: str) -> Callable[[list[Any]], dict[str, Result]]:
    """Return a function that calls all functions in one graph. PyTorch's parameters are made outside of the graph."""
    framework: Any = importlib.import_module(kit.name)
    options, inside = COMPILERS[kit.name][mode], SimpleNamespace(namespace=kit.namespace)
    if kit.name == "torch":
        run = framework.compile(
            lambda arguments: {name: CALLS[name].run(inside, arguments[name], LIMIT) for name in NAMES}, **options
        )

        def call_all(tensors: list[Any]) -> dict[str, Result]:
            copies = {name: [tensor.clone() for tensor in tensors] for name in NAMES}
            arguments = {name: CALLS[name].prepare(kit, copies[name]) for name in NAMES}
            returned = run(arguments)
            return {name: CALLS[name].read(kit, arguments[name], returned[name]) for name in NAMES}

        return call_all

    def traced(tensors: list[Any]) -> dict[str, tuple[Any, Any]]:
        arguments = {name: CALLS[name].prepare(kit, list(tensors)) for name in NAMES}
        returned = {name: CALLS[name].run(inside, arguments[name], LIMIT) for name in NAMES}
        return {name: tuple(CALLS[name].read(kit, arguments[name], returned[name])) for name in NAMES}

    compiled = (framework.jit if kit.name == "jax" else framework.function)(traced, **options)
    return lambda tensors: {name: Result(*result) for name, result in compiled(tensors).items()}


def lists(dtype: str) -> Iterator[list[np.ndarray]]:
    """Yield lists of the same shapes: random numbers of many sizes, norms half-way between two numbers of the norm's
    dtype or just above, and numbers that are not finite."""
    shapes = [(73,), (5, 7), (), (0, 2)]
    rest = [np.zeros(shape) for shape in shapes[1:]]
    for seed in range(12):
        random, scale = np.random.default_rng(seed), 2.0 ** (seed % 9 - 4)
        yield [reference.array(random.standard_normal(shape) * scale, dtype) for shape in shapes]
    bits = 53 if dtype == "float64" else 24
    for legs in ((3, 4, 5), (5, 12, 13), (8, 15, 17)) if dtype in ("float32", "float64") else ():
        scale = (2 ** (bits + 1) - 1) // legs[2] | 1
        for least in (0.0, 2.0**-40):
            numbers = [legs[0] * scale, legs[1] * scale, least, *[0.0] * 70]
            yield [reference.array(each, dtype) for each in (numbers, *rest)]
    yield [reference.array(each, dtype) for each in (situations.NEAR_A_BOUNDARY, *rest)]
    for value in (math.nan, math.inf, -math.inf, 0.0, 1.5e-38):
        yield [reference.array(each, dtype) for each in (np.full(73, value), *rest)]


@pytest.fixture(autouse=True)
def _default_settings(kit: Kit, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIED_CLIP_GRAPH", raising=False)
    if kit.name == "torch":
        request.getfixturevalue("kernels_in_new_graphs")


@where(lambda kit, mode: mode in COMPILERS.get(kit.name, ()))
@where(lambda kit, dtype: dtype in kit.floating)
@pytest.mark.parametrize("mode", ["jit", "graph", "xla", "aot_eager"])
@pytest.mark.parametrize("dtype", ["float32", *nightly("float16", "bfloat16", "float64")])
def test_all_functions_in_one_graph_return_the_oracles_bits(kit: Kit, mode: str, dtype: str) -> None:
    run = in_a_graph(kit, mode)
    for arrays in lists(dtype):
        for name, result in run([kit.tensor(array, dtype) for array in arrays]).items():
            call, n = CALLS[name], None
            if result.norm is not None:
                n = calls.check_norm(kit, result.norm, arrays, call.p, exact=True)
            for tensor, expected in zip(result.gradients, calls.expected_of(call, arrays, LIMIT, n), strict=True):
                calls.check_gradient(kit, tensor, expected, exact=True)
