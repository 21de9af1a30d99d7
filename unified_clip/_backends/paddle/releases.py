"""What differs between releases of Paddle. Each line names the release that made it unnecessary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

RELEASE = tuple(map(int, re.findall(r"\d+", paddle.__version__)[:2]))


def before(*release: int) -> bool:
    """Return False for the version 0.0.0, which a build from source can have."""
    return any(RELEASE) and release > RELEASE


OLD = before(3, 1)
HAS_PROGRAMS = not before(3)  # until Paddle 3.0
"""Whether clips can be part of a static program."""

Function = Callable[..., Any]


def _unchanged(value: Any) -> Any:
    return value


def _gradient_without_memory(parameter: Any) -> None:
    empty = paddle.empty([1], "float32")
    empty._clear_data()  # Paddle reads such a gradient as None
    parameter.grad_ = empty


def _no_gradient(parameter: Any) -> None:
    parameter.grad = None


def _values_of_rows(gradient: Any) -> Any:
    """Paddle 3.0 cannot read the values of SelectedRows without rows."""
    if gradient.rows():
        return gradient._get_tensor_from_selected_rows()
    return paddle.empty([0, *gradient.get_selected_rows().get_tensor().shape()[1:]], gradient.dtype)


def _full(value: float, dtype: Any, place: Any) -> Any:
    return paddle.full([], value, dtype, device=place)


def _full_from_array(value: float, dtype: Any, place: Any) -> Any:
    """`paddle.full` of Paddle 2 rounds integers to float64. Until Paddle 3.2, it chooses the device itself."""
    return paddle.to_tensor(np.array(value, str(dtype).rpartition(".")[2]), place=place)


def _one_element(tensor: Any) -> Any:
    """Operations of Paddle 3.0 reject tensors without elements. They get a zero instead."""
    return paddle.zeros([length or 1 for length in tensor.shape], tensor.dtype) if 0 in tensor.shape else tensor


def _zeros_like(tensor: Any) -> Any:
    """For a value in a graph, Paddle chooses this device, too, but it also warns that the value has none."""
    place = None if isinstance(tensor, paddle.Tensor) else paddle.base.framework._current_expected_place()
    return paddle.zeros_like(tensor, device=place)


def _amax_with_nan(tensor: Any, **options: Any) -> Any:
    """`amax` of Paddle 2 forgets a NaN before a number."""
    largest = tensor.amax(**options)
    return paddle.where(paddle.isnan(tensor).any(**options), paddle.full_like(largest, np.nan), largest)


class _Rounded(paddle.autograd.PyLayer):  # type: ignore[misc]  # of type Any
    @staticmethod
    def forward(context: Any, wide: Any, dtype: Any) -> Any:
        array = wide.numpy()
        if dtype == paddle.float16:
            with np.errstate(over="ignore"):
                return paddle.to_tensor(array.astype(np.float16), place=wide.place)
        bits = array.view(np.uint32)
        upper = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
        return paddle.to_tensor(np.where(np.isnan(array), bits >> 16 | 0x40, upper).astype(np.uint16), place=wide.place)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient.astype("float32")


def _astype(wide: Any, dtype: Any) -> Any:
    return wide.astype(dtype)


def _rounded(wide: Any, dtype: Any) -> Any:
    """On the CPU, Paddle 3.1 truncates numbers to 16 bits."""
    is_truncated = dtype in (paddle.float16, paddle.bfloat16) and wide.dtype == paddle.float32
    return _Rounded.apply(wide, dtype) if is_truncated and wide.place.is_cpu_place() else wide.astype(dtype)


WITHOUT_OLD_IR = (
    "Unset FLAGS_enable_pir_api (or set it to 1), do not enter paddle.pir_utils.OldIrGuard, and build the program again"
    if HAS_PROGRAMS
    else "Clips in static programs and graphs need Paddle 3.2. Clip in dynamic mode"
)
force_dynamic: Function = getattr(getattr(paddle.jit, "marker", None), "force_dynamic", _unchanged)  # until Paddle 3.2
remove_gradient: Function = _gradient_without_memory if before(3, 3) else _no_gradient  # until Paddle 3.3
values_of_rows: Function = _values_of_rows if OLD else paddle.Tensor._get_tensor_from_selected_rows  # until Paddle 3.1
full: Function = _full_from_array if before(3, 2) else _full  # until Paddle 3.2
with_elements: Function = _one_element if OLD else _unchanged  # until Paddle 3.1
amax: Function = _amax_with_nan if OLD else paddle.amax  # until Paddle 3.1
zeros_like: Function = paddle.zeros_like if before(3, 2) else _zeros_like  # until Paddle 3.2
rounded: Function = _rounded if before(3, 2) else _astype  # until Paddle 3.2
clone: Function = paddle.assign if OLD else paddle.clone  # until Paddle 3.1
