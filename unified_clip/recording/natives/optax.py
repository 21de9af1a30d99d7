"""Record optax's own clipping transformations and the steps of its optimizers, with or without `jax.jit`."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax._src import alias

from ..._backends.jax.backend import path_name
from ...recorder.clips import NativeCall
from ...recorder.guard import Call
from ...recorder.hooks import CLIP_CALLS, HOOKS, OUTPUT, RecordingHook
from ...recorder.lines import caller, canonical
from ...recorder.samples import positions
from ...recorder.steps import RETURNED_CLIPS, STEP, names_of_step, of_groups, record_step, tensor_at_step
from .traced import report_call, report_step

OPTIMIZERS = (
    "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad", "lamb",
    "lars", "lion", "nadam", "nadamw", "novograd", "radam", "rmsprop", "sgd", "signum", "yogi",
)  # fmt: skip

SETTINGS = {
    "momentum": "momentum",
    "nesterov": "nesterov",
    "weight_decay": "weight_decay",
    "decay": "alpha",
    "rho": "alpha",
    "beta": "momentum",
    "centered": "centered",
    "eps": "eps",
    "eps_in_sqrt": "eps_in_sqrt",
    "initial_accumulator_value": "initial_accumulator_value",
    "initial_scale": "initial_accumulator_value",
}


KEYS = itertools.count(1)
"""The `id` of a transformation can be that of an earlier one, which `optax.inject_hyperparams` has replaced."""


def install() -> None:
    for name in OPTIMIZERS:
        HOOKS.wrap([(optax, name), (alias, name)], STEP, partial(_optimizer, name))
    for name in ("clip_by_global_norm", "clip"):
        HOOKS.wrap([(optax, name), (optax.transforms, name)], f"a call of optax.{name}", _clip)
    HOOKS.wrap([(optax.MultiSteps, "update")], "a step of optax.MultiSteps", _micro_batch)


_hidden = threading.local()


def _micro_batch(call: Call) -> Iterator[None]:
    """optax clips and steps for each micro-batch, and drops the results of all but the last one."""
    _hidden.depth = getattr(_hidden, "depth", 0) + 1
    try:
        yield
    finally:
        _hidden.depth -= 1
    raise TypeError("A graph does not tell which of its clips and steps count. Clip before optax.MultiSteps")


def _clip(call: Call) -> Iterator[None]:
    yield
    name, key = call.function.__name__, next(KEYS)
    (threshold,) = call.arguments.values()
    describe = partial(_describe_call, name)

    def report(update: Call) -> Iterator[None]:
        yield
        if getattr(_hidden, "depth", 0):
            return
        updates, _, params, *_ = [*update.arguments.values(), None]
        clipped, _ = update.result
        leaves, weights = jax.tree.leaves(updates), jax.tree.leaves(params)
        weights = weights if len(weights) == len(leaves) else []
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
        RETURNED_CLIPS.fields_of_clip(_fixed(names, leaves))
        report_call(describe, threshold, leaves, jax.tree.leaves(clipped), weights, names, key)

    init, update = call.result
    hook = RecordingHook(f"update of optax.{name}", f"a call of optax.{name}")
    call.result = optax.GradientTransformation(init, hook.around(update, CLIP_CALLS.observer(report)))


def _fixed(names: Sequence[str], leaves: Sequence[Any]) -> list[tuple[str, Any]]:
    """Leave out NumPy's arrays, whose numbers can change.

    On JAX, no clip is late, because an adversarial step may use gradients before their clip.
    """
    return [(name, leaf) for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, jax.Array)]


def _describe_call(name: str, value: Any) -> NativeCall:
    threshold = float(value) if np.ndim(value) == 0 else None
    if name == "clip":
        bounds = None if threshold is None else (-threshold, threshold)
        return NativeCall("optax.clip", "jax", "value", bounds, None, None)
    return NativeCall(f"optax.{name}", "jax", "global", threshold)


def _optimizer(function: str, call: Call) -> Iterator[None]:
    """function: The name, which `optax.nadam` lacks, as a `functools.partial`."""
    yield
    bound = inspect.signature(call.function).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    name, transformation, key = f"optax.{function}", call.result, next(KEYS)

    def step(update: Call) -> Iterator[None]:
        yield
        if getattr(_hidden, "depth", 0):
            return
        updates, state, params, *_ = [*update.arguments.values(), None]
        _record_step(name, bound.arguments, state, updates, params, key)

    update = RecordingHook(f"update of {name}", STEP).around(transformation.update, step)
    call.result = type(transformation)(transformation.init, update)


def _record_step(kind: str, arguments: Any, state: Any, updates: Any, params: Any, key: int) -> None:
    rate = arguments["learning_rate"]
    if callable(rate):
        counts = optax.tree_utils.tree_get_all_with_path(state, "count")
        rate = rate(counts[0][1]) if counts else None
    values = {name: arguments[argument] for argument, name in SETTINGS.items() if argument in arguments}
    values |= {"lr": rate, "beta1": arguments.get("b1"), "beta2": arguments.get("b2")}
    traced = {name: value for name, value in values.items() if isinstance(value, jax.Array)}
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
    leaves = jax.tree.leaves(updates)
    lost = RETURNED_CLIPS.fields_of_step(_fixed(names, leaves))
    passes: dict[str, Any] = {"gradients": len(names), "place": caller(), **names_of_step(names), **lost}
    kinds = sorted(_masked(arguments, updates))

    named = {canonical(name): leaf for name, leaf in zip(names, leaves, strict=True)}
    weights = jax.tree.leaves(params) if OUTPUT.norms else []
    shapes = [leaf.shape for leaf in named.values()] if OUTPUT.norms else []
    has_weights = bool(shapes) and shapes == [each.shape for each in weights]
    samples = [_sampled(leaf) for leaf in named.values() if shapes] + [
        _sampled(each) for each in weights if has_weights
    ]

    def receive(clips: int | None, *arrays: Any) -> None:
        numbers, rows = arrays[: len(traced)], [row.tolist() for row in arrays[len(traced) :]]
        of_weights = [row[:-1] for row in rows[len(shapes) :]] if has_weights else [None] * len(shapes)
        columns = zip(named, shapes, rows, of_weights, strict=False)
        passes["tensors"] = {name: tensor_at_step(*row) for name, *row in columns}
        settings = values | dict(zip(traced, numbers, strict=True))
        betas = [settings.pop("beta1"), settings.pop("beta2")]
        if kinds:
            decays = [settings["weight_decay"] if is_decayed else 0.0 for is_decayed in kinds]
            settings["weight_decay"] = of_groups(decays)
        known = passes if clips is None else {"clips": clips, **passes}
        record_step(kind, settings | {"betas": betas}, known, key)

    report_step(key, receive, [*traced.values(), *samples])


def _sampled(leaf: Any) -> Any:
    """Return the elements of the sample, and the norm."""
    flat, chosen = jnp.ravel(leaf), positions(leaf.shape)
    # a graph without 64-bit types refuses 64-bit indices
    chosen = chosen.astype(np.int32 if flat.size <= np.iinfo(np.int32).max else np.int64)
    return jnp.append(flat[chosen], jnp.linalg.norm(flat))


def _masked(arguments: Any, updates: Any) -> set[bool]:
    """Return whether parameters have weight decay, and whether others have none. Without a mask, return nothing."""
    mask = arguments.get("mask", arguments.get("weight_decay_mask"))
    if mask is None or "weight_decay" not in arguments:
        return set()
    return {bool(each) for each in jax.tree.leaves(mask(updates) if callable(mask) else mask)}
