"""The bodies of the public functions. Each public module, such as `unified_clip.torch`, passes its backend to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .._core import containers, rule, validation
from .._core.backend import Backend
from .._core.collect import collect, collect_in_place, collect_one, from_tree, listed, prepare_rejection_for
from .._core.distributed import DISTINCT, DistributedSpec, declared
from .._core.rule import ClipRule
from .._core.types import Tensor
from . import plain_calls

Resolve = Callable[[Any], tuple[Backend, Any]]
"""The type of `_dispatch.resolve`."""

BY_VALUE = "ClipConfig(rule='value', threshold=clip_value)(grads)"


@dataclass(frozen=True)
class Resolver:
    resolve: Resolve


# -- PyTorch's names


def clip_grad_norm_(
    backend: Backend | Resolver,
    parameters: Any,
    max_norm: Any,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> Tensor:
    if isinstance(backend, Resolver):
        backend, parameters = backend.resolve(parameters)
    arguments = process_group, ownership, check_numel, check_replicas
    if plain_calls.is_plain(max_norm, norm_type, arguments) and error_if_nonfinite is False:
        if type(parameters) is not list and backend.writable:
            parameters = listed(parameters)
        plain = backend.plain_gradients(parameters)
        if plain is not None and plain.tensors:
            return plain_calls.clip_in_place(backend, plain, max_norm, rule.PYTORCH)
    spec = _declared(backend, parameters, arguments, in_place=True)
    try:
        threshold = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
        p = validation.norm_type(norm_type)
    except (TypeError, ValueError):
        prepare_rejection_for(backend, parameters, spec, "total", in_place=True)
        raise
    in_one_pass = isinstance(threshold, float) and not error_if_nonfinite
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grad_norm_", "clip_by_global_norm", plain=in_one_pass, spec=spec, measures="total"
    )
    norm = rule.clip(gradients, ClipRule("global_norm", rule.PYTORCH, threshold, p=p), error_if_nonfinite)
    writer.finish()
    return norm


def clip_grad_value_(
    backend: Backend | Resolver, parameters: Any, clip_value: Any, foreach: bool | None = None
) -> None:
    if isinstance(backend, Resolver):
        backend, parameters = backend.resolve(parameters)
    threshold = validation.threshold(backend, clip_value, "clip_value", differentiable=False)
    plain = isinstance(threshold, float)
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grad_value_", BY_VALUE, plain=plain, reject_complex=True
    )
    rule.clip(gradients, ClipRule("value", bounds=(-threshold, threshold)))
    writer.finish()


def get_total_norm(
    backend: Backend | Resolver,
    tensors: Any,
    norm_type: float | str = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> Tensor:
    if isinstance(backend, Resolver):
        backend, tensors = backend.resolve(tensors)
    arguments = process_group, ownership, check_numel, check_replicas
    if plain_calls.is_plain(math.inf, norm_type, arguments) and error_if_nonfinite is False:
        tensors = listed(tensors)
        norm = plain_calls.total_norm(backend, tensors)
        if norm is not None:
            return norm
    spec = _declared(backend, tensors, arguments, in_place=False)
    try:
        p = validation.norm_type(norm_type)
    except (TypeError, ValueError):
        prepare_rejection_for(backend, tensors, spec, "total", in_place=False)
        raise
    gradients, _ = collect(backend, tensors, "get_total_norm", plain=not error_if_nonfinite, spec=spec)
    return rule.total_norm(gradients, p, error_if_nonfinite)


def clip_grads_with_norm_(
    backend: Backend | Resolver, parameters: Any, max_norm: Any, total_norm: Any, foreach: bool | None = None
) -> None:
    if isinstance(backend, Resolver):
        backend, parameters = backend.resolve(parameters)
    threshold = validation.threshold(backend, max_norm, "max_norm", differentiable=False)
    norm = validation.given_norm(backend, total_norm, "total_norm", differentiable=False)
    plain = isinstance(threshold, float) and isinstance(norm, float)
    gradients, writer = collect_in_place(
        backend, parameters, "clip_grads_with_norm_", "clip_by_global_norm", plain=plain
    )
    rule.clip(gradients, ClipRule("global_norm", rule.PYTORCH, threshold, given_norm=norm))
    writer.finish()


# -- TensorFlow's names


def clip_by_global_norm(
    backend: Backend | Resolver,
    t_list: Any,
    clip_norm: Any,
    use_norm: Any = None,
    name: str | None = None,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> tuple[Any, Tensor]:
    if isinstance(backend, Resolver):
        backend, t_list = backend.resolve(t_list)
    with backend.name_scope(name or "clip_by_global_norm"):
        arguments = process_group, ownership, check_numel, check_replicas
        if use_norm is None and plain_calls.is_plain(clip_norm, 2.0, arguments):
            t_list = listed(t_list)
            clipped = plain_calls.clip_to_new(backend, t_list, clip_norm, rule.TENSORFLOW_GLOBAL)
            if clipped is not None:
                return clipped
        spec = _declared(backend, t_list, arguments, in_place=False)
        if use_norm is not None and spec.check_replicas:
            raise ValueError(
                "check_replicas is not supported with use_norm: only a call that measures the norm compares the copies "
                "of a gradient. Leave out check_replicas or use_norm"
            )
        known_norm = (
            None if use_norm is None else validation.given_norm(backend, use_norm, "use_norm", differentiable=True)
        )
        try:
            threshold = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
        except (TypeError, ValueError):
            if known_norm is None:
                prepare_rejection_for(backend, t_list, spec, "total", in_place=False)
            raise
        plain = isinstance(threshold, float) and isinstance(known_norm, (float, type(None)))
        gradients, writer = collect(
            backend,
            t_list,
            "clip_by_global_norm",
            plain=plain,
            spec=spec,
            measures="total" if known_norm is None else None,
        )
        norm = rule.clip(gradients, ClipRule("global_norm", rule.TENSORFLOW_GLOBAL, threshold, given_norm=known_norm))
        return writer.result(), norm


def clip_by_norm(
    backend: Backend | Resolver,
    t: Any,
    clip_norm: Any,
    axes: Any = None,
    name: str | None = None,
    process_group: Any = "auto",
) -> Tensor:
    if isinstance(backend, Resolver):
        backend, t = backend.resolve(t)
    with backend.name_scope(name or "clip_by_norm"):
        spec = declared(process_group)
        try:
            threshold = validation.threshold(backend, clip_norm, "clip_norm", differentiable=True)
        except (TypeError, ValueError):
            if axes is None:
                prepare_rejection_for(backend, t, spec, "each", in_place=False)
            raise
        validation.one_tensor(backend, t, "clip_by_norm")
        plain = isinstance(threshold, float) and axes is None
        gradients, writer = collect_one(backend, t, plain=plain, spec=spec, measures="each" if axes is None else None)
        along = None
        if axes is not None and gradients.values:
            along = validation.axes(axes, gradients.shape(0))
        rule.clip(gradients, ClipRule("norm", rule.TENSORFLOW, threshold, axes=along))
        return writer.result()


def clip_by_value(
    backend: Backend | Resolver, t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None
) -> Tensor:
    if isinstance(backend, Resolver):
        backend, t = backend.resolve(t)
    with backend.name_scope(name or "clip_by_value"):
        low = validation.bound(backend, clip_value_min, "clip_value_min")
        high = validation.bound(backend, clip_value_max, "clip_value_max")
        validation.one_tensor(backend, t, "clip_by_value")
        tree, integers = containers.flatten(backend, t), validation.INTEGER_RANGES
        gradients, writer = from_tree(backend, tree, differentiable=True, extra_dtypes=integers, reject_complex=True)
        if gradients.values:
            if gradients.is_sparse(0):
                validation.sparse_bounds(low, high, gradients.leaves[0])
            low, high = validation.value_bounds(backend, low, high, gradients.values[0])
            rule.clip(gradients, ClipRule("value", bounds=(low, high)))
        return writer.result()


def global_norm(
    backend: Backend | Resolver,
    t_list: Any,
    name: str | None = None,
    process_group: Any = "auto",
    ownership: Any = None,
    check_numel: bool | int | None = None,
    check_replicas: bool = False,
) -> Tensor:
    if isinstance(backend, Resolver):
        backend, t_list = backend.resolve(t_list)
    with backend.name_scope(name or "global_norm"):
        arguments = process_group, ownership, check_numel, check_replicas
        spec = _declared(backend, t_list, arguments, in_place=False)
        return rule.total_norm(collect(backend, t_list, "global_norm", spec=spec)[0], 2.0)


def _declared(
    backend: Backend, container: Any, arguments: tuple[Any, Any, Any, Any], *, in_place: bool
) -> DistributedSpec:
    try:
        return declared(*arguments)
    except (TypeError, ValueError):
        process_group, ownership, *_ = arguments
        if process_group is not None:
            valid = DistributedSpec(process_group, None if ownership is None else DISTINCT)
            prepare_rejection_for(backend, container, valid, "total", in_place=in_place)
        raise
