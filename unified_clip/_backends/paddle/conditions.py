"""Check tensors and modes before an operation of Paddle. With invalid inputs, an operation can end the process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import paddle

from ..._core.distributed import DistributedSpec
from ..._core.types import Leaf
from . import releases, sharded
from .sharded import PARAMETER as PARAMETER

DTYPES = {
    name: getattr(paddle, name)
    for name in (
        "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
        "int8", "int16", "int32", "int64", "uint8", "bool",
    )
}  # fmt: skip


NAMES = {dtype: name for name, dtype in DTYPES.items()}


PLAIN = (paddle.Tensor, PARAMETER)


OLD_IR = (paddle.base.framework.Variable, paddle.base.framework.Program)


def is_of_old_ir(value: Any) -> bool:
    """Return whether a variable or program uses the intermediate representation (IR) of Paddle 2, the old IR."""
    return issubclass(type(value), OLD_IR)  # isinstance with Variable accepts every eager tensor in dynamic mode


def of_old_ir(subject: str) -> TypeError:
    return TypeError(f"{subject} of Paddle's old IR, which unified_clip does not support. {releases.WITHOUT_OLD_IR}")


def records(differentiable: bool) -> bool:
    return differentiable and paddle.is_grad_enabled()


def in_static_mode() -> bool:
    return not paddle.in_dynamic_mode() and not in_to_static_mode()


def in_to_static_mode() -> bool:
    return bool(paddle.base.dygraph.base.in_to_static_mode())


def check_static(gradients: Iterable[Leaf], spec: DistributedSpec) -> None:
    """Raise TypeError for distributed gradients in a static program, because static programs have no all-reduce."""
    values = [leaf for leaf in gradients if isinstance(leaf.tensor, paddle.pir.Value)]
    of_parameters = any(getattr(leaf.parameter, "is_parameter", False) for leaf in values)
    is_distributed = any(leaf.tensor.is_dist() for leaf in values) or (of_parameters and sharded.hybrid() is not None)
    if spec.is_given or is_distributed:
        raise TypeError(
            "distributed gradients are not supported in a static program or a graph of to_static. Keep the optimizer "
            "and its clip in dynamic mode"
        )


def check_mode(tensors: Iterable[Any]) -> None:
    """Reject values of static programs other than the program that is being built.

    In static mode, also reject eager tensors. An operation on an eager tensor would crash the process.
    """
    if in_to_static_mode():
        return
    building = None if paddle.in_dynamic_mode() else paddle.static.default_main_program()
    for tensor in tensors:
        if building is not None and isinstance(tensor, paddle.Tensor):
            raise TypeError("an eager tensor cannot be clipped in static mode. Call paddle.disable_static() first")
        if isinstance(tensor, paddle.pir.Value) and tensor.block.program is not building:
            raise ValueError(
                "a value of a static program can be clipped only while that program is built. Clip the value "
                "in static mode, under paddle.static.program_guard(<program of the value>)"
            )


def is_plain(tensor: Any) -> bool:
    return has_address(tensor) and bool(tensor.place.is_cpu_place())


def has_address(tensor: Any) -> bool:
    if type(tensor) not in PLAIN or not tensor.is_dense() or tensor.dtype not in NAMES:
        return False
    return 0 in tensor.shape or bool(tensor._is_initialized() and tensor.data_ptr())
