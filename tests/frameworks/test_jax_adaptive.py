"""Adaptive thresholds in optax: AGC is optax's, and states that do not fit are rejected."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.trainers.adaptive_cases import CONFIG

from unified_clip import ClipConfig
from unified_clip import adaptive as functions
from unified_clip.integrations import optax_transforms


@pytest.mark.parametrize("shape", [(), (5,), (1, 6), (4, 3), (2, 3, 4), (2, 2, 3, 4), (2, 1, 2, 3, 4)])
def test_agc_is_optaxs_but_for_rounding(shape: tuple[int, ...]) -> None:
    chance = np.random.default_rng(1)
    params, grads = ([jnp.asarray(chance.standard_normal(shape), jnp.float32)] for _ in "pg")
    native = optax.adaptive_grad_clip(0.3)
    expected, _ = native.update(grads, native.init(params), params)
    (result,) = functions.clip_by_unit_norm(grads, params, functions.AGC(0.3, "optax"))
    np.testing.assert_allclose(result, expected[0], rtol=4e-7)
    assert (result != grads[0]).any()


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


def test_a_clipper_inside_a_graph_has_no_place_for_its_state() -> None:
    with pytest.raises(TypeError, match="a clip inside a compiled graph cannot keep its state"):
        jax.jit(lambda grad: CONFIG.clipper()([grad]))(jnp.ones(3))


def test_a_state_that_grows_is_an_error_in_a_graph() -> None:
    optimizer = ClipConfig(rule="global_norm", adaptive={"rule": "percentile"}).as_optax(optax.sgd(1.0))
    params = [jnp.zeros(3)]
    with pytest.raises(TypeError, match=r"grows in each step\..* Set window"):
        jax.jit(optimizer.update)([jnp.ones(3)], optimizer.init(params), params)
