"""Reject cases that the exact result or the workers do not support."""

from __future__ import annotations

import math
from collections.abc import Iterator

from . import adaptive_calls
from .call_form import PLAIN
from .case import Case
from .schema import SuiteError

OR_EXPECT = "or expect the error: raises = 'ValueError'"


def check(case: Case, place: str) -> None:
    if remedy := next(_unsupported(case), None):
        raise SuiteError(f"{place}, {case.call_name}: {remedy}")


def _unsupported(case: Case) -> Iterator[str]:
    yield from _containers(case)
    yield from _lists_of_gradients(case)
    yield from _memory(case)
    yield from _dtypes(case)
    call, form = case.call, case.call_form
    if call.is_adaptive:
        yield from adaptive_calls.find_misfits(call.style, case.arguments, case.gradients)
        if keys := ", ".join(key for key, value in form if value != getattr(PLAIN, key)):
            yield f"calls with an adaptive rule do not support {keys}. Remove {keys}"
    elif not case.options.raises:
        yield from _numbers(case)


def _containers(case: Case) -> Iterator[str]:
    call, form, count = case.call, case.call_form, len(case.gradients)
    if form.container in ("nested", "tensor") and not count:
        yield f"container = {form.container!r} needs at least one gradient. Choose another container"
    if form.container == "tensor" and count != 1:
        yield f"container = 'tensor' needs exactly one gradient, but there are {count}. Choose another container"
    if form.container != "list" and not (call.in_place or call.style in ("list", "measure")):
        yield "this function accepts no container of gradients. Remove the key `container`"


def _lists_of_gradients(case: Case) -> Iterator[str]:
    call, form, count = case.call, case.call_form, len(case.gradients)
    for key, values in (("need_clip", form.need_clip), ("groups", form.groups)):
        if values and len(values) != count:
            yield f"{key} has {len(values)} entries for {count} gradients. Give one entry for each gradient"
    if form.groups and call.style != "settings":
        yield "`groups` applies only to append_gradient_clip_ops. Remove `groups`"
    on_parameters = bool(case.options.frameworks) and set(case.options.frameworks) <= {"torch", "paddle"}
    takes_need_clip = call.style in ("class", "class in place", "settings") or (call.in_place and on_parameters)
    if form.need_clip and not takes_need_clip:
        yield (
            "this call does not support need_clip. Remove need_clip, or set `call` to a class or to "
            "append_gradient_clip_ops. With frameworks = ['torch', 'paddle'], you can also call a function that clips "
            "in place"
        )
    if not form.listed:
        return
    if not call.in_place:
        yield "`listed` needs a function that clips in place. Remove `listed`"
    if absent := set(range(count)).difference(form.listed):
        yield f"listed = {form.listed} lacks the index {min(absent)}. Add this index"
    if (highest := max(form.listed)) >= count:
        problem = f"listed = {form.listed} has the index {highest}, but the number of gradients is {count}"
        yield f"{problem}. Remove this index"


def _memory(case: Case) -> Iterator[str]:
    call, form = case.call, case.call_form
    if form.gradients_for_parameters and call.style != "in place":
        yield "`gradients_for_parameters` needs a function that clips in place. Remove `gradients_for_parameters`"
    for key, shared in (("expanded", form.expanded), ("overlapping", form.overlapping)):
        problem, expect = f"gradients with {key} memory need a function that clips in place", ""
        if call.in_place:
            problem, expect = (
                f"unified_clip's functions that clip in place reject gradients with {key} memory",
                f", {OR_EXPECT}",
            )
        if shared and not case.options.raises:
            yield f"{problem}. Remove the key {key}{expect}"


def _dtypes(case: Case) -> Iterator[str]:
    form, dtypes = case.call_form, {gradient.dtype for gradient in case.gradients if gradient is not None}
    if form.tensor_arguments and (others := ", ".join(sorted(dtypes - {"float32"}))):
        yield f"tensor_arguments needs float32 gradients, but some are {others}. Remove tensor_arguments"
    numbers = " and ".join(sorted({"norm_type", "axes", "error_if_nonfinite"} & case.arguments.keys()))
    if form.tensor_arguments and numbers:
        yield f"tensor_arguments cannot pass {numbers} as a tensor. Remove tensor_arguments, or remove {numbers}"
    if case.options.update and (others := ", ".join(sorted(dtypes - {"float32", "float64"}))):
        yield f"`update` needs float32 or float64 gradients, but some are {others}. Remove `update`"
    if "int64" in dtypes and case.call_name != "clip_by_value" and not case.options.raises:
        expect = OR_EXPECT.replace("ValueError", "TypeError")
        yield f"only clip_by_value supports int64. Choose another dtype, {expect}"


def _numbers(case: Case) -> Iterator[str]:
    arguments = case.arguments
    thresholds = {key: arguments[key] for key in (*case.call.required, "use_norm", "min") if key in arguments}
    for key, value in thresholds.items():
        expect = "" if key in ("use_norm", "total_norm") else f", {OR_EXPECT}"  # a norm may be NaN
        if math.isnan(value):
            yield f"{key} is NaN. Give a number{expect}"
        if not case.call.by_value and value < 0:
            yield f"{key} is {value}. Give 0 or more, {OR_EXPECT}"
    if case.call.by_value:
        low, high = case.call.bounds(arguments)
        problem = f"the lower bound {low} is above the upper bound {high}. Swap the bounds"
        if len(case.call.required) == 1 and "min" not in arguments:
            name = case.call.required[0]
            problem = f"{name} is {high}, so the lower bound -{name} is {low}. Give 0 or more"
            problem += ", or add `min`" if "min" in case.call.optional else ""
        if low > high:
            yield f"{problem}, {OR_EXPECT}"
    p = arguments.get("norm_type", 2)
    if not (p == math.inf or 0.01 <= p <= 100):
        expect = "" if p > 0 else f", {OR_EXPECT}"  # unified_clip accepts every norm_type above 0
        yield f"norm_type is {p}. Give inf, or a number from 0.01 to 100{expect}"
    ranks = [len(gradient.shape) for gradient in case.gradients if gradient is not None]
    axes, least = arguments.get("axes", []), min(ranks, default=0)
    if any(not -rank <= axis < rank for axis in axes for rank in ranks):
        remedy = f"Give axes from {-least} to {least - 1}" if least else "Remove axes"
        yield f"axes = {axes} has an axis that a gradient does not have. {remedy}"
    if any(len({axis % rank for axis in axes}) < len(axes) for rank in ranks if rank):
        yield f"axes = {axes} names an axis twice. Name each axis once, {OR_EXPECT}"
