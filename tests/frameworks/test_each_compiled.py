"""Graphs on a CPU, of each compiler, in loops, branches and transformations: the oracle's results, traced once."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import calls, reference, situations
from support.calls import CALLS, Result
from support.kits import Kit
from support.tiers import is_at_least, nightly, where

from unified_clip._native import KERNELS

pytestmark = [
    pytest.mark.graphs,
    pytest.mark.skipif(KERNELS is None, reason="only the compiled kernels return these bits"),
    pytest.mark.filterwarnings("ignore:Tensor do not have 'place' interface:UserWarning"),  # Paddle's own derivatives
    where(lambda kit: kit.name in MODES),
]

LIMIT = 1.0
NAMES = [name for name, call in CALLS.items() if call.p in (1, 2, math.inf) and not name.startswith("Error")]
"""The functions of one graph."""

Function = Callable[..., list[Any]]
"""A function of tensors that returns a list of tensors."""


def jax_mode(mode: str, function: Function) -> Function:
    import jax
    from jax import lax, numpy

    def while_loop(*tensors: Any) -> Any:
        start = [numpy.zeros(like.shape, like.dtype) for like in jax.eval_shape(function, *tensors)]
        return lax.while_loop(lambda state: state[0] < 1, lambda state: (state[0] + 1, function(*tensors)), (0, start))[
            1
        ]

    @jax.custom_vjp
    def custom_vjp(*tensors: Any) -> Any:
        return function(*tensors)

    custom_vjp.defvjp(lambda *tensors: (function(*tensors), None), lambda _, __: ())

    def of_two(run: Function) -> Function:
        """The second member has another norm."""
        return lambda *tensors: [part[0] for part in run(*(numpy.stack([each, each * 2]) for each in tensors))]

    wrapped = {
        "jit": function,
        "scan": of_two(lambda *tensors: lax.scan(lambda carry, now: (carry, function(*now)), 0, tensors)[1]),
        "cond": lambda *tensors: lax.cond(tensors[0].size > 0, function, function, *tensors),
        "while_loop": while_loop,
        "checkpoint": jax.checkpoint(function),
        "custom_vjp": custom_vjp,
        "vmap": of_two(jax.vmap(function)),
        "jvp": lambda *tensors: jax.jvp(function, tensors, tensors)[0],
        "vjp": lambda *tensors: jax.vjp(function, *tensors)[0],
    }[mode]
    return jax.jit(wrapped)


def tensorflow_mode(mode: str, function: Function) -> Function:
    import tensorflow as tf

    def while_loop(*tensors: Any) -> Any:
        start = [tf.zeros_like(each) for each in function(*tensors)]
        return tf.while_loop(lambda i, *_: i < 2, lambda i, *_: (i + 1, *function(*tensors)), (0, *start))[1:]

    def cond(*tensors: Any) -> Any:
        return tf.cond(tf.size(tensors[0]) > 0, lambda: function(*tensors), lambda: function(*tensors))

    def dataset(*tensors: Any) -> Any:
        data = tf.data.Dataset.from_tensors(tensors).map(lambda *each: tuple(function(*each)))
        return list(next(iter(data)))

    def session(*tensors: Any) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as run:
            shape = None if "unknown" in mode else tensors[0].shape
            first = tf.compat.v1.placeholder(tensors[0].dtype, shape)
            fetches = function(first, *(tf.constant(each.numpy()) for each in tensors[1:]))
            results = run.run(fetches, {first: tensors[0].numpy()})
        return [tf.constant(each) for each in results]

    def of_unknown_shape(shape: Callable[[Any], Any], **options: Any) -> Function:
        def run(*tensors: Any) -> Any:
            signature = [tf.TensorSpec(shape(each), each.dtype) for each in tensors]
            return tf.function(function, input_signature=signature, autograph=False, **options)(*tensors)

        return run

    wrapped: dict[str, Function] = {
        "autograph": tf.function(function),
        "graph": tf.function(function, autograph=False),
        "xla": tf.function(function, autograph=False, jit_compile=True),
        "tf.while_loop": tf.function(while_loop, autograph=False),
        "tf.cond": tf.function(cond, autograph=False),
        "lengths unknown": of_unknown_shape(lambda tensor: [None] * len(tensor.shape)),
        "rank unknown": of_unknown_shape(lambda tensor: None),
        "lengths unknown to xla": of_unknown_shape(lambda tensor: [None] * len(tensor.shape), jit_compile=True),
    }
    return wrapped.get(mode) or (dataset if mode == "dataset" else session)


def paddle_mode(mode: str, function: Function) -> Function:
    """A static program, which is built for the shapes and dtypes of the first call."""
    import paddle
    from support.paddle_programs import program

    built: list[Any] = []

    def while_loop(*tensors: Any) -> Any:
        start = [paddle.full([], 0, "int64"), *map(paddle.zeros_like, function(*tensors))]
        return paddle.static.nn.while_loop(lambda i, *_: i < 2, lambda i, *_: [i + 1, *function(*tensors)], start)[1:]

    wrapped = while_loop if mode == "paddle.while_loop" else function

    def run(*tensors: Any) -> Any:
        dtypes = [str(each.dtype).rpartition(".")[2] for each in tensors]
        fed = [
            each.astype("float32" if "16" in dtype else dtype).numpy()
            for each, dtype in zip(tensors, dtypes, strict=True)
        ]
        feed = {f"g{index}": array for index, array in enumerate(fed)}
        paddle.enable_static()
        try:
            if not built:
                with program():
                    shapes = [[-1] * array.ndim if "unknown" in mode else array.shape for array in fed]
                    data = map(paddle.static.data, feed, shapes, [str(array.dtype) for array in fed])
                    fetched = wrapped(*(each.astype(dtype) for each, dtype in zip(data, dtypes, strict=True)))
                    built.extend([paddle.static.default_main_program(), fetched, paddle.static.Executor()])
            main, fetched, executor = built
            return executor.run(main, feed=feed, fetch_list=fetched)
        finally:
            paddle.disable_static()

    return run


MODES: dict[str, dict[str, bool]] = {
    "jax": dict.fromkeys(["jit", "scan", "cond", "while_loop", "checkpoint", "custom_vjp", "vmap"], True)
    | {"jvp": False, "vjp": False},
    "tensorflow": dict.fromkeys(["graph", "autograph", "tf.while_loop", "tf.cond", "dataset"], True)
    | {"session": True, "session, rank unknown": True, "lengths unknown": True, "rank unknown": True}
    | {"xla": False, "lengths unknown to xla": False},
    "torch": {"aot_eager": True, "inductor": False},
    "paddle": dict.fromkeys(["static program", "program of unknown lengths", "paddle.while_loop"], False),
}
"""For each mode, whether its norms are correctly rounded. Otherwise, they are within 1 ULP."""

QUICK = ["jit", "scan", "graph", "xla", "aot_eager", "static program"]
OTHERS = [mode for modes in MODES.values() for mode in modes if mode not in QUICK]


def in_a_graph(kit: Kit, mode: str) -> Callable[[list[Any]], dict[str, Result]]:
    """Return a function that calls all functions in one graph. PyTorch's parameters are made outside of the graph."""
    inside = SimpleNamespace(namespace=kit.namespace)
    names = [name for name in NAMES if not (kit.name == "paddle" and CALLS[name].in_place)]
    if kit.name == "torch":
        run = importlib.import_module("torch").compile(
            lambda arguments: {name: CALLS[name].run(inside, arguments[name], LIMIT) for name in names},
            backend=mode, fullgraph=True,
        )  # fmt: skip

        def call_all(tensors: list[Any]) -> dict[str, Result]:
            copies = {name: [tensor.clone() for tensor in tensors] for name in names}
            arguments = {name: CALLS[name].prepare(kit, copies[name]) for name in names}
            returned = run(arguments)
            return {name: CALLS[name].read(kit, arguments[name], returned[name]) for name in names}

        return call_all

    norms: dict[str, bool] = {}

    def flat(*tensors: Any) -> list[Any]:
        results: list[Any] = []
        for name in names:
            argument = CALLS[name].prepare(kit, list(tensors))
            result = CALLS[name].read(kit, argument, CALLS[name].run(inside, argument, LIMIT))
            norms[name] = result.norm is not None
            results += [*result.gradients, *([result.norm] if norms[name] else [])]
        return results

    made = {"jax": jax_mode, "tensorflow": tensorflow_mode, "paddle": paddle_mode}[kit.name](mode, flat)

    def call(tensors: list[Any]) -> dict[str, Result]:
        found = iter(made(*tensors))
        return {
            name: Result([next(found) for _ in tensors], next(found) if norms[name] else None) for name in names
        }  # fmt: skip

    return call


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
    for value in (math.nan, math.inf, -math.inf, 0.0, 1.5e-37):  # a tenth of the last one is not subnormal
        yield [reference.array(each, dtype) for each in (np.full(73, value), *rest)]


@pytest.fixture(autouse=True)
def _default_settings(kit: Kit, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIFIED_CLIP_GRAPH", raising=False)
    if kit.name == "torch":
        request.getfixturevalue("kernels_in_new_graphs")


@where(lambda kit, mode: mode in MODES.get(kit.name, ()))
@where(lambda kit, dtype: dtype in kit.floating)
@pytest.mark.parametrize("mode", [*QUICK, *nightly(*OTHERS)])
@pytest.mark.parametrize("dtype", ["float32", *nightly("float16", "bfloat16", "float64")])
def test_all_functions_in_one_graph_return_the_oracles_results(kit: Kit, mode: str, dtype: str) -> None:
    run, exact = in_a_graph(kit, mode), MODES[kit.name][mode]
    for arrays in lists(dtype):
        for name, result in run([kit.tensor(array, dtype) for array in arrays]).items():
            call, n = CALLS[name], None
            if result.norm is not None and call.given_norm is None:
                n = calls.check_norm(kit, result.norm, arrays, call.p, exact=exact)
            for tensor, expected in zip(result.gradients, calls.expected_of(call, arrays, LIMIT, n), strict=True):
                calls.check_gradient(kit, tensor, expected, exact=exact)


# -- what a graph knows of arguments, and what it costs


def compiled(
    kit: Kit, function: Callable[..., Any], xla: bool = False, traced: Callable[[], object] = lambda: None
) -> Callable[..., Any]:
    """traced: What is called for each trace."""
    framework = importlib.import_module(kit.name)
    if kit.name == "torch":  # Dynamo repeats the side effects of a function in each call

        def backend(*graph: Any) -> Any:
            traced()
            return framework._dynamo.lookup_backend("aot_eager")(*graph)

        return framework.compile(function, backend=backend, fullgraph=True)
    if kit.name == "paddle":
        return framework.jit.to_static(function, full_graph=True)

    def counted(*arguments: Any) -> Any:
        traced()
        return function(*arguments)

    if kit.name == "jax":
        return framework.jit(counted)
    return framework.function(counted, autograph=False, jit_compile=xla)


def test_a_traced_threshold_is_used_as_it_is_and_traced_once(kit: Kit) -> None:
    namespace, traces = kit.namespace, itertools.count()

    def clip(gradient: Any, limit: Any) -> list[Any]:
        clipped, norm = namespace.clip_by_global_norm([gradient], limit)
        return [clipped[0], norm, namespace.clip_by_norm(gradient, limit)]

    run, gradient = compiled(kit, clip, traced=partial(next, traces)), kit.tensor([3.0, 4.0])
    for limit in (1.0, -1.0, math.nan, math.inf, 0.0, *np.linspace(0.1, 9, 20).tolist()):
        first, norm, second = (kit.array(each) for each in run(gradient, kit.tensor(limit)))
        assert norm == 5.0
        for clipped in (first, second):
            np.testing.assert_allclose(clipped, np.array([3.0, 4.0]) * min(limit / 5, 1.0), rtol=1e-6)
    assert len(run.program_cache) == 1 if kit.name == "paddle" else next(traces) == 1


def test_a_norm_that_has_to_be_finite_is_rejected_when_traced(kit: Kit) -> None:
    namespace = kit.namespace

    def measure(gradient: Any) -> Any:
        return namespace.get_total_norm([gradient], error_if_nonfinite=True)

    if kit.name == "torch" and not is_at_least("torch", "2.11"):
        pytest.skip("the error of fullgraph=True cannot have the text of ours")
    with pytest.raises(
        Exception, match=r"(?s)from inside a graph.*the norm from the graph, and check the norm outside"
    ):
        compiled(kit, measure)(kit.tensor([3.0, 4.0]))


def test_a_compiled_clip_has_derivatives_by_the_gradient_the_threshold_and_the_norm(kit: Kit) -> None:
    namespace = kit.namespace

    def clip_by(gradient: Any, limit: Any, norm: Any = None) -> Any:
        return namespace.clip_by_global_norm([gradient], limit, use_norm=norm)[0][0]

    clip, measured = compiled(kit, clip_by), compiled(kit, clip_by)
    gradient, limit, norm = kit.tensor([3.0, 4.0]), kit.tensor(1.0), kit.tensor(5.0)
    for function, at, expected in (
        (lambda g: measured(g, limit), gradient, [0.032, -0.024]),
        (lambda c: measured(gradient, c), limit, 1.4),
        (lambda n: clip(gradient, limit, n), norm, -0.28),
    ):
        np.testing.assert_allclose(kit.derivative(function, at), expected, rtol=1e-5)


@where(lambda kit: not kit.on_parameters)
def test_every_entry_counts_in_a_graph(kit: Kit) -> None:
    def norms(gradient: Any) -> Any:
        gradients = [gradient, gradient]
        return kit.namespace.clip_grad_norm_(gradients, 1.0), kit.namespace.global_norm([gradient, gradient])

    for xla in (False, True):
        result = compiled(kit, norms, xla)(kit.tensor([3.0, 4.0]))
        assert [float(norm) for norm in result] == [float(np.float32(50**0.5))] * 2


@where(lambda kit: kit.name in ("jax", "tensorflow"))
@pytest.mark.parametrize("name", ["clip_by_global_norm", "GradientClipByNorm"])
@pytest.mark.parametrize("value", [3e38, 1e3])
def test_xla_does_not_multiply_a_constant_factor_into_the_coefficient(kit: Kit, name: str, value: float) -> None:
    """A product that overflows stays infinite, so that the clipped gradient is NaN, not 0."""
    parameter = kit.parameter()

    def clip(gradient: Any) -> Any:
        grads = [gradient * 1.5, gradient[:2] * 1.5]
        if name == "clip_by_global_norm":
            return kit.namespace.clip_by_global_norm(grads, 0.7)[0]
        return [grad for _, grad in kit.namespace.GradientClipByNorm(0.7)([(parameter, grad) for grad in grads])]

    gradient = kit.tensor([value, *np.random.default_rng(0).standard_normal(39)])
    for result, expected in zip(compiled(kit, clip, xla=True)(gradient), clip(gradient), strict=True):
        np.testing.assert_array_equal(kit.array(result), kit.array(expected))
