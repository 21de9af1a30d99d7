"""Adaptive thresholds in `jax.jit`, and in optax's state: the bits of the recursion, and states that move."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import adaptive
from support.tiers import nightly
from support.trainers.adaptive_cases import (
    CONFIG,
    HALF,
    TENSORS,
    THRESHOLDS,
    UNITS,
    check_absent_gradients,
    check_tensors_in_an_optimizer,
    check_tensors_resume,
    check_units_in_an_optimizer,
    gradient,
    state_of_another_framework,
)

from unified_clip import ClipConfig
from unified_clip import adaptive as functions
from unified_clip.integrations import optax_transforms


@pytest.mark.parametrize("graph", [True, *nightly(False)])
def test_the_state_is_optaxs_and_moves_from_and_to_other_frameworks(graph: bool) -> None:
    optimizer = optax.chain(CONFIG.as_optax(), optax.sgd(1.0))
    params = {"w": jnp.zeros(3)}
    update = jax.jit(optimizer.update) if graph else optimizer.update
    state = optimizer.init(params)
    for norm, threshold in zip(adaptive.NORMS[:HALF], THRESHOLDS, strict=False):
        _, state = update({"w": jnp.asarray(gradient(norm))}, state)
        if np.isfinite(norm):
            assert optax_transforms.last(state).clipped == (norm + 1e-6 > threshold)
    assert optax_transforms.state_dict(CONFIG, state) == state_of_another_framework()

    state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)  # as checkpoints restore it
    begun = optax_transforms.load_state_dict(CONFIG, optimizer.init(params), state_of_another_framework())
    for norm in adaptive.NORMS[HALF:]:
        one, state = update({"w": jnp.asarray(gradient(norm))}, state)
        other, begun = update({"w": jnp.asarray(gradient(norm))}, begun)
        np.testing.assert_array_equal(one["w"], other["w"])
    for each in (state, begun):
        assert optax_transforms.state_dict(CONFIG, each) == state_of_another_framework(200)


class OptaxRun:
    def __init__(self) -> None:
        self.optimizer = optax.chain(TENSORS.as_optax(), optax.sgd(1.0))
        self.state = self.optimizer.init([jnp.zeros(3)] * 2)
        self.update = jax.jit(self.optimizer.update)

    def step(self, gradients: Any) -> Any:
        updates, self.state = self.update(list(map(jnp.asarray, gradients)), self.state)
        return updates

    def state_dict(self) -> Any:
        return optax_transforms.state_dict(TENSORS, self.state)

    def load_state_dict(self, data: Any) -> None:
        self.state = optax_transforms.load_state_dict(TENSORS, self.state, data)


def test_adagc_goes_on_from_optaxs_state_and_from_that_of_another_framework() -> None:
    def begin() -> Any:
        run = OptaxRun()
        return run.step, run

    def restore(stopped: OptaxRun, run: OptaxRun) -> None:
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(stopped.state)]  # as checkpoints restore it
        run.state = jax.tree.unflatten(jax.tree.structure(run.state), list(map(jnp.asarray, leaves)))

    check_tensors_resume(begin, restore)


def test_adagc_and_agc_clip_in_optax() -> None:
    optimizer = optax.chain(TENSORS.as_optax(), optax.sgd(1.0))
    kept = {"state": optimizer.init([jnp.zeros(3)] * 2)}

    def step(gradients: Any) -> Any:
        updates, kept["state"] = jax.jit(optimizer.update)(list(map(jnp.asarray, gradients)), kept["state"])
        return updates

    check_tensors_in_an_optimizer(step, lambda: optax_transforms.state_dict(TENSORS, kept["state"]))
    moved = optax_transforms.load_state_dict(
        TENSORS, optimizer.init([jnp.zeros(3)] * 2), optax_transforms.state_dict(TENSORS, kept["state"])
    )
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), moved[0].adaptive, kept["state"][0].adaptive))
    with pytest.raises(ValueError, match="the norms of 2 tensors, but the call has 3"):
        optax_transforms.load_state_dict(
            TENSORS, optimizer.init([jnp.zeros(3)] * 3), optax_transforms.state_dict(TENSORS, kept["state"])
        )

    units = optax.chain(UNITS.as_optax(), optax.sgd(1.0))

    def unit_step(weight: Any, grad: Any) -> Any:
        updates, _ = jax.jit(units.update)([jnp.asarray(grad)], units.init([weight]), [jnp.asarray(weight)])
        return optax.apply_updates([weight], updates)[0]

    check_units_in_an_optimizer(unit_step)
    with pytest.raises(ValueError, match="agc needs the parameters"):
        units.update([jnp.ones(3)], units.init([jnp.ones(3)]))


@pytest.mark.parametrize("jitted", [False, True])
def test_updates_that_are_none_keep_the_places_of_the_others(jitted: bool) -> None:
    optimizer, params = optax.chain(TENSORS.as_optax(), optax.sgd(1.0)), {"a": jnp.zeros(3), "b": jnp.zeros(3)}
    kept = {"state": optimizer.init(params)}
    update = jax.jit(optimizer.update) if jitted else optimizer.update

    def step(gradients: Any) -> Any:
        updates = dict(zip("ab", (None if each is None else jnp.asarray(each) for each in gradients), strict=True))
        updates, kept["state"] = update(updates, kept["state"], params)
        return [jnp.zeros(3) if each is None else each for each in updates.values()]

    check_absent_gradients(step, lambda: optax_transforms.state_dict(TENSORS, kept["state"]))
    units, grad, weight = UNITS.as_optax(), {"a": None, "b": jnp.asarray(gradient(100.0))}, np.ones(3, np.float32)
    updates, _ = units.update(grad, units.init(params), {"a": weight, "b": weight})
    (expected,) = UNITS([gradient(100.0)], parameters=[weight])
    np.testing.assert_array_equal(updates["b"], expected)
    assert updates["a"] is None
    with pytest.raises(ValueError, match="1 updates for 2 parameters, and the update 'c' has no parameter"):
        optimizer.update({"c": jnp.ones(3)}, kept["state"], params)


@pytest.mark.parametrize("shape", [(), (5,), (1, 6), (4, 3), (2, 3, 4), (2, 2, 3, 4), (2, 1, 2, 3, 4)])
def test_agc_is_optaxs_but_for_rounding(shape: tuple[int, ...]) -> None:
    chance = np.random.default_rng(1)
    params, grads = ([jnp.asarray(chance.standard_normal(shape), jnp.float32)] for _ in "pg")
    native = optax.adaptive_grad_clip(0.3)
    expected, _ = native.update(grads, native.init(params), params)
    (result,) = functions.clip_by_unit_norm(grads, params, functions.AGC(0.3, "optax"))
    np.testing.assert_allclose(result, expected[0], rtol=4e-7)
    assert (result != grads[0]).any()


def test_a_state_of_another_rule_is_an_error() -> None:
    other = CONFIG.model_copy(update={"adaptive": {"rule": "ema_ratio"}})
    with pytest.raises(ValueError, match=r"the saved state has the adaptive rules \{'': 'zclip'\}"):
        optax_transforms.load_state_dict(other, other.as_optax().init({}), state_of_another_framework())


def test_a_state_is_read_only_by_the_configuration_that_made_it() -> None:
    transformation = CONFIG.as_optax()
    state = transformation.init({})
    other = CONFIG.model_copy(
        update={"adaptive": ClipConfig(rule="global_norm", adaptive={"rule": "ema_ratio"}).adaptive}
    )
    with pytest.raises(ValueError, match=r"the state has 3 numbers, but EmaRatio\(.*\) needs 2\. Pass the rule"):
        optax_transforms.state_dict(other, state)
    for read in (optax_transforms.state_dict, lambda *given: optax_transforms.load_state_dict(*given, {})):
        with pytest.raises(TypeError, match=r"settings is a GradientTransformationExtraArgs\. Pass the ClipConfig"):
            read(transformation, state)  # type: ignore[arg-type]


def test_adagcs_state_has_the_order_of_jax_tree_leaves() -> None:
    config = ClipConfig(rule="norm", adaptive={"rule": "adagc", "warmup_threshold": 100.0})
    optimizer, grads = config.as_optax(), {"w": jnp.full(1, 3.0), "b": jnp.full(1, 2.0)}
    _, state = optimizer.update(grads, optimizer.init(grads))
    assert optax_transforms.state_dict(config, state)["adaptive"][""]["state"]["norms"] == [2.0, 3.0]
    clip = config.clipper()
    clip(grads)
    assert clip.state_dict()["adaptive"][""]["state"]["norms"] == [3.0, 2.0]


def test_a_clipper_inside_a_graph_has_no_place_for_its_state() -> None:
    with pytest.raises(TypeError, match="a clip inside a compiled graph cannot keep its state"):
        jax.jit(lambda grad: CONFIG.clipper()([grad]))(jnp.ones(3))


def test_a_state_that_grows_is_an_error_in_a_graph() -> None:
    optimizer = ClipConfig(rule="global_norm", adaptive={"rule": "percentile"}).as_optax(optax.sgd(1.0))
    params = [jnp.zeros(3)]
    with pytest.raises(TypeError, match=r"grows in each step\..* Set window"):
        jax.jit(optimizer.update)([jnp.ones(3)], optimizer.init(params), params)
