"""Record optax's own clipping transformations and the steps of its optimizers, with or without `jax.jit`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from optax._src import alias

from ..._backends.jax.backend import path_name
from ..._guard import Call
from ..lines import caller
from .hooks import HOOKS, RecordingHook
from .native_call import NativeCall
from .observer import OBSERVER
from .optimizer_steps import STEP, decayed_elements, of_groups, record_step
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


def install() -> None:
    for name in OPTIMIZERS:
        HOOKS.wrap([(optax, name), (alias, name)], STEP, _optimizer)
    for name in ("clip_by_global_norm", "clip"):
        HOOKS.wrap([(optax, name), (optax.transforms, name)], f"a call of optax.{name}", _clip)


def _clip(call: Call) -> Iterator[None]:
    yield
    name = call.function.__name__
    (threshold,) = call.arguments.values()
    describe = partial(_describe_call, name)

    def report(update: Call) -> Iterator[None]:
        yield
        updates, _, params, *_ = [*update.arguments.values(), None]
        clipped, _ = update.result
        leaves, weights = jax.tree.leaves(updates), jax.tree.leaves(params)
        weights = weights if len(weights) == len(leaves) else []
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
        report_call(describe, threshold, leaves, jax.tree.leaves(clipped), weights, names)

    init, update = call.result
    hook = RecordingHook(f"update of optax.{name}", f"a call of optax.{name}")
    call.result = optax.GradientTransformation(init, hook.around(update, OBSERVER.around(report)))


def _describe_call(name: str, value: Any) -> NativeCall:
    threshold = float(value) if np.ndim(value) == 0 else None
    if name == "clip":
        bounds = None if threshold is None else (-threshold, threshold)
        return NativeCall("optax.clip", "jax", "value", bounds, None, None)
    return NativeCall(f"optax.{name}", "jax", "global", threshold)


def _optimizer(call: Call) -> Iterator[None]:
    yield
    bound = inspect.signature(call.function).bind(*call.args, **call.kwargs)
    bound.apply_defaults()
    name, transformation = f"optax.{call.function.__name__}", call.result

    def step(update: Call) -> Iterator[None]:
        yield
        updates, state, *_ = update.arguments.values()
        _record_step(name, bound.arguments, state, updates)

    update = RecordingHook(f"update of {name}", STEP).around(transformation.update, step)
    call.result = type(transformation)(transformation.init, update)


def _record_step(kind: str, arguments: Any, state: Any, updates: Any) -> None:
    rate = arguments["learning_rate"]
    if callable(rate):
        counts = optax.tree_utils.tree_get_all_with_path(state, "count")
        rate = rate(counts[0][1]) if counts else None
    values = {name: arguments[argument] for argument, name in SETTINGS.items() if argument in arguments}
    values |= {"lr": rate, "beta1": arguments.get("b1"), "beta2": arguments.get("b2")}
    traced = {name: value for name, value in values.items() if isinstance(value, jax.Array)}
    masked, passes = _masked(arguments, updates), {"gradients": len(jax.tree.leaves(updates)), "place": caller()}
    kinds, decayed = sorted({is_decayed for is_decayed, _ in masked}), decayed_elements(masked)

    def receive(clips: int, *numbers: Any) -> None:
        settings = values | dict(zip(traced, numbers, strict=True))
        betas = [settings.pop("beta1"), settings.pop("beta2")]
        if kinds:
            decays = [settings["weight_decay"] if is_decayed else 0.0 for is_decayed in kinds]
            settings["weight_decay"] = of_groups(decays)
        record_step(kind, settings | {"betas": betas}, {"clips": clips, **passes, **decayed})

    report_step(receive, list(traced.values()))


def _masked(arguments: Any, updates: Any) -> list[tuple[bool, int]]:
    """Return (whether the parameter has weight decay, number of elements) for each parameter. Without a mask, return
    []."""
    mask = arguments.get("mask", arguments.get("weight_decay_mask"))
    if mask is None or "weight_decay" not in arguments:
        return []
    tree = mask(updates) if callable(mask) else mask
    masked: list[tuple[bool, int]] = []  # a mask may have one value for several parameters

    def add(is_decayed: Any, part: Any) -> None:
        masked.append((bool(is_decayed), sum(leaf.size for leaf in jax.tree.leaves(part))))

    jax.tree.map(add, tree, updates)
    return masked
