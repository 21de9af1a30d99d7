"""A configuration as one of optax's gradient transformations: `ClipConfig.as_optax()`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental.sparse import BCOO

from .._core.shards import Across
from .._ops.jax_ops import OPS
from ..config.clipper import WINDOW
from ..config.schema import Settings
from . import steps
from .steps import UNKNOWN, Kept, LastStep


class ClipState(NamedTuple):
    """The state of a transformation that clips: arrays, so that it passes through `jit`, `scan` and checkpoints."""

    step: Any
    """How many steps were made: an int32."""

    kept: Kept
    """What happened at the last one; its numbers have JAX's default type: float64 with x64, else float32."""

    recent: Any
    """Whether each of the last 100 steps changed a gradient, in turn, as int8: 1, 0, or -1 where that is not known."""

    inner: Any
    """The state of the optimizer that was given."""


def transformation(
    settings: Settings, optimizer: Any = None, process_group: Any = "auto"
) -> optax.GradientTransformationExtraArgs:
    """Clip updates as a configuration says; the step of a schedule is counted in the state.

    Raises:
        TypeError: optimizer is no `optax.GradientTransformation`; when used, an update is of integers or booleans, or
            nonfinite is "raise" inside a graph.
        ValueError: nonfinite is "skip", and no optimizer was given.

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
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        instead = "its .gradient_transformation()" if isinstance(optimizer, optax.MultiSteps) else "one"
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}, which is no optax.GradientTransformation; pass {instead}"
        )
    skips = settings.nonfinite == "skip"
    if skips and optimizer is None:
        raise ValueError(
            "nonfinite = 'skip' leaves the optimizer's state as it was, so it has to know it; pass "
            "as_optax(optimizer) in the place of optax.chain(as_optax(), optimizer)"
        )
    following = optax.with_extra_args_support(optimizer or optax.identity())
    across = Across(process_group)
    clipper = steps.clipper(settings, OPS, across)
    anywhere = OPS.stated(across).anywhere

    def init(params: Any) -> ClipState:
        zero, no = jnp.zeros(()), jnp.zeros((), bool)
        kept = Kept(zero, zero, jnp.ones(()), jnp.zeros((), jnp.int8), no)
        recent = jnp.full(WINDOW, UNKNOWN, jnp.int8)
        return ClipState(jnp.zeros((), jnp.int32), kept, recent, following.init(params))

    def update(updates: Any, state: ClipState, params: Any = None, **extra: Any) -> tuple[Any, ClipState]:
        found, structure = jax.tree_util.tree_flatten_with_path(updates, is_leaf=_is_sparse)
        named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in found]
        result = clipper.traced(named, step=state.step)
        leaves = [leaf for _, leaf in result.gradients]
        changes = zip((leaf for _, leaf in found), leaves, strict=True)
        kept = steps.kept(settings, jnp, result, changes, anywhere)
        new, inner = following.update(jax.tree_util.tree_unflatten(structure, leaves), state.inner, params, **extra)
        if skips:
            new = jax.tree.map(lambda leaf: jnp.where(kept.skipped, jnp.zeros_like(leaf), leaf), new)
            inner = jax.tree.map(lambda leaf, old: jnp.where(kept.skipped, old, leaf), inner, state.inner)
        kept = Kept(*(now.astype(old.dtype) for now, old in zip(kept, state.kept, strict=True)))
        recent = state.recent.at[state.step % WINDOW].set(kept.clipped)
        return new, ClipState(state.step + 1, kept, recent, inner)

    return optax.GradientTransformationExtraArgs(init, update)


def last(state: Any) -> LastStep:
    """What happened at the last step, from a state that holds that of the transformation, however deep inside.

    Args:
        state: The optimizer's: of `optax.chain`, `MultiSteps`, a Flax `TrainState`, an `nnx.Optimizer`'s `opt_state`.

    Raises:
        ValueError: There is no such state in it, or more than one, or one that `vmap` has made many.
        TypeError: Inside a graph.
        RuntimeError: No step has been made.
    """
    found = _found(state)
    return steps.last_step(int(found.step), int(found.step) - 1, found.kept)


def rate(state: Any) -> float | None:
    """The share of the last 100 steps (or fewer) that changed a gradient; None where that is known of none.

    `state`: as for `last`.
    """
    return steps.rate_of(_found(state).recent)


def _found(state: Any) -> ClipState:
    leaves = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, ClipState))
    found = [leaf for leaf in leaves if isinstance(leaf, ClipState)]
    if len(found) != 1:
        raise ValueError(
            f"it holds {len(found) or 'no'} state of a transformation that clips"
            + ("; pass the part with the one you mean" if found else "; put as_optax() into optax.chain")
        )
    if isinstance(found[0].step, jax.core.Tracer):
        raise TypeError(
            "inside a graph (jit, scan, vmap) a state has no numbers yet; return it, and ask outside; its arrays, such "
            "as kept.norm, can be used inside"
        )
    if np.shape(found[0].step):
        raise ValueError(
            f"it holds a state of shape {np.shape(found[0].step)}, as vmap makes it; pass one of them, such as "
            "jax.tree.map(lambda leaf: leaf[0], state)"
        )
    own: ClipState = jax.tree.map(np.asarray, found[0]._replace(inner=()))
    return own


def _is_sparse(node: Any) -> bool:
    return isinstance(node, BCOO)
