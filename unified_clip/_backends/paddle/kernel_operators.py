"""The compiled kernels as operators of Paddle's static programs, on a CPU.

`assign` copies each gradient, and `unified_clip_scale` multiplies the copy in place. If no other operation reads the
gradient, Paddle skips the copy. For long gradients, this multiplication is three times as fast as Paddle's
`multiply`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import paddle

from ..._compute import host, kernels, processor
from ..._core.types import Scalar, Tensor
from ..._native import KERNELS
from ...recorder.guard import Hook
from .conditions import DTYPES, NAMES, in_to_static_mode
from .dense import Dense, is_on_cpu, is_recorded, scaled

LIBRARY = "libphi_core.so"
"""The process has already loaded this library."""


SHORT = 2**14
"""The smallest number of elements for which `_scaled_in_place` is faster than one operation of Paddle."""

IN_PLACE = (paddle.float32, paddle.float64, paddle.bfloat16)


def _register() -> bool:
    """Register the operators. Before the registration, Paddle cannot load saved programs that use the operators."""
    if KERNELS is None:
        return False
    codes = {int(DTYPES[name]): code for name, code in kernels.CODES.items()}
    if not KERNELS.define_paddle_operators(codes, int(paddle.float64), processor.default_threads()):
        return False
    paddle.base.core.load_op_meta_info_and_register_op(LIBRARY)
    return True


HOOK = Hook("kernels in Paddle", "static programs of Paddle do not call the compiled kernels of unified_clip")
REGISTERED = HOOK.run(_register) is True


def enabled() -> bool:
    """Graphs of to_static call the kernels only with UNIFIED_CLIP_GRAPH=kernels. Paddle can load a saved model
    with these calls only after `_register` has run."""
    return REGISTERED and host.kernels_in_graphs(by_default=not in_to_static_mode())


class Operators:
    def supports(self, tensors: Sequence[Dense]) -> bool:
        return bool(
            tensors
            and not paddle.in_dynamic_mode()
            and enabled()
            and all(_is_supported(dense.tensor) for dense in tensors)
        )

    def norm(self, tensors: Sequence[Dense], p: float, *, per_tensor: bool) -> Scalar:
        name = f"unified_clip_{'norms' if per_tensor else 'norm'}_{int(p)}"
        return paddle._C_ops._run_custom_op(name, [dense.tensor for dense in tensors])[0]

    def scale(self, tensors: Sequence[Dense], coef: Scalar, *, per_tensor: bool) -> list[Tensor]:
        if per_tensor:
            coefs = paddle.unstack(coef)
            pairs = zip(tensors, coefs, strict=True)
            return [self.scale([dense], factor, per_tensor=False)[0] for dense, factor in pairs]
        products = scaled([dense for dense in tensors if _by_paddle(dense)], coef)
        return [next(products) if _by_paddle(dense) else _scaled_in_place(dense, coef) for dense in tensors]


def _by_paddle(dense: Dense) -> bool:
    value = dense.tensor
    if dense.dtype not in IN_PLACE:
        return True
    is_short = min(value.shape, default=1) >= 0 and math.prod(value.shape) < SHORT  # a negative length is unknown
    return bool((is_short or value.persistable) and dense.dtype != paddle.bfloat16)


def _scaled_in_place(dense: Dense, coef: Scalar) -> Tensor:
    """For a 0-d tensor, Paddle would end the process. So `flatten_` adds an axis.

    Because `flatten_` works in place, Paddle also does not merge two copies of the tensor.
    """
    copy = paddle._C_ops.flatten_(paddle.assign(dense.tensor), 0, 0)
    product = paddle._C_ops._run_custom_op("unified_clip_scale", copy, coef)[0]
    return product if dense.tensor.shape else product.reshape([])


def _is_supported(value: Any) -> bool:
    is_dense = isinstance(value, paddle.pir.Value) and value.is_dense_tensor_type()
    return is_dense and is_on_cpu(value) and not is_recorded(value) and NAMES.get(value.dtype) in kernels.CODES
