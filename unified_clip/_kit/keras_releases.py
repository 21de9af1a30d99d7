"""What differs between releases of Keras. Each line names the release of TensorFlow that made it unnecessary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

IS_KERAS_2: bool = keras.__version__.startswith("2.")  # until TensorFlow 2.16, which installs Keras 3


if IS_KERAS_2:  # until TensorFlow 2.16
    from keras.src.mixed_precision.loss_scale_optimizer import LossScaleOptimizerV3

    BaseOptimizer: Any = keras.optimizers.Optimizer
    STEP = "_internal_apply_gradients"
    SCALED_LOSSES = [(LossScaleOptimizerV3, "get_scaled_loss")]
    UNRECORDED = [keras.optimizers.legacy.Optimizer]
else:
    from keras.src.optimizers import base_optimizer

    BaseOptimizer = base_optimizer.BaseOptimizer
    STEP = "apply"
    SCALED_LOSSES = [(owner, "scale_loss") for owner in (BaseOptimizer, keras.optimizers.LossScaleOptimizer)]
    UNRECORDED = []


def loss_scale(optimizer: Any) -> Any:
    """Return the factor of `scale_loss` or `get_scaled_loss`, or None if they return the loss itself."""
    if IS_KERAS_2:  # until TensorFlow 2.16
        return optimizer.loss_scale
    if not hasattr(optimizer, "inner_optimizer"):
        return optimizer.loss_scale_factor
    return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale


def gradients_of(step: Mapping[str, Any]) -> Sequence[Any]:
    """Return the gradients in the arguments of the method `STEP`."""
    if IS_KERAS_2:  # until TensorFlow 2.16
        return [gradient for gradient, _ in step["grads_and_vars"]]
    return step["grads"]  # type: ignore[no-any-return]


def variables_of(optimizer: Any, step: Mapping[str, Any]) -> Sequence[Any]:
    if IS_KERAS_2:  # until TensorFlow 2.16
        return [variable for _, variable in step["grads_and_vars"]]
    return optimizer._trainable_variables  # type: ignore[no-any-return]


def learning_rate(optimizer: Any) -> Any:
    if IS_KERAS_2:  # until TensorFlow 2.16
        return optimizer.learning_rate + 0.0  # the number that the variable has now
    return keras.ops.convert_to_tensor(optimizer._get_current_learning_rate())


def accumulation_steps(optimizer: Any) -> int | None:
    return None if IS_KERAS_2 else optimizer.gradient_accumulation_steps  # until TensorFlow 2.16
