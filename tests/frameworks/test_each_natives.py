"""The catalog of `unified-clip port` has the parameters of the frameworks' own functions, and so have ours."""

from __future__ import annotations

import pytest
from support.kits import Kit
from support.port import natives
from support.tiers import where

FRAMEWORKS = {"torch": ["torch"], "jax": ["jax", "optax"], "tensorflow": ["tensorflow"], "paddle": ["paddle"]}
MISSING = {
    "torch": ("apex.", "autoclip.", "timm.", "zclip."),  # packages that the tests do not install
    "jax": ("jax.experimental.optimizers.clip_grads",),
    "tensorflow": (
        "keras.backend.clip", "keras.optimizers.clip_norm", "tf.clip_by_average_norm", "tf.contrib.", "tf.global_norm",
        "tf.python.", "tf_agents.", "tf_keras.", "tf_slim.",
    ),
    "paddle": (
        "paddle.fluid.", "paddle.nn.clip_by_norm", "paddle.nn.ClipGradBase",
        "paddle.nn.utils.clip_grad_norm_.clip_grad_norm_",  # functions of the same names hide these modules
        "paddle.nn.utils.clip_grad_value_.clip_grad_value_",
    ),
}  # fmt: skip
"""How the names of functions begin that old releases or other packages have."""

pytestmark = [
    pytest.mark.graphs,  # older releases lack some functions
    where(lambda kit: kit.exact and kit.name in FRAMEWORKS),
]


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known(kit: Kit) -> None:
    for framework in FRAMEWORKS[kit.name]:
        assert list(natives.changed_parameters(framework)) == []
        missing = natives.missing_functions(framework)
        assert [name for name in sorted(missing) if not name.startswith(MISSING[kit.name])] == []
        assert len(missing) < len(natives.functions_of(framework))


@where(lambda kit: kit.name != "jax")  # optax's functions have other arguments
def test_ours_take_the_same_arguments(kit: Kit) -> None:
    assert list(natives.without_replacement(kit.name)) == []


@where(lambda kit: kit.name == "tensorflow")
def test_those_of_tensorflow_1_are_there_too() -> None:
    import tensorflow as tf

    from unified_clip.port.catalog import clip_function

    for name in ("clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm", "clip_by_average_norm"):
        result = clip_function(f"tensorflow.compat.v1.{name}")
        assert result is not None
        assert natives.parameter_names(getattr(tf.compat.v1, name)) == list(result.parameters)


@where(lambda kit: kit.name == "tensorflow")
def test_the_arguments_of_keras_optimizers_are_there() -> None:
    import keras

    from unified_clip.port.catalog import KERAS_RULES

    assert all(getattr(keras.optimizers.SGD(0.1), name) is None for name in KERAS_RULES)


@where(lambda kit: kit.name == "paddle")
def test_two_pitfalls_of_paddle_are_as_the_pages_say(kit: Kit) -> None:
    """docs/porting/optimizers_and_layers.md: its class rejects float64, and its momentum is float32."""
    import numpy as np
    import paddle

    weight, gradient = paddle.create_parameter([3], "float64"), paddle.to_tensor(np.array([3.0, 4.0, 12.0]))
    with pytest.raises(RuntimeError, match="clip_by_norm"):
        paddle.nn.ClipGradByNorm(1.3)([(weight, gradient)])
    ((_, clipped),) = kit.namespace.ClipGradByNorm(1.3)([(weight, gradient)])
    np.testing.assert_allclose(clipped.numpy(), [0.3, 0.4, 1.2], rtol=1e-15)
    weight = paddle.to_tensor(np.zeros(1), stop_gradient=False)
    optimizer = paddle.optimizer.Momentum(1.0, momentum=0.9, parameters=[weight])
    for _ in range(2):
        weight.sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    assert weight.item() == pytest.approx(-(2.0 + float(np.float32(0.9))), rel=1e-15)
