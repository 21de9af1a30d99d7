"""Make one call as a case describes it, and say what came of it: results, warnings, errors, and what was written."""

from __future__ import annotations

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


@dataclass(eq=False)
class CallResult:
    """What came of a call."""

    norm: Any = None
    gradients: Sequence[Any] | None = None
    returned: Any = None
    """The container that came back from a call that is about it."""

    structure: str = ""
    name: str = ""
    warned: bool = False
    raised: list[str] = field(default_factory=list)
    message: str = ""
    fault: str = ""
    """What a call did to tensors that it should not have."""

    same_objects: list[bool] = field(default_factory=list)
    """Of a class: for each gradient whether the given object came back."""

    update: Sequence[Any] | None = None


def make(adapter: Adapter, case: Mapping[str, Any], gradients: Sequence[Gradient]) -> Invocation:
    """An invocation from a case as the job file has it."""
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
    """Our function, from the namespace `settings`."""
    return observe(lambda: STYLES[invocation.call.style](invocation, function, settings))


def record_effects(invocation: Invocation, result: CallResult, given: Sequence[Gradient]) -> None:
    """Note what a call of ours did to tensors; `given` are the gradients as the case has them."""
    result.fault = _fault(invocation, result, given)
    if result.returned is not None:
        result.structure = structure(result.returned)
    if invocation.call.style in ("class", "settings") and result.gradients is not None:
        result.same_objects = [
            after is before for before, after in zip(invocation.gradients, result.gradients, strict=False)
        ]


def call_native(invocation: Invocation) -> CallResult:
    """The framework's own function; a result without a name where it has none, or it must not be called."""

    def call() -> CallResult:
        adapter = invocation.adapter
        found: NativeResult | None = adapter.native(invocation) if adapter.has_native(invocation) else None
        return CallResult() if found is None else CallResult(found.norm, found.tensors)

    result = observe(call)
    result.name = invocation.native
    return result


def _fault(run: Invocation, result: CallResult, given: Sequence[Gradient]) -> str:
    """What is wrong with the tensors, but for the numbers: '' if nothing."""
    if result.raised or not run.call.in_place:
        found = run.read_gradients() if run.call.in_place else run.gradients
        if not _same(run, found, given):
            return "had changed gradients" if result.raised else "changed the gradients it was given"
    if result.raised or result.gradients is None:
        return ""
    kinds = [[isinstance(_read(run, tensor), Sparse) for tensor in side] for side in (run.gradients, result.gradients)]
    if len(kinds[0]) == len(kinds[1]) and kinds[0] != kinds[1]:
        return "returned a dense gradient for a sparse one, or the other way round"
    if not run.call.in_place and any(map(_another_over_its_memory, repeat(run), run.gradients, result.gradients)):
        return "returned memory of a gradient it was given"
    return ""


def _another_over_its_memory(run: Invocation, before: Any, after: Any) -> bool:
    """A class may return the given object itself, which a functional name may not."""
    same = after is before and run.call.style in ("class", "settings")
    return not same and run.adapter.shares_memory(before, after)


def _same(run: Invocation, tensors_: Sequence[Any], given: Sequence[Gradient]) -> bool:
    return types.digest(map(densify, [_read(run, tensor) for tensor in tensors_])) == types.digest(map(densify, given))


def _read(run: Invocation, tensor: Any) -> Gradient:
    return None if tensor is None else run.adapter.read(tensor)


def observe(call: Callable[[], CallResult]) -> CallResult:
    """What a call gave, or what it raised, and whether it warned."""
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
    """What was wrong, without the C++ traces that some frameworks add."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def _float32(value: Any) -> Dense:
    return encode(np.asarray(nearest_float(float(value), "float32")), "float32")


# -- how the names are called


def _in_place(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    norm = function(run.in_place_container, **run.arguments)
    return CallResult(norm, run.read_gradients())


def _list(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    clipped, norm = function(run.container, **run.arguments)
    return CallResult(norm, list(leaves(clipped)), returned=clipped)


def _each(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    return CallResult(None, [None if tensor is None else function(tensor, **run.arguments) for tensor in run.gradients])


def _measure(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    return CallResult(function(run.container, **run.arguments))


def _class(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    pairs = function(**run.arguments, need_clip=run.need_clip)(run.param_grads)
    return CallResult(None, [gradient for _, gradient in pairs])


def _class_in_place(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    norm = function(**run.arguments, need_clip=run.need_clip).clip_(run.in_place_container)
    return CallResult(norm, run.read_gradients())


def _settings(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    """Clips set for the parameters of each group, or, where there are no groups, the default."""
    groups = run.call_form.groups
    for name in sorted(set(groups)) or ["default_group"]:
        clip = settings.GradientClipByGlobalNorm(**run.arguments, group_name=name, need_clip=run.need_clip)
        members = [parameter for parameter, group in zip(run.parameters, groups, strict=False) if group == name]
        settings.set_gradient_clip(clip, param_list=members or None)
    try:
        return CallResult(None, [gradient for _, gradient in function(run.param_grads)])
    finally:
        settings.set_gradient_clip(None)


def _hook(run: Invocation, function: Callable[..., Any], settings: Any) -> CallResult:
    clip = function(**run.arguments)
    return CallResult(None, [None if tensor is None else clip(tensor) for tensor in run.gradients])


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
