"""The pairs of functions that bench compares: unified_clip's function and the framework's function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .gradients import Array
from .measure import Call, Clock, Pair, on_host

MOST_COMPILED = 1000
"""XLA would take many minutes to compile a clip of 10,000 tensors."""

MOST_COMPILED_BY_TORCH = 200
"""`torch.compile` takes 5 to 10 minutes for 1,000 tensors."""


class Pairs(NamedTuple):
    clips: Callable[[float], list[Pair]]
    norm: Pair
    memory: Callable[[], list[Array]]
    """Returns NumPy views of the gradients' memory. A view is valid only while its gradient exists."""

    in_graphs: Callable[[float], list[Pair]] = lambda threshold: []


def clip_to(threshold: Any, clip: Callable[[Any, Any], Any]) -> Call:
    return lambda gradients: clip(gradients, threshold)


def pair(name: str, prepare: Callable[[], Any], calls: Iterable[Call], in_place: bool = False) -> Pair:
    """`calls` contains unified_clip's function, and then the framework's function, if there is one."""
    unified, *natives = calls
    return Pair(name, prepare, unified, natives[0] if natives else None, in_place)


def clip_pair(name: str, prepare: Callable[[], Any], threshold: Any, *clips: Any, in_place: bool = False) -> Pair:
    """`clips` contains unified_clip's function, and then the framework's function. Both take (gradients, threshold)."""
    return pair(name, prepare, [clip_to(threshold, clip) for clip in clips], in_place)


def numpy_pairs(arrays: Sequence[Array]) -> Pairs:
    """Compare unified_clip with plain NumPy code, because NumPy has no clip function."""
    import unified_clip.numpy as uc

    grads: list[Any] = [array.copy() for array in arrays]

    def restore() -> Any:
        for grad, array in zip(grads, arrays, strict=True):
            np.copyto(grad, array)
        return grads

    def norm(gradients: Any) -> Any:
        return np.sqrt(sum(np.vdot(grad, grad) for grad in gradients))

    def clip(gradients: Any, threshold: float) -> Any:
        n = norm(gradients)
        if n > threshold:
            for grad in gradients:
                grad *= threshold / n
        return n

    def clips(threshold: float) -> list[Pair]:
        return [clip_pair("plain NumPy", restore, threshold, uc.clip_grad_norm_, clip, in_place=True)]

    return Pairs(clips, Pair("plain NumPy", lambda: arrays, uc.get_total_norm, norm), lambda: grads)


def torch_gradients(arrays: Sequence[Array], device: str = "cpu") -> tuple[list[Any], list[Any], Callable[[], Any]]:
    import torch

    def tensor(array: Any) -> Any:
        is_float32 = array.dtype == np.float32
        values = torch.from_numpy(array if is_float32 else array.view(np.uint16))
        return (values if is_float32 else values.view(torch.bfloat16)).to(device)

    masters = [tensor(array) for array in arrays]
    parameters = [torch.nn.Parameter(torch.empty_like(master)) for master in masters]
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.grad = master.clone()

    def restore() -> Any:
        torch._foreach_copy_([parameter.grad for parameter in parameters], masters)
        return parameters

    return masters, parameters, restore


def torch_pairs(arrays: Sequence[Array]) -> Pairs:
    import torch

    import unified_clip.torch as uc

    from .._backends.torch.backend import BACKEND
    from .._backends.torch.releases import TRACES

    masters, parameters, restore = torch_gradients(arrays)
    functions = (uc.clip_grad_norm_, torch.nn.utils.clip_grad_norm_)

    def clips(threshold: float) -> list[Pair]:
        return [clip_pair("torch.nn.utils.clip_grad_norm_", restore, threshold, *functions, in_place=True)]

    def in_graphs(threshold: float) -> list[Pair]:
        if len(arrays) > MOST_COMPILED_BY_TORCH or not TRACES:
            return []
        # drop earlier graphs: a second threshold would no longer be compiled as a constant
        torch.compiler.reset()
        compiled = [torch.compile(clip_to(threshold, function), fullgraph=True) for function in functions]
        return [pair("torch.nn.utils.clip_grad_norm_ (torch.compile)", restore, compiled, in_place=True)]

    native = getattr(torch.nn.utils, "get_total_norm", None)  # since PyTorch 2.6
    norm = Pair("torch.nn.utils.get_total_norm", lambda: masters, uc.get_total_norm, native)
    return Pairs(clips, norm, lambda: [BACKEND.host_view(parameter.grad) for parameter in parameters], in_graphs)


def tensorflow_pairs(arrays: Sequence[Array]) -> Pairs:
    """On the CPU, TensorFlow's functions return after their computation, so bench does not wait for the results."""
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    from .._backends.tensorflow.backend import BACKEND

    grads = [tf.constant(array) for array in arrays]

    def clip(gradients: Any, threshold: Any) -> Any:
        return uc.clip_by_global_norm(gradients, threshold)

    compiled = tf.function(tf.clip_by_global_norm, jit_compile=True)
    graphs = {
        "tf.clip_by_global_norm (in tf.function)": (tf.function(clip), tf.function(tf.clip_by_global_norm)),
        "tf.clip_by_global_norm (in XLA)": (tf.function(clip, jit_compile=True), compiled),
    }

    def clips(threshold: float) -> list[Pair]:
        # a tensor: a Python number would be compiled as a constant
        as_argument = tf.constant(threshold, grads[0].dtype)
        name, unified = "tf.clip_by_global_norm", clip_to(threshold, uc.clip_by_global_norm)
        pairs = [Pair(name, lambda: grads, unified, clip_to(threshold, tf.clip_by_global_norm))]
        if len(grads) <= MOST_COMPILED:
            pairs.append(Pair(f"{name} (XLA)", lambda: grads, unified, clip_to(as_argument, compiled)))
        return pairs

    def in_graphs(threshold: float) -> list[Pair]:
        as_argument = tf.constant(threshold, grads[0].dtype)
        return [clip_pair(name, lambda: grads, as_argument, *functions) for name, functions in graphs.items()]

    norm = Pair("tf.linalg.global_norm", lambda: grads, uc.global_norm, tf.linalg.global_norm)
    return Pairs(clips, norm, lambda: [BACKEND.host_view(grad) for grad in grads], in_graphs)


def paddle_pairs(arrays: Sequence[Array]) -> Pairs:
    """Paddle has no function for the norm alone, and cannot clip bfloat16 on the CPU."""
    import paddle

    import unified_clip.paddle as uc

    from .._backends.paddle.backend import BACKEND
    from .._backends.paddle.releases import HAS_PROGRAMS

    has_native = arrays[0].dtype == np.float32
    dtype = "float32" if has_native else "bfloat16"
    zeros = paddle.nn.initializer.Constant(0.0)
    masters = [paddle.to_tensor(array if has_native else array.view(np.uint16)) for array in arrays]
    parameters = [paddle.create_parameter(master.shape, dtype, default_initializer=zeros) for master in masters]
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.grad = master  # Paddle copies the tensor

    def restore() -> Any:
        for parameter, master in zip(parameters, masters, strict=True):
            paddle.assign(master, output=parameter.grad)
        return parameters

    def param_grads() -> Any:
        return [(parameter, parameter.grad) for parameter in restore()]

    def classes(threshold: float) -> list[Any]:
        return [clip(threshold) for clip in (uc.ClipGradByGlobalNorm, paddle.nn.ClipGradByGlobalNorm)]

    def clips(threshold: float) -> list[Pair]:
        name, functions = "paddle.nn.utils.clip_grad_norm_", (uc.clip_grad_norm_, paddle.nn.utils.clip_grad_norm_)
        pairs = [
            pair("paddle.nn.ClipGradByGlobalNorm", param_grads, classes(threshold)),
            clip_pair(name, restore, threshold, *functions, in_place=True),
        ]
        return pairs if has_native else [both._replace(native=None) for both in pairs]

    def in_graphs(threshold: float) -> list[Pair]:
        programs = [_static_program(arrays, clip) for clip in classes(threshold) if has_native and HAS_PROGRAMS]
        return [pair("paddle.nn.ClipGradByGlobalNorm (static program)", lambda: None, programs)] if programs else []

    norm = Pair("", lambda: masters, uc.get_total_norm)
    return Pairs(clips, norm, lambda: [BACKEND.host_view(parameter.grad) for parameter in parameters], in_graphs)


def _static_program(arrays: Sequence[Array], clip: Any) -> Call:
    """Return a function that clips `arrays` in a static program, and returns the results without a copy."""
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
            gradients = [
                paddle.static.create_parameter(array.shape, "float32", attr=attribute)
                for array, attribute in zip(arrays, attributes, strict=True)
            ]
            for index, (_, clipped) in enumerate(clip([(gradient, gradient) for gradient in gradients])):
                clipped.persistable = True
                paddle._pir_ops.set_persistable_value(clipped, f"clipped{index}")
        executor.run(startup, scope=scope)
        for attribute, array in zip(attributes, arrays, strict=True):
            tensor(attribute.name).set(array, paddle.CPUPlace())
        executor.run(program, scope=scope)  # replaces the program's earlier results in the scope
        results = [tensor(f"clipped{index}") for index in range(len(arrays))]
    finally:
        paddle.disable_static()
    return run


def jax_pairs(arrays: Sequence[Array]) -> Pairs:
    import jax
    import optax

    import unified_clip.jax as uc

    from .._backends.jax.backend import BACKEND

    grads = [jax.numpy.asarray(array) for array in arrays]

    def clip(gradients: Any, threshold: Any) -> Any:
        return optax.clip_by_global_norm(threshold).update(gradients, optax.EmptyState())[0], optax.tree.norm(gradients)

    def waiting(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: jax.block_until_ready(function(*arguments))

    compiled, native = waiting(jax.jit(uc.clip_by_global_norm)), waiting(jax.jit(clip))
    eager, norms = waiting(uc.clip_by_global_norm), map(waiting, (uc.global_norm, jax.jit(optax.tree.norm)))

    def clips(threshold: float) -> list[Pair]:
        as_argument = jax.numpy.asarray(threshold)  # a tensor: a Python number would be compiled as a constant
        natives = [clip_to(as_argument, native)] if len(grads) <= MOST_COMPILED else []
        return [pair("optax.clip_by_global_norm (jit)", lambda: grads, [clip_to(threshold, eager), *natives])]

    def in_graphs(threshold: float) -> list[Pair]:
        name, as_argument = "optax.clip_by_global_norm (both in jit)", jax.numpy.asarray(threshold)
        return [clip_pair(name, lambda: grads, as_argument, compiled, native)]

    norm = pair("optax.tree.norm (jit)", lambda: grads, norms)
    return Pairs(clips, norm, lambda: [BACKEND.host_view(grad) for grad in grads], in_graphs)


def _torch_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _tensorflow_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)


class Framework(NamedTuple):
    pairs: Callable[[Sequence[Array]], Pairs]
    packages: Sequence[str]  # the report lists their versions
    use_threads: Callable[[int], None] = lambda threads: None
    """Sets the number of threads, if the framework ignores the environment variables in `run.THREADS`."""

    milliseconds: Callable[[Call, Any, Clock], float] = on_host
    describe_device: Callable[[], dict[str, Any]] | None = None
    """Returns the name and the CUDA version of a GPU."""

    bytes_per_ms: Callable[[], float] | None = None
    """Measures how many bytes a copy in the GPU's memory reads and writes per millisecond."""


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework(torch_pairs, ("torch",), use_threads=_torch_threads),
    "tensorflow": Framework(tensorflow_pairs, ("tensorflow",), use_threads=_tensorflow_threads),
    "paddle": Framework(paddle_pairs, ("paddlepaddle",)),
    "jax": Framework(jax_pairs, ("jax", "jaxlib", "optax")),
    "numpy": Framework(numpy_pairs, ("numpy",)),
}
