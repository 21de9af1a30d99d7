"""The functions to compare, for each framework. Each function here imports its own framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .lists import DTYPES, Array
from .measure import Pair

MOST_COMPILED = 1000
"""Longer lists are not compiled: XLA takes many minutes for ten thousand tensors."""


MOST_COMPILED_BY_TORCH = 200
"""The same for `torch.compile`, which takes five to ten minutes for a thousand tensors."""


class Pairs(NamedTuple):
    """The pairs of functions to compare on one list of gradients."""

    clips: Callable[[float], list[Pair]]
    """Clip by the global norm to a limit. The first pair has the framework's most common function."""

    norm: Pair
    """The norm alone."""

    memory: Callable[[], list[Array]]
    """Views of the gradients' memory. They do not keep the gradients alive."""

    in_graphs: Callable[[float], list[Pair]] = lambda limit: []
    """The same clip, with each function compiled or in a graph of its own."""


def numpy_pairs(arrays: Sequence[Array]) -> Pairs:
    """NumPy has no clipping function: the pair has plain NumPy code."""
    import unified_clip.numpy as uc

    grads: list[Any] = [array.copy() for array in arrays]

    def restore() -> Any:
        for grad, array in zip(grads, arrays, strict=True):
            np.copyto(grad, array)
        return grads

    def norm(given: Any) -> Any:
        return np.sqrt(sum(np.vdot(grad, grad) for grad in given))

    def clip(given: Any, limit: float) -> Any:
        n = norm(given)
        if n > limit:
            for grad in given:
                grad *= limit / n
        return n

    def clips(limit: float) -> list[Pair]:
        ours = Pair("plain NumPy", restore, lambda given: uc.clip_grad_norm_(given, limit))
        return [ours._replace(theirs=lambda given: clip(given, limit), in_place=True)]

    return Pairs(clips, Pair("plain NumPy", lambda: arrays, uc.get_total_norm, norm), lambda: grads)


def torch_pairs(arrays: Sequence[Array]) -> Pairs:
    import torch

    import unified_clip.torch as uc

    from .._ops.torch_ops import OPS

    def tensor(array: Any) -> Any:
        is_float32 = array.dtype == np.float32
        return torch.from_numpy(array) if is_float32 else torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)

    masters = [tensor(array) for array in arrays]
    parameters = [torch.nn.Parameter(torch.empty_like(master)) for master in masters]
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.grad = master.clone()

    def restore() -> Any:
        torch._foreach_copy_([parameter.grad for parameter in parameters], masters)
        return parameters

    def clips(limit: float) -> list[Pair]:
        ours = Pair("torch.nn.utils.clip_grad_norm_", restore, lambda given: uc.clip_grad_norm_(given, limit))
        return [ours._replace(theirs=lambda given: torch.nn.utils.clip_grad_norm_(given, limit), in_place=True)]

    def in_graphs(limit: float) -> list[Pair]:
        if len(arrays) > MOST_COMPILED_BY_TORCH:
            return []
        torch.compiler.reset()  # the graphs of another limit, or the limit would no longer be a constant

        def compiled(clip: Any) -> Any:
            return torch.compile(lambda given: clip(given, limit), fullgraph=True)

        name = "torch.nn.utils.clip_grad_norm_ (torch.compile)"
        ours = Pair(name, restore, compiled(uc.clip_grad_norm_), in_place=True)
        return [ours._replace(theirs=compiled(torch.nn.utils.clip_grad_norm_))]

    name = "torch.nn.utils.get_total_norm"
    ours = Pair(name, lambda: masters, uc.get_total_norm, torch.nn.utils.get_total_norm)
    return Pairs(clips, ours, lambda: [OPS.host_view(parameter.grad) for parameter in parameters], in_graphs)


def tensorflow_pairs(arrays: Sequence[Array]) -> Pairs:
    """On the CPU, eager and compiled calls return when they are done."""
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    from .._ops.tensorflow_ops import OPS

    grads = [tf.constant(array) for array in arrays]
    compiled = tf.function(tf.clip_by_global_norm, jit_compile=True)

    def clips(limit: float) -> list[Pair]:
        held = tf.constant(limit, grads[0].dtype)  # an argument: a number would be compiled in
        eager = Pair("tf.clip_by_global_norm", lambda: grads, lambda given: uc.clip_by_global_norm(given, limit))
        found = [eager._replace(theirs=lambda given: tf.clip_by_global_norm(given, limit))]
        if len(grads) <= MOST_COMPILED:
            found.append(eager._replace(native=f"{eager.native} (XLA)", theirs=lambda given: compiled(given, held)))
        return found

    def clip(given: Any, limit: Any) -> Any:
        return uc.clip_by_global_norm(given, limit)

    graphs = {
        "in tf.function": (tf.function(clip), tf.function(tf.clip_by_global_norm)),
        "in XLA": (tf.function(clip, jit_compile=True), compiled),
    }

    def in_graphs(limit: float) -> list[Pair]:
        held = tf.constant(limit, grads[0].dtype)

        def pair(kind: str, ours: Any, theirs: Any) -> Pair:
            ours_held, theirs_held = (lambda given: ours(given, held)), (lambda given: theirs(given, held))
            return Pair(f"tf.clip_by_global_norm ({kind})", lambda: grads, ours_held, theirs_held)

        return [pair(kind, *both) for kind, both in graphs.items()]

    ours = Pair("tf.linalg.global_norm", lambda: grads, uc.global_norm, tf.linalg.global_norm)
    return Pairs(clips, ours, lambda: [OPS.host_view(grad) for grad in grads], in_graphs)


def paddle_pairs(arrays: Sequence[Array]) -> Pairs:
    """Paddle has no function for the norm alone, and no CPU kernel for the norm of bfloat16."""
    import paddle

    import unified_clip.paddle as uc

    from .._ops.paddle_ops import OPS

    has_native = arrays[0].dtype == np.float32
    dtype = "float32" if has_native else "bfloat16"
    zeros = paddle.nn.initializer.Constant(0.0)
    masters = [paddle.to_tensor(array if has_native else array.view(np.uint16)) for array in arrays]
    parameters = [paddle.create_parameter(master.shape, dtype, default_initializer=zeros) for master in masters]
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.grad = master  # a copy

    def restore() -> Any:
        for parameter, master in zip(parameters, masters, strict=True):
            paddle.assign(master, output=parameter.grad)
        return parameters

    def in_pairs() -> Any:
        return [(parameter, parameter.grad) for parameter in restore()]

    def clips(limit: float) -> list[Pair]:
        by_class = Pair("paddle.nn.ClipGradByGlobalNorm", in_pairs, uc.ClipGradByGlobalNorm(limit))
        by_name = Pair("paddle.nn.utils.clip_grad_norm_", restore, lambda given: uc.clip_grad_norm_(given, limit))
        by_name = by_name._replace(in_place=True)
        if not has_native:
            return [by_class, by_name]
        return [
            by_class._replace(theirs=paddle.nn.ClipGradByGlobalNorm(limit)),
            by_name._replace(theirs=lambda given: paddle.nn.utils.clip_grad_norm_(given, limit)),
        ]

    def in_graphs(limit: float) -> list[Pair]:
        if not has_native:
            return []
        name = "paddle.nn.ClipGradByGlobalNorm (static program)"
        ours = Pair(name, lambda: None, _static_program(arrays, uc.ClipGradByGlobalNorm(limit)))
        return [ours._replace(theirs=_static_program(arrays, paddle.nn.ClipGradByGlobalNorm(limit)))]

    ours = Pair("", lambda: masters, uc.get_total_norm)
    return Pairs(clips, ours, lambda: [OPS.host_view(parameter.grad) for parameter in parameters], in_graphs)


def _static_program(arrays: Sequence[Array], clip: Any) -> Callable[[Any], Any]:
    """A function that runs a program of its own, in which gradients that lie in its scope are clipped.

    The results lie there too, since feeding and fetching copies them.
    """
    import paddle

    program, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    zeros = paddle.nn.initializer.Constant(0.0)
    attributes = [paddle.ParamAttr(name=f"gradient{i}", initializer=zeros) for i in range(len(arrays))]

    def run(_: Any) -> Any:
        with paddle.base.framework._dygraph_guard(None):  # enable_static and disable_static take 0.1 ms
            executor.run(program, scope=scope)
        return results

    def tensor(name: str) -> Any:
        return scope.find_var(name).get_tensor()

    paddle.enable_static()
    try:
        with paddle.static.program_guard(program, startup):
            given = [
                paddle.static.create_parameter(array.shape, "float32", attr=attribute)
                for array, attribute in zip(arrays, attributes, strict=True)
            ]
            for index, (_, clipped) in enumerate(clip([(gradient, gradient) for gradient in given])):
                clipped.persistable = True
                paddle._pir_ops.set_persistable_value(clipped, f"clipped{index}")
        executor.run(startup, scope=scope)
        for attribute, array in zip(attributes, arrays, strict=True):
            tensor(attribute.name).set(array, paddle.CPUPlace())
        executor.run(program, scope=scope)  # replaces what the scope has of its results' names
        results = [tensor(f"clipped{index}") for index in range(len(arrays))]
    finally:
        paddle.disable_static()
    return run


def jax_pairs(arrays: Sequence[Array]) -> Pairs:
    """Optax's functions are compiled, and return the norm as those of unified_clip do."""
    import jax
    import optax

    import unified_clip.jax as uc

    from .._ops.jax_ops import OPS

    grads = [jax.numpy.asarray(array) for array in arrays]

    def clip(given: Any, limit: Any) -> Any:
        return optax.clip_by_global_norm(limit).update(given, optax.EmptyState())[0], optax.tree.norm(given)

    compiled, norm = jax.jit(clip), jax.jit(optax.tree.norm)
    ours_compiled = jax.jit(uc.clip_by_global_norm)
    wait = jax.block_until_ready

    def clips(limit: float) -> list[Pair]:
        held = jax.numpy.asarray(limit)  # an argument: a number would be compiled in
        name = "optax.clip_by_global_norm (jit)"
        ours = Pair(name, lambda: grads, lambda given: wait(uc.clip_by_global_norm(given, limit)))
        if len(grads) > MOST_COMPILED:
            return [ours]
        return [ours._replace(theirs=lambda given: wait(compiled(given, held)))]

    def in_graphs(limit: float) -> list[Pair]:
        held = jax.numpy.asarray(limit)
        ours = Pair(
            "optax.clip_by_global_norm (both in jit)", lambda: grads, lambda given: wait(ours_compiled(given, held))
        )
        return [ours._replace(theirs=lambda given: wait(compiled(given, held)))]

    ours = Pair("optax.tree.norm (jit)", lambda: grads, lambda given: wait(uc.global_norm(given)))
    by_norm = ours._replace(theirs=lambda given: wait(norm(given)))
    return Pairs(clips, by_norm, lambda: [OPS.host_view(grad) for grad in grads], in_graphs)


def _torch_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _tensorflow_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)


class Framework(NamedTuple):
    """A framework to measure."""

    pairs: Callable[[Sequence[Array]], Pairs]
    packages: Sequence[str]
    """The distributions that it needs. The report has their versions."""

    dtypes: Sequence[str] = DTYPES
    use_threads: Callable[[int], None] = lambda threads: None
    """Set the number of threads, if the variables of `THREADS` are not enough."""


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework(torch_pairs, ("torch",), use_threads=_torch_threads),
    "tensorflow": Framework(tensorflow_pairs, ("tensorflow",), use_threads=_tensorflow_threads),
    "paddle": Framework(paddle_pairs, ("paddlepaddle",)),
    "jax": Framework(jax_pairs, ("jax", "jaxlib", "optax")),
    "numpy": Framework(numpy_pairs, ("numpy",), dtypes=("float32",)),
}

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads", "PJRT_NPROC")
"""Variables with the number of threads: of unified_clip and OpenMP, of BLAS, of Paddle, and of XLA in JAX."""
