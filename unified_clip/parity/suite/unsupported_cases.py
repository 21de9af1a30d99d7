"""Reject cases that the exact result or the workers do not support."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..._kit.display import counted
from .call_form import PLAIN
from .case import Case
from .schema import SuiteError

OR_EXPECT = "or expect the error: raises = 'ValueError'"


def check(case: Case, place: str) -> None:
    if problem := next(_unsupported(case), None):
        raise SuiteError(f"{place}, {case.call_name}: {problem}")


def _unsupported(case: Case) -> Iterator[str]:
    yield from (text for text, is_wrong in _call_form(case).items() if is_wrong)
    call, form, dtypes = case.call, case.call_form, {each.dtype for each in case.gradients if each is not None}
    if form.tensor_arguments and dtypes - {"float32"}:
        yield "`tensor_arguments` needs float32 gradients. Remove `tensor_arguments`"
    for name in {"norm_type", "axes", "error_if_nonfinite"} & case.arguments.keys() if form.tensor_arguments else ():
        yield f"{name} cannot be a tensor. Remove {name} or `tensor_arguments`"
    if case.options.update and dtypes - {"float32", "float64"}:
        yield "`update` needs float32 or float64 gradients. Remove `update`"
    if "int64" in dtypes and case.call_name != "clip_by_value" and not case.options.raises:
        yield f"only clip_by_value supports int64. Choose another dtype, {OR_EXPECT.replace('Value', 'Type')}"
    if call.style == "units":
        parts = case.clipped_inputs, case.gradients[len(case.clipped_inputs) :]
        if len({tuple(each and each.shape for each in part) for part in parts}) > 1:
            yield (
                "this function needs one list: all gradients, then their parameters in the same shapes. Add the "
                "parameters, or correct their shapes"
            )
        if keys := ", ".join(key for key, value in form if value != getattr(PLAIN, key)):
            yield f"calls of this function do not support {keys}. Remove {keys}"
    elif not case.options.raises:
        yield from _numbers(case)


def _call_form(case: Case) -> dict[str, bool]:
    """Return {problem: whether the case has it}."""
    call, form, count = case.call, case.call_form, len(case.gradients)
    container, listed = form.container, set(form.listed)
    on_parameters = bool(case.options.frameworks) and set(case.options.frameworks) <= {"torch", "paddle"}
    takes_need_clip = call.style in ("class", "class in place", "settings") or (call.in_place and on_parameters)
    takes_container = call.in_place or call.style in ("list", "measure")
    no_fit = {"nested": not count, "tensor": count != 1}.get(container, False)
    shared = [key for key in ("expanded", "overlapping") if getattr(form, key) and not case.options.raises]
    return {
        f"container = {container!r} does not fit {counted(count, 'gradient')}. Choose another container": no_fit,
        "this function takes no container. Remove `container`": container != "list" and not takes_container,
        "`need_clip` needs one entry for each gradient": len(form.need_clip) not in (0, count),
        "`groups` needs one entry for each gradient": len(form.groups) not in (0, count),
        "`groups` is only for append_gradient_clip_ops. Remove `groups`": bool(form.groups)
        and call.style != "settings",
        "this function takes no `need_clip`. Remove `need_clip`": bool(form.need_clip) and not takes_need_clip,
        "`listed` needs a function that clips in place. Remove `listed`": bool(listed) and not call.in_place,
        f"`listed` needs each index below {count} at least once": bool(listed) and listed != set(range(count)),
        "`gradients_for_parameters` needs a function that clips in place": (
            form.gradients_for_parameters and call.style != "in place"
        ),
        f"functions that clip in place reject {' and '.join(shared)} memory. Remove the key, {OR_EXPECT}": (
            bool(shared) and call.in_place
        ),
        f"{' and '.join(shared)} memory needs a function that clips in place. Remove the key": bool(shared),
    }


def _numbers(case: Case) -> Iterator[str]:
    arguments = case.arguments
    for key in [key for key in (*case.call.required, "use_norm", "min") if key in arguments]:
        value = arguments[key]
        if math.isnan(value) or (value < 0 and not case.call.by_value):
            expect = "" if key in ("use_norm", "total_norm") else f", {OR_EXPECT}"  # a norm may be NaN
            yield f"{key} is {value}. Give {'a number' if case.call.by_value else '0 or more'}{expect}"
    if case.call.by_value:
        low, high = case.call.bounds(arguments)
        if low > high:
            yield f"the lower bound {low} is above the upper bound {high}. Swap the bounds, {OR_EXPECT}"
    p = arguments.get("norm_type", 2)
    if not (p == math.inf or 0.01 <= p <= 100):
        expect = "" if p > 0 else f", {OR_EXPECT}"  # unified_clip accepts every norm_type above 0
        yield f"norm_type is {p}. Give inf, or a number from 0.01 to 100{expect}"
    axes = arguments.get("axes", [])
    for shape in [gradient.shape for gradient in case.gradients if gradient is not None]:
        if any(not -len(shape) <= axis < len(shape) for axis in axes):
            yield f"axes = {axes} does not fit a gradient of shape {list(shape)}. Correct the axes"
        elif len({axis % len(shape) for axis in axes}) < len(axes):
            yield f"axes = {axes} names an axis twice. Name each axis once, {OR_EXPECT}"
