"""Make the call of one case in a worker, and record its result and effects."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ... import adaptive
from ..._kit.workers import LINE_CHARACTERS
from ...tensors import types
from ...tensors.arithmetic import nearest_float
from ...tensors.norms import norm_dtype
from ...tensors.types import Dense, Gradient, Sparse, densify, encode
from ..adapters.base import Adapter, FunctionsMissingError, Invocation
from ..call_outcome import CallOutcome
from ..suite.call_form import CallForm, leaves, structure
from ..suite.public_calls import CALLS
from .user_function import UserFunction, UserFunctionError

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address in the repr of an object. Addresses are removed from messages, because they change from run to run."""


@dataclass(eq=False)
class CallResult(CallOutcome):
    norm: Any = None
    gradients: Any = None
    update: Any = None
    returned: Any = None


def make(adapter: Adapter, case: Mapping[str, Any], gradients: Sequence[Gradient]) -> Invocation:
    call_form = CallForm(**case["call_form"])
    tensors = adapter.make_all(gradients)
    for is_asked, change in ((call_form.transposed, adapter.transposed), (call_form.expanded, adapter.expanded)):
        if is_asked:
            tensors = [tensor if tensor is None else change(tensor) for tensor in tensors]
    if call_form.overlapping:
        tensors = adapter.overlapping(tensors)
    arguments = case["arguments"]
    if call_form.tensor_arguments:
        rounded = {key: np.asarray(nearest_float(float(value), "float32")) for key, value in arguments.items()}
        arguments = {key: adapter.dense(encode(value, "float32")) for key, value in rounded.items()}
    return Invocation(adapter, CALLS[case["call"]], call_form, arguments, tensors)


def record_effects(invocation: Invocation, result: CallResult, inputs: Sequence[Gradient]) -> None:
    result.fault = _fault(invocation, result, inputs)
    if result.returned is not None:
        result.structure = structure(result.returned)
    if invocation.call.style in ("class", "settings") and result.gradients is not None:
        result.same_objects = [
            after is before for before, after in zip(invocation.gradients, result.gradients, strict=False)
        ]


def call_native(invocation: Invocation, user_function: UserFunction | None = None) -> CallResult:
    if user_function is not None:
        call_it = _call_for_gradients if user_function.returns == "gradients" else call_public_name
        result = observe(call_it, invocation, user_function.bound_to(invocation), None)
        result.name = user_function.text
        faults = _changed_dtype, _other_norm, _other_structure
        result.fault = next(filter(None, (fault(invocation, result) for fault in faults)), "")
        return result

    def call() -> CallResult:
        adapter = invocation.adapter
        returned = adapter.native(invocation) if adapter.has_native(invocation) else None
        return CallResult(*returned or ())

    result = observe(call)
    result.name = invocation.native
    return result


def _call_for_gradients(invocation: Invocation, function: Callable[..., Any], _: Any) -> CallResult:
    clipped = function(invocation.container, **invocation.arguments)
    return CallResult(None, list(leaves(clipped)), returned=clipped)


def changes_inputs(invocation: Invocation, result: CallResult, inputs: Sequence[Gradient]) -> bool:
    """Return whether a call wrongly changed its input gradients, or replaced items of their container.

    inputs: The gradients before the call.
    """
    if invocation.call.in_place and not result.raised:
        return False
    if isinstance(invocation.container, list | dict):
        given = leaves(invocation.call_form.contain(invocation.gradients))
        if [id(each) for each in leaves(invocation.container)] != [id(each) for each in given]:
            return True
    tensors = invocation.read_gradients() if invocation.call.in_place else invocation.gradients
    after = [densify(_read(invocation, tensor)) for tensor in tensors]
    return types.digest(after) != types.digest(map(densify, inputs))


def _fault(invocation: Invocation, result: CallResult, inputs: Sequence[Gradient]) -> str:
    if changes_inputs(invocation, result, inputs):
        return "had already changed gradients" if result.raised else "changed its input gradients"
    if result.raised or result.gradients is None:
        return ""
    kinds = [
        [isinstance(_read(invocation, tensor), Sparse) for tensor in side]
        for side in (invocation.gradients, result.gradients)
    ]
    if len(kinds[0]) == len(kinds[1]) and kinds[0] != kinds[1]:
        return "returned a dense gradient for a sparse one, or a sparse one for a dense one"
    if not invocation.call.in_place:
        may_be_same = invocation.call.style in ("class", "settings")  # a class may return the gradient itself
        for before, after in zip(invocation.gradients, result.gradients, strict=False):
            if not (may_be_same and after is before) and invocation.adapter.shares_memory(before, after):
                return "returned a tensor that shares memory with an input"
    return ""


def _changed_dtype(invocation: Invocation, result: CallResult) -> str:
    pairs = zip(invocation.gradients, result.gradients or (), strict=False)
    for index, (before, after) in enumerate(pairs):
        right, tensor = _read(invocation, before), _read(invocation, after)
        if right is not None and tensor is not None and tensor.dtype != right.dtype:
            return f"gradient {index} is {tensor.dtype} instead of {right.dtype}"
    return ""


def _other_norm(invocation: Invocation, result: CallResult) -> str:
    if result.raised or result.norm is None or tuple(invocation.adapter.packages) == ("numpy",):
        return ""
    gradients = [densify(_read(invocation, tensor)) for tensor in invocation.gradients]
    dtype = norm_dtype([gradient for gradient in gradients if gradient is not None])
    if isinstance(result.norm, Dense):
        return f"the norm is a number instead of a 0-d {dtype} tensor: return a tensor, not a number"
    return types.other_form("the norm", densify(_read(invocation, result.norm)), encode(np.zeros(()), dtype))


def _other_structure(invocation: Invocation, result: CallResult) -> str:
    expected = invocation.call_form.structure
    returned = expected if result.returned is None or expected == "list" else structure(result.returned)
    return "" if returned == expected else f"returned a {returned} instead of a {expected}"


def _read(invocation: Invocation, tensor: Any) -> Gradient:
    return None if tensor is None else invocation.adapter.read(tensor)


def function_of(namespace: Any, call_name: str) -> Callable[..., Any]:
    module, _, name = call_name.removesuffix(".clip_").rpartition(".")
    function: Callable[..., Any] = getattr(adaptive if module else namespace, name)
    return function


def observe(call: Callable[..., CallResult], *arguments: Any) -> CallResult:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call(*arguments)
        except (UserFunctionError, FunctionsMissingError):
            raise
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            # The first line, without addresses. Some frameworks add C++ traces.
            lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
            text = ADDRESS.sub("", lines[0])[:LINE_CHARACTERS] if lines else ""
            result = CallResult(raised=names, message=f"{type(error).__name__}: {text}".removesuffix(": "))
    result.warned = any(warning.category.__name__ == "ClipWarning" for warning in caught)
    return result


def call_public_name(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    arguments, tensors = invocation.arguments, invocation.gradients
    match invocation.call.style:
        case "in place":
            norm = function(invocation.in_place_container, **arguments)
            return CallResult(norm, invocation.read_gradients())
        case "list":
            clipped, norm = function(invocation.container, **arguments)
            return CallResult(norm, list(leaves(clipped)), returned=clipped)
        case "each":
            return CallResult(None, [None if tensor is None else function(tensor, **arguments) for tensor in tensors])
        case "measure":
            return CallResult(function(invocation.container, **arguments))
        case "class":
            pairs = function(**arguments, need_clip=invocation.need_clip)(invocation.param_grads)
            return CallResult(None, [gradient for _, gradient in pairs])
        case "class in place":
            norm = function(**arguments, need_clip=invocation.need_clip).clip_(invocation.in_place_container)
            return CallResult(norm, invocation.read_gradients())
        case "settings":
            return _call_with_settings(invocation, function, settings)
        case "hook":
            clip = function(**arguments)
            return CallResult(None, [None if tensor is None else clip(tensor) for tensor in tensors])
        case "units":
            half, limits = len(tensors) // 2, {key: arguments[key] for key in ("clip_norm",) if key in arguments}
            return CallResult(None, function(list(tensors[:half]), list(tensors[half:]), invocation.rule, **limits))


def _call_with_settings(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    groups = invocation.call_form.groups
    for name in sorted(set(groups)) or ["default_group"]:
        clip = settings.GradientClipByGlobalNorm(
            **invocation.arguments, group_name=name, need_clip=invocation.need_clip
        )
        members = [parameter for parameter, group in zip(invocation.parameters, groups, strict=False) if group == name]
        settings.set_gradient_clip(clip, param_list=members or None)
    try:
        return CallResult(None, [gradient for _, gradient in function(invocation.param_grads)])
    finally:
        settings.set_gradient_clip(None)


# -- many calls in one graph, which is compiled once


def call_in_graph(mode: str, calls: Sequence[tuple[Invocation, Callable[..., Any]]], settings: Any) -> list[CallResult]:
    for invocation, _ in calls:
        _ = invocation.parameters, invocation.in_place_arguments  # some frameworks cannot create them in a graph
    ends = list(accumulate((len(invocation.gradients) for invocation, _ in calls), initial=0))

    def traced(tensors: Sequence[Any]) -> list[Any]:
        results = []
        for (invocation, function), (start, end) in zip(calls, pairwise(ends), strict=True):
            cache = dict(invocation.cache) if _writes_outside(invocation) else {"parameters": invocation.parameters}
            symbolic = Invocation(
                invocation.adapter,
                invocation.call,
                invocation.call_form,
                invocation.arguments,
                tensors[start:end],
                cache=cache,
            )
            result = call_public_name(symbolic, function, settings)
            results.append([result.norm, result.gradients])
        return results

    tensors = [tensor for invocation, _ in calls for tensor in invocation.gradients]
    returned = calls[0][0].adapter.run_in_graph(mode, traced, tensors)
    return [
        CallResult(
            norm, invocation.read_gradients() if invocation.call.in_place and _writes_outside(invocation) else gradients
        )
        for (invocation, _), (norm, gradients) in zip(calls, returned, strict=True)
    ]


def _writes_outside(invocation: Invocation) -> bool:
    return invocation.adapter.writes and invocation.adapter.writes_from_graphs
