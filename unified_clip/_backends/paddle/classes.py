"""The functions `set_gradient_clip` and `append_gradient_clip_ops`, and the clip class for Paddle's optimizers."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import paddle
from paddle.nn.clip import ClipGradBase

from ..._api import classes, settings
from ..._api.framework import Framework
from ..._core import validation
from ..._core.collect import ParamGrads
from ..._core.types import with_article
from .backend import BACKEND
from .conditions import in_static_mode, in_to_static_mode, is_of_old_ir, of_old_ir


class OptimizerClip(ClipGradBase):  # type: ignore[misc]  # of type Any
    """A clip that Paddle's optimizers accept. An optimizer calls the clip once per parameter group."""

    def __str__(self) -> str:
        return repr(self)

    def _clip_in_any_mode(self, params_grads: Iterable[Any]) -> ParamGrads:
        clipped: ParamGrads = self(params_grads)
        return clipped

    _dygraph_clip = _pir_clip = _static_clip = _clip_in_any_mode


Program = Any

PROGRAMS: WeakKeyDictionary[Program, dict[str | None, classes.GradientClip]] = WeakKeyDictionary()
"""The clips of each static program, by parameter name. The default clip has the key None.

Parameters cannot be keys, because each access to a parameter creates a new object.
"""


def set_gradient_clip(
    framework: Framework[Any, Any],
    clip: classes.GradientClip | None,
    param_list: Iterable[Any] | None = None,
    program: Any = None,
) -> None:
    if in_to_static_mode():
        raise TypeError("clips cannot be set in a graph of to_static. Call set_gradient_clip outside the graph")
    static = program is not None or in_static_mode()
    if static:
        program = _checked(paddle.static.default_main_program() if program is None else program)
        param_list = _found_by_name(param_list, program)
    parameters = None if param_list is None else validation.parameter_list(BACKEND, param_list)
    if static:
        _set(clip, [None] if parameters is None else _names(parameters, program), program)
        return
    if any(isinstance(parameter, paddle.pir.Value) for parameter in parameters or ()):
        raise ValueError("param_list has parameters of a static program. Also pass the static program as program=")
    settings.set_gradient_clip(framework, clip, parameters)


def append_gradient_clip_ops(framework: Framework[Any, Any], params_grads: Iterable[Any]) -> ParamGrads:
    return classes.clip_pairs(BACKEND, params_grads, _clip_of)


set_gradient_clip.__doc__ = settings.set_gradient_clip.__doc__
append_gradient_clip_ops.__doc__ = settings.append_gradient_clip_ops.__doc__


def _clip_of(parameter: Any) -> classes.GradientClip | None:
    if in_to_static_mode():  # a graph would keep the clip of its first call
        raise TypeError(
            "append_gradient_clip_ops is not supported in a graph of to_static. In the graph, call an instance such as "
            "GradientClipByNorm(...). Or call append_gradient_clip_ops outside the graph"
        )
    return _clip_in_program(parameter) if _is_static(parameter) else settings.SETTINGS.clip_of(parameter)


def _set(clip: classes.GradientClip | None, names: Iterable[str | None], program: Program) -> None:
    settings.check_clip(clip)
    _have_optimizers_apply_it()
    clips = PROGRAMS.setdefault(program, {})
    for name in names:
        if clip is None:
            clips.pop(name, None)
        else:
            clips[name] = clip


def _is_static(parameter: Any) -> bool:
    return isinstance(parameter, paddle.pir.Value) or in_static_mode()


def _clip_in_program(parameter: Any) -> classes.GradientClip | None:
    program = building = paddle.static.default_main_program()
    name = parameter if isinstance(parameter, str) else None
    if isinstance(parameter, paddle.pir.Value):
        program, name = parameter.block.program, BACKEND.parameter_name(parameter)
    clips = PROGRAMS.get(program, {})
    clip = clips.get(name, clips.get(None))
    if clip is not None and program is not building:
        raise ValueError(
            f"parameter {name!r} does not belong to the program that is built now. Clip its gradient under "
            "paddle.static.program_guard(<program of the parameter>)"
        )
    return clip


def _checked(program: Any) -> Program:
    if is_of_old_ir(program):
        raise of_old_ir("program is a Program")
    if not isinstance(program, paddle.pir.Program):
        raise TypeError(f"program= is {with_article(type(program).__name__)}. Pass a paddle.static.Program")
    return program


def _found_by_name(param_list: Any, program: Program) -> Any:
    if not isinstance(param_list, list | tuple):
        return param_list
    parameters = {parameter.name: parameter for parameter in program.global_block().all_parameters()}
    for position, name in enumerate(param_list):
        if isinstance(name, str) and name not in parameters:
            raise ValueError(
                f"position {position} of param_list is {name!r}, which is not a parameter of the program. Pass one of "
                f"{reprlib.repr(sorted(parameters))}"
            )
    return [parameters[item] if isinstance(item, str) else item for item in param_list]


def _names(parameters: Sequence[Any], program: Program) -> list[str]:
    for position, parameter in enumerate(parameters):
        if is_of_old_ir(parameter):
            raise of_old_ir(f"position {position} of param_list is {with_article(type(parameter).__name__)}")
        if not isinstance(parameter, paddle.pir.Value):
            kind = with_article(type(parameter).__name__)
            raise TypeError(
                f"position {position} of param_list is {kind}. Pass parameters of the static program, or their names"
            )
        if not parameter.is_parameter:
            raise ValueError(
                f"position {position} of param_list is a value that is not a parameter. Pass names of parameters"
            )
        if parameter.block.program is not program:
            raise ValueError(
                f"position {position} of param_list (parameter {parameter.name!r}) belongs to another program. Pass "
                "the parameter's program as program="
            )
    return [parameter.name for parameter in parameters]


@functools.cache
def _have_optimizers_apply_it() -> None:
    """Make optimizers apply the clips of `set_gradient_clip`, which Paddle 3 ignores.

    Paddle's `minimize` and `apply_gradients` call `append_regularization_ops` after the optimizer's clip. So replace
    this function by one that also clips.
    """
    original = paddle.optimizer.Optimizer.append_regularization_ops

    @functools.wraps(original)
    def append_regularization_ops(self: Any, parameters_and_grads: Any, regularization: Any = None) -> Any:
        if self._grad_clip is None and in_static_mode() and paddle.static.default_main_program() in PROGRAMS:
            parameters_and_grads = classes.clip_pairs(BACKEND, parameters_and_grads, _clip_in_program)
        return original(self, parameters_and_grads, regularization)

    paddle.optimizer.Optimizer.append_regularization_ops = append_regularization_ops
