"""What the public classes and functions have on Paddle only: optimizers take them, and static programs exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import paddle
from paddle.nn.clip import ClipGradBase

from .._core import checks, classes


class OptimizerClip(ClipGradBase):  # type: ignore[misc]  # of type Any
    """Makes a clip one that Paddle's optimizers accept as `grad_clip=`; they call it once for each parameter group."""

    def __str__(self) -> str:
        return repr(self)

    def _clip_in_any_mode(self, params_grads: Iterable[Any]) -> classes.Pairs:
        pairs: classes.Pairs = self(params_grads)
        return pairs

    _dygraph_clip = _pir_clip = _static_clip = _clip_in_any_mode


class Names(classes.Names):
    """Every public function; static programs are refused where they would have no effect."""

    def set_gradient_clip(
        self, clip: classes.GradientClip | None, param_list: Iterable[Any] | None = None, program: Any = None
    ) -> None:
        parameters = None if param_list is None else checks.parameter_list(self.resolve(param_list)[0], param_list)
        if (
            program is not None
            or not paddle.in_dynamic_mode()
            or any(isinstance(parameter, paddle.pir.Value) for parameter in parameters or ())
        ):
            raise NotImplementedError("set_gradient_clip does not support static programs and their parameters yet")
        super().set_gradient_clip(clip, parameters)

    set_gradient_clip.__doc__ = classes.Names.set_gradient_clip.__doc__
