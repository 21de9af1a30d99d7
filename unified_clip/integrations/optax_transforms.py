"""The gradient transformation for optax that `ClipConfig.as_optax()` returns, and the outcome of its last step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.sparse import BCOO

from .._backends.jax.backend import BACKEND, path_name
from .._core.distributed import DistributedSpec
from .._core.types import with_article
from ..config.clipper import WINDOW
from ..config.schema import Settings
from . import steps
from .steps import UNKNOWN, LastStep, OutcomeArrays

__all__ = ["ClipState", "last", "load_state_dict", "rate", "state_dict"]


class ClipState(NamedTuple):
    """The state of a transformation that clips. All fields are arrays, so that `jit`, `scan` and checkpoints work."""

    step: Any
    """The number of steps so far, an int32."""

    kept: OutcomeArrays
    """The outcome of the last step. Norms are float64 if `jax_enable_x64` is set, and float32 otherwise."""

    recent: Any
    """An int8 for each of the last 100 steps: 1 if a gradient changed, 0 if none changed, and -1 if unknown."""

    inner: Any
    """The state of the optimizer that you passed to `as_optax`, or an empty state if you passed none."""

    adaptive: Any = ()
    """The state of each adaptive rule. Two int32 replace each float64, which JAX lacks without `jax_enable_x64`."""


def transformation(
    settings: Settings, optimizer: Any = None, process_group: Any = "auto"
) -> optax.GradientTransformationExtraArgs:
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        instead = "its .gradient_transformation()" if isinstance(optimizer, optax.MultiSteps) else "one"
        raise TypeError(
            f"optimizer is {with_article(type(optimizer).__name__)}, not an optax.GradientTransformation. "
            f"Pass {instead}."
        )
    skips = settings.nonfinite == "skip"
    if skips and optimizer is None:
        raise ValueError(
            "nonfinite = 'skip' needs the optimizer, because a skipped step must not change the state of the "
            "optimizer. Use clip.as_optax(optimizer) instead of optax.chain(clip.as_optax(), optimizer)."
        )
    following = optax.with_extra_args_support(optimizer or optax.identity())
    spec = DistributedSpec(process_group)
    clipper = steps.clipper(settings, BACKEND, spec)
    any_device = BACKEND.with_spec(spec).any_device

    def init(params: Any) -> ClipState:
        zero, no = jnp.zeros(()), jnp.zeros((), bool)
        kept = OutcomeArrays(zero, zero, jnp.ones(()), jnp.zeros((), jnp.int8), no)
        recent = jnp.full(WINDOW, UNKNOWN, jnp.int8)
        adaptive = clipper.current_states(BACKEND)
        return ClipState(jnp.zeros((), jnp.int32), kept, recent, following.init(params), adaptive)

    def update(updates: Any, state: ClipState, params: Any = None, **extra: Any) -> tuple[Any, ClipState]:
        named, structure = _named_leaves(updates)
        parameters = _parameters_of(named, params) if settings.needs_parameters else None
        traced = clipper.traced(named, step=state.step, states=state.adaptive, parameters=parameters)
        leaves = [leaf for _, leaf in traced.gradients]
        changes = zip((leaf for _, leaf in named), leaves, strict=True)
        kept = steps.outcome_arrays(settings, jnp, traced, changes, any_device)
        new, inner = following.update(jax.tree_util.tree_unflatten(structure, leaves), state.inner, params, **extra)
        if skips:
            new = jax.tree.map(lambda leaf: jnp.where(kept.skipped, jnp.zeros_like(leaf), leaf), new)
            inner = jax.tree.map(lambda leaf, old: jnp.where(kept.skipped, old, leaf), inner, state.inner)
        kept = OutcomeArrays(*(now.astype(old.dtype) for now, old in zip(kept, state.kept, strict=True)))
        recent = state.recent.at[state.step % WINDOW].set(kept.clipped)
        return new, ClipState(state.step + 1, kept, recent, inner, traced.states)

    return optax.GradientTransformationExtraArgs(init, update)


def last(state: Any) -> LastStep:
    """Read the outcome of the last step from an optimizer's state.

    Args:
        state: The state of an optimizer, or an object that contains it, such as a Flax `TrainState` or the `opt_state`
            of an `nnx.Optimizer`.

    Raises:
        ValueError: The state does not contain exactly one `ClipState`, or `vmap` has stacked the `ClipState`.
        TypeError: The state is inside `jit`, `scan` or `vmap`.
        RuntimeError: No step has been made.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from unified_clip import ClipConfig
        >>> from unified_clip.integrations.optax_transforms import last
        >>> clip = ClipConfig(rule="global_norm", threshold=1.0, family="tensorflow")
        >>> optimizer = optax.chain(clip.as_optax(), optax.sgd(1.0))
        >>> params = {"w": jnp.zeros(2, "float32")}
        >>> updates, state = optimizer.update({"w": jnp.array([3.0, 4.0], "float32")}, optimizer.init(params))
        >>> updates
        {'w': Array([-0.6, -0.8], dtype=float32)}
        >>> last(state).norm, last(state).clipped
        (5.0, True)
    """
    clip_state = _clip_state(state)
    return steps.last_step(int(clip_state.step), int(clip_state.step) - 1, clip_state.kept)


def rate(state: Any) -> float | None:
    """Return the share of the last 100 steps in which a gradient changed.

    Ignore steps whose outcome is unknown. Return None if no known outcome remains.

    Args:
        state: The state of an optimizer, or an object that contains it, such as a Flax `TrainState`.

    Raises:
        ValueError: The state does not contain exactly one `ClipState`, or `vmap` has stacked the `ClipState`.
        TypeError: The state is inside `jit`, `scan` or `vmap`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from unified_clip import ClipConfig
        >>> from unified_clip.integrations.optax_transforms import rate
        >>> optimizer = ClipConfig(rule="global_norm", threshold=1.0).as_optax(optax.sgd(1.0))
        >>> params = {"w": jnp.zeros(2, "float32")}
        >>> _, state = optimizer.update({"w": jnp.array([3.0, 4.0], "float32")}, optimizer.init(params))
        >>> rate(state)
        1.0
    """
    return steps.rate_of(_clip_state(state).recent)


def state_dict(settings: Settings, state: Any) -> dict[str, Any]:
    """Return the step number and the states of adaptive rules as plain data, for a JSON file or any checkpoint.

    You need this function only to move to another framework, because a checkpoint of JAX already contains the state.

    Args:
        settings: The configuration whose `as_optax()` made the transformation.
        state: The state of an optimizer, or an object that contains it, such as a Flax `TrainState`.

    Raises:
        ValueError: The adaptive rules of `settings` and the transformation differ. The state does not contain
            exactly one `ClipState`, or `vmap` has stacked the `ClipState`.
        TypeError: settings is not a configuration. The state is inside `jit`, `scan` or `vmap`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from unified_clip import ClipConfig
        >>> from unified_clip.integrations.optax_transforms import state_dict
        >>> clip = ClipConfig(rule="global_norm", threshold=1.0)
        >>> state = clip.as_optax(optax.sgd(1.0)).init({"w": jnp.zeros(2, "float32")})
        >>> state_dict(clip, state)["step"]
        0
    """
    clip_state = _clip_state(state)
    return steps.clipper(settings, BACKEND).data(int(clip_state.step), clip_state.adaptive)


def load_state_dict(settings: Settings, state: Any, data: Mapping[str, Any]) -> Any:
    """Load the clip state `data` into an optimizer's state, and return the new optimizer state.

    Args:
        settings: The configuration whose `as_optax()` made the transformation.
        state: The state of an optimizer, or an object that contains it. The function does not change `state`.
        data: A clip state from `state_dict` of this module, from `Clipper.state_dict()`, or from `state_dict()` of the
            handle that `attach_to()` returned. The state can come from another framework.

    Raises:
        ValueError: `data` is not a result of `state_dict`. The adaptive rules of `data` and `settings` differ. `state`
            does not contain exactly one `ClipState`, or `vmap` has stacked the `ClipState`.
        TypeError: settings is not a configuration. `state` is inside `jit`, `scan` or `vmap`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from unified_clip import ClipConfig
        >>> from unified_clip.integrations.optax_transforms import load_state_dict, state_dict
        >>> clip = ClipConfig(rule="global_norm", adaptive={"rule": "zclip"})
        >>> optimizer = clip.as_optax(optax.sgd(1.0))
        >>> params = {"w": jnp.zeros(2, "float32")}
        >>> _, state = optimizer.update({"w": jnp.array([3.0, 4.0], "float32")}, optimizer.init(params))
        >>> data = state_dict(clip, state)
        >>> again = load_state_dict(clip, optimizer.init(params), data)
        >>> state_dict(clip, again) == data
        True
    """
    _clip_state(state)
    clipper = steps.clipper(settings, BACKEND)
    clipper.load_state_dict(data)

    def loaded(node: Any) -> Any:
        if not isinstance(node, ClipState):
            return node
        return node._replace(step=jnp.asarray(clipper.step, jnp.int32), adaptive=clipper.current_states(BACKEND))

    return jax.tree.map(loaded, state, is_leaf=lambda node: isinstance(node, ClipState))


def _clip_state(state: Any) -> ClipState:
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, ClipState))
    clip_states = [node for node in nodes if isinstance(node, ClipState)]
    if len(clip_states) != 1:
        remedy = "Pass the part of the state that contains one ClipState, such as state[0]"
        if not clip_states:
            remedy = "Make the optimizer with clip.as_optax(), and pass the state of this optimizer"
        count = f"{len(clip_states)} ClipStates" if clip_states else "no ClipState"
        raise ValueError(f"the state contains {count}, but must contain exactly one. {remedy}.")
    clip_state = clip_states[0]
    if isinstance(clip_state.step, jax.core.Tracer):
        raise TypeError(
            "a state inside a graph (jit, scan, vmap) has no values yet. Return the state from the graph, and read it "
            "outside. Inside the graph, use arrays of the state, such as state.kept.norm."
        )
    if shape := np.shape(clip_state.step):
        raise ValueError(
            f"vmap has stacked several ClipStates into the shape {shape}. Pass one of them, such as "
            f"jax.tree.map(lambda leaf: leaf{[0] * len(shape)}, state)."
        )
    arrays: ClipState = jax.tree.map(np.asarray, clip_state._replace(inner=()))
    return arrays


Named = list[tuple[str, Any]]
"""(name, value) of each leaf"""


def _named_leaves(tree: Any) -> tuple[Named, Any]:
    entries, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: isinstance(node, BCOO))
    return [(path_name(path), leaf) for path, leaf in entries], structure


def _parameters_of(updates: Named, params: Any) -> list[Any]:
    """Return the parameter of each update. Some parameters may have no update."""
    if params is None:
        raise ValueError(
            "the adaptive rule agc needs the parameters. Pass them: optimizer.update(grads, state, params)."
        )
    named, _ = _named_leaves(params)
    if len(updates) == len(named):
        return [parameter for _, parameter in named]
    by_name = dict(named)
    unknown = [name for name, _ in updates if name not in by_name]
    if unknown or len(by_name) != len(named):
        problem = f"the update {unknown[0]!r} has no parameter" if unknown else "two parameters have the same name"
        raise ValueError(
            f"there are {len(updates)} updates for {len(named)} parameters, and {problem}. Pass updates in the "
            "structure of params. For a parameter without an update, pass None."
        )
    return [by_name[name] for name, _ in updates]
