"""Make one call as a case describes it. Record its results, warnings and errors, and what it wrote."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from ...tensors import types
from ...tensors.arithmetic import nearest_float
from ...tensors.types import Dense, Gradient, Sparse, densify, encode
from ..adapters.base import Adapter, Invocation, NativeResult
from ..suite.call_form import CallForm, leaves, structure
from ..suite.public_calls import CALLS

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""In the representation of an object. It differs from run to run, and reports of equal runs are equal."""


@dataclass(eq=False)
class CallResult:
    """The result of a call, before it is packed."""

    norm: Any = None
    gradients: Sequence[Any] | None = None
    returned: Any = None
    """The container that the call returned, if its kind is compared."""

    structure: str = ""
    name: str = ""
    warned: bool = False
    raised: list[str] = field(default_factory=list)
    message: str = ""
    fault: str = ""
    """A side effect on tensors that the call must not have; '' for none."""

    same_objects: list[bool] = field(default_factory=list)
    """For a class: whether each gradient came back as the same object."""

    update: Sequence[Any] | None = None


def make(adapter: Adapter, case: Mapping[str, Any], gradients: Sequence[Gradient]) -> Invocation:
    """Return the invocation for a case of the job file."""
    call_form = CallForm.read(case["call_form"])
    given = adapter.make_all(gradients)
    if call_form.transposed:
        given = [tensor if tensor is None else adapter.transposed(tensor) for tensor in given]
    if call_form.expanded:
        given = [tensor if tensor is None else adapter.expanded(tensor) for tensor in given]
    if call_form.overlapping:
        given = adapter.overlapping(given)
    arguments = case["arguments"]
    if call_form.tensor_arguments:
        arguments = {key: adapter.dense(_float32(value)) for key, value in arguments.items()}
    return Invocation(adapter, CALLS[case["call"]], call_form, arguments, given)


def call_unified_clip(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    """Call a public name of unified_clip. `settings`: its namespace."""
    return observe(lambda: STYLES[invocation.call.style](invocation, function, settings))


def record_effects(invocation: Invocation, result: CallResult, given: Sequence[Gradient]) -> None:
    """Record what a call of unified_clip did to tensors. `given`: the gradients of the case."""
    result.fault = _fault(invocation, result, given)
    if result.returned is not None:
        result.structure = structure(result.returned)
    if invocation.call.style in ("class", "settings") and result.gradients is not None:
        result.same_objects = [
            after is before for before, after in zip(invocation.gradients, result.gradients, strict=False)
        ]


def call_native(invocation: Invocation) -> CallResult:
    """Call the framework's function. The result has no name if there is none, or it must not be called."""

    def call() -> CallResult:
        adapter = invocation.adapter
        found: NativeResult | None = adapter.native(invocation) if adapter.has_native(invocation) else None
        return CallResult() if found is None else CallResult(found.norm, found.tensors)

    result = observe(call)
    result.name = invocation.native
    return result


def _fault(invocation: Invocation, result: CallResult, given: Sequence[Gradient]) -> str:
    """Return what is wrong with the tensors, apart from their numbers; '' if nothing."""
    if result.raised or not invocation.call.in_place:
        found = invocation.read_gradients() if invocation.call.in_place else invocation.gradients
        if not _same(invocation, found, given):
            return "had changed gradients" if result.raised else "changed the gradients it was given"
    if result.raised or result.gradients is None:
        return ""
    kinds = [
        [isinstance(_read(invocation, tensor), Sparse) for tensor in side]
        for side in (invocation.gradients, result.gradients)
    ]
    if len(kinds[0]) == len(kinds[1]) and kinds[0] != kinds[1]:
        return "returned a dense gradient for a sparse one, or the other way round"
    if not invocation.call.in_place and any(
        map(_another_over_its_memory, repeat(invocation), invocation.gradients, result.gradients)
    ):
        return "returned memory of a gradient it was given"
    return ""


def _another_over_its_memory(invocation: Invocation, before: Any, after: Any) -> bool:
    """Return whether a result shares memory with a gradient. A class may return the gradient itself."""
    same = after is before and invocation.call.style in ("class", "settings")
    return not same and invocation.adapter.shares_memory(before, after)


def _same(invocation: Invocation, tensors: Sequence[Any], given: Sequence[Gradient]) -> bool:
    return types.digest(map(densify, [_read(invocation, tensor) for tensor in tensors])) == types.digest(
        map(densify, given)
    )


def _read(invocation: Invocation, tensor: Any) -> Gradient:
    return None if tensor is None else invocation.adapter.read(tensor)


def observe(call: Callable[[], CallResult]) -> CallResult:
    """Make a call. Return its result or its exception, and whether it warned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            result = CallResult(raised=names, message=_first_line(error))
    result.warned = any(warning.category.__name__ == "ClipWarning" for warning in caught)
    return result


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without addresses. Some frameworks add C++ traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    return f"{type(error).__name__}: {ADDRESS.sub('', lines[0])[:300] if lines else ''}"


def _float32(value: Any) -> Dense:
    return encode(np.asarray(nearest_float(float(value), "float32")), "float32")


# -- how to call each kind of public name


def _in_place(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    norm = function(invocation.in_place_container, **invocation.arguments)
    return CallResult(norm, invocation.read_gradients())


def _list(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    clipped, norm = function(invocation.container, **invocation.arguments)
    return CallResult(norm, list(leaves(clipped)), returned=clipped)


def _each(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    return CallResult(
        None, [None if tensor is None else function(tensor, **invocation.arguments) for tensor in invocation.gradients]
    )


def _measure(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    return CallResult(function(invocation.container, **invocation.arguments))


def _class(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    pairs = function(**invocation.arguments, need_clip=invocation.need_clip)(invocation.param_grads)
    return CallResult(None, [gradient for _, gradient in pairs])


def _class_in_place(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    norm = function(**invocation.arguments, need_clip=invocation.need_clip).clip_(invocation.in_place_container)
    return CallResult(norm, invocation.read_gradients())


def _settings(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    """Set a clip for the parameters of each group. Without groups, set the default."""
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


def _hook(invocation: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    clip = function(**invocation.arguments)
    return CallResult(None, [None if tensor is None else clip(tensor) for tensor in invocation.gradients])


STYLES: dict[str, Callable[[Invocation, Callable[..., Any], Any], CallResult]] = {
    "in place": _in_place,
    "list": _list,
    "each": _each,
    "measure": _measure,
    "class": _class,
    "class in place": _class_in_place,
    "settings": _settings,
    "hook": _hook,
}
