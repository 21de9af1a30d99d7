"""The compiled kernels as operators of Paddle's static programs, on a CPU.

Only UNIFIED_CLIP_GRAPH=kernels enables them: they are Python functions, and Paddle cannot save a program with such
operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import paddle
from paddle.base.dygraph.tracer import Tracer

from ..._compute import collected, host
from ..._core.backend import Backend
from ..._core.exact import FORMATS
from ..._core.path import Path
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from .conditions import NAMES
from .dense import Dense, is_on_cpu, is_recorded

CPU = paddle.CPUPlace()
TRACER = Tracer()


def enabled() -> bool:
    return KERNELS is not None and host.kernels_in_graphs(by_default=False)


class Operators:
    """The `GraphKernels` of Paddle: operators over the tensors of a device path."""

    def __init__(self, backend: Backend, collector: Any) -> None:
        """Store the arguments. `collector`: as `collected.collector` returns it, for tensors without gaps in memory."""
        self._backend, self._collector = backend, collector

    def supports(self, tensors: Sequence[Dense]) -> bool:
        """Return whether the operators compute on these tensors: dense real values of a static program, without a
        derivative.
        """
        return bool(
            tensors
            and not paddle.in_dynamic_mode()
            and enabled()
            and all(_is_supported(dense.tensor) for dense in tensors)
        )

    def norm(self, tensors: Sequence[Dense], p: float, *, per_tensor: bool) -> Scalar:
        signature = Signature("norm", len(tensors), int(p), per_tensor)
        return self._run(signature, [dense.tensor for dense in tensors])[0]

    def scale(self, tensors: Sequence[Dense], coef: Scalar, *, per_tensor: bool) -> list[Tensor]:
        signature = Signature("scale", len(tensors), 2, per_tensor)
        return list(self._run(signature, [*(dense.tensor for dense in tensors), coef]))

    def ndim(self, scalar: Scalar) -> int:
        return len(scalar.shape)

    def _run(self, signature: Signature, inputs: Sequence[Tensor]) -> Any:
        describe, compute = self._functions(signature)
        return paddle._C_ops._run_python_op(
            *inputs,
            name="_".join(map(str, ("unified_clip", *signature))),
            input_names=[f"input_{index}" for index in range(len(inputs))],
            output_names=[f"output_{index}" for index in range(1 if signature.kind == "norm" else signature.tensors)],
            attrs={"infer_meta_fn_ptr": describe, "fn_ptr": compute},
            inplace_map={},
        )

    @functools.cache  # noqa: B019  # Paddle keeps the addresses of the functions only, and `self` is as long-lived
    def _functions(self, signature: Signature) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return (function that describes the results of an operator, function that computes them)."""
        describe, compute = _describe_scale, self._scale
        if signature.kind == "norm":
            describe, compute = functools.partial(_describe_norm, signature), self._norm
        return describe, functools.partial(compute, signature)

    # Results have no memory of NumPy arrays. An executor that ends holds the GIL and waits for a thread that frees
    # results, and freeing an array needs the GIL.

    def _norm(self, signature: Signature, *tensors: Tensor) -> Tensor:
        with eager_operations():
            indices, path = self._path(signature, tensors)
            with nullcontext() if path is None else path.scope():
                n = 0.0 if path is None else path.norm(signature.p)
            if not signature.is_per_tensor:
                return paddle._C_ops.full([], n, paddle.float64, CPU)
            norms = np.zeros(len(tensors))
            norms[indices] = n
            return paddle.Tensor(value=norms, place=CPU, zero_copy=False)

    def _scale(self, signature: Signature, *inputs: Tensor) -> tuple[Tensor, ...]:
        *results, coef = inputs
        with eager_operations():
            indices, path = self._path(signature, results)
            factors = self._backend.host_view(coef)
            factor = factors[indices] if signature.is_per_tensor else float(factors)
            with nullcontext() if path is None else path.scope():
                products = [] if path is None else path.scale(factor)
            for index, product in zip(indices, products, strict=True):
                results[index] = product
            # Paddle may write to results, so they share no memory with unchanged tensors.
            return tuple(new.clone() if new is old else new for new, old in zip(results, inputs[:-1], strict=True))

    def _path(self, signature: Signature, tensors: Sequence[Tensor]) -> tuple[Sequence[int], Path | None]:
        """Return (indices of the tensors that have elements, path over them). The path is None if no tensor has
        elements.
        """
        indices: Sequence[int] = range(len(tensors))
        tensor_list = self._collector.of_tensors(list(tensors), False, False)
        if tensor_list is None:
            indices = [index for index in indices if 0 not in tensors[index].shape]
            tensor_list = self._collector.of_tensors([tensors[index] for index in indices], False, False)
        if tensor_list is None:
            raise RuntimeError(
                "a program that was built for the CPU, with the kernels of unified_clip, runs on another device. Unset "
                "UNIFIED_CLIP_GRAPH, or call paddle.set_device before the program is built"
            )
        path = collected.path_over(self._backend, tensor_list)
        return indices, path.per_tensor() if path is not None and signature.is_per_tensor else path


@contextmanager
def eager_operations() -> Iterator[None]:
    """Let this thread compute with eager tensors inside the `with` block.

    Paddle's own guards would also enter dynamic mode, in which a thread that starts meanwhile would stay.
    """
    previous = paddle.base.framework._dygraph_tracer()
    paddle.base.core._switch_tracer(TRACER)
    try:
        yield
    finally:
        paddle.base.core._switch_tracer(previous)


class Signature(NamedTuple):
    """What identifies an operator. Paddle registers each operator under a name, with a fixed number of inputs."""

    kind: str
    tensors: int
    p: int
    is_per_tensor: bool


def _is_supported(value: Any) -> bool:
    is_dense = isinstance(value, paddle.pir.Value) and value.is_dense_tensor_type()
    return is_dense and is_on_cpu(value) and not is_recorded(value) and NAMES.get(value.dtype) in FORMATS


def _describe_norm(signature: Signature, *tensors: Any) -> Any:
    return paddle.static.MetaTensor(shape=[signature.tensors] if signature.is_per_tensor else [], dtype=paddle.float64)


def _describe_scale(*inputs: Any) -> Any:
    return tuple(paddle.static.MetaTensor(shape=tensor.shape, dtype=tensor.dtype) for tensor in inputs[:-1])
