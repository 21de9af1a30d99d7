"""Adaptive thresholds in Keras's optimizers: the state is a variable, which moves from and to other frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from support import adaptive
from support.trainers.adaptive_cases import (
    CONFIG,
    HALF,
    TENSORS,
    UNITS,
    check_absent_gradients,
    check_tensors_in_an_optimizer,
    check_tensors_resume,
    check_units_in_an_optimizer,
    gradient,
    state_of_another_framework,
)

from unified_clip import ClipWarning

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Keras's own
    *([] if ON_TENSORFLOW else [pytest.mark.nightly]),
    *([pytest.mark.graphs] if keras.backend.backend() == "jax" else []),  # on JAX, Keras compiles its steps
]


def training() -> tuple[Any, Any, Any]:
    weight, optimizer = keras.Variable(np.zeros(3, np.float32)), keras.optimizers.SGD(1.0)
    optimizer.build([weight])
    handle = CONFIG.attach_to(optimizer)

    def step(norm: float) -> np.ndarray:
        weight.assign(np.zeros(3, np.float32))
        optimizer.apply([keras.ops.convert_to_tensor(gradient(norm))], [weight])
        return keras.ops.convert_to_numpy(weight)

    return optimizer, handle, step


def test_a_run_resumes_from_its_state_and_from_that_of_another_framework() -> None:
    _, first, step = training()
    for norm in adaptive.NORMS[:HALF]:
        step(norm)
    assert first.state_dict() == state_of_another_framework()
    changes = [step(norm) for norm in adaptive.NORMS[HALF:]]
    assert first.state_dict() == state_of_another_framework(200)
    _, second, step = training()
    second.load_state_dict(state_of_another_framework())
    for norm, change in zip(adaptive.NORMS[HALF:], changes, strict=True):
        np.testing.assert_array_equal(step(norm), change)
    assert second.state_dict()["adaptive"] == first.state_dict()["adaptive"]


def adagc_in_an_optimizer() -> tuple[Callable[[Any], Any], Any]:
    weights, optimizer = [keras.Variable(np.zeros(3, np.float32)) for _ in range(2)], keras.optimizers.SGD(1.0)
    optimizer.build(weights)
    handle = TENSORS.attach_to(optimizer)

    def step(gradients: Any) -> Any:
        for weight in weights:
            weight.assign(np.zeros(3, np.float32))
        optimizer.apply([None if array is None else keras.ops.convert_to_tensor(array) for array in gradients], weights)
        return [keras.ops.convert_to_numpy(weight) for weight in weights]

    return step, handle


def test_adagc_needs_the_variables_of_an_optimizer() -> None:
    with pytest.raises(TypeError, match="the optimizer has no variables yet"):
        TENSORS.attach_to(keras.optimizers.SGD(1.0))


def test_adagc_and_agc_clip_in_an_optimizer() -> None:
    step, handle = adagc_in_an_optimizer()
    check_tensors_in_an_optimizer(step, handle.state_dict)

    def unit_step(values: Any, grad: Any) -> Any:
        weight, units = keras.Variable(values), keras.optimizers.SGD(1.0)
        units.build([weight])
        UNITS.attach_to(units)
        units.apply([keras.ops.convert_to_tensor(grad)], [weight])
        return keras.ops.convert_to_numpy(weight)

    check_units_in_an_optimizer(unit_step)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # Keras's own
def test_variables_without_a_gradient_keep_their_places() -> None:
    step, handle = adagc_in_an_optimizer()
    check_absent_gradients(step, handle.state_dict)
    weights, optimizer = [keras.Variable(np.ones(3, np.float32)) for _ in range(2)], keras.optimizers.SGD(1.0)
    UNITS.attach_to(optimizer)
    optimizer.apply([None, keras.ops.convert_to_tensor(gradient(100.0))], weights)
    (expected,) = UNITS([gradient(100.0)], parameters=[np.ones(3, np.float32)])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(weights[1]), 1 - expected)


def test_adagc_resumes_from_its_state_and_from_that_of_another_framework() -> None:
    check_tensors_resume(adagc_in_an_optimizer)


@pytest.mark.nightly
def test_a_compiled_fit_has_the_state_of_the_recursion() -> None:
    norms = [norm for norm in adaptive.NORMS if norm < 1e20][:40]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    optimizer = keras.optimizers.SGD(0.0)
    handle = CONFIG.attach_to(optimizer)
    on_jax = keras.backend.backend() == "jax"
    model.compile(optimizer, loss=lambda targets, outputs: keras.ops.sum(outputs), jit_compile=on_jax)
    rows = np.stack([gradient(norm) for norm in norms])
    model.fit(rows, np.zeros(len(rows)), batch_size=1, shuffle=False, verbose=0)
    expected = adaptive.steps({"rule": "zclip"}, norms)[-1][1]
    assert handle.state_dict()["adaptive"][""]["state"] == expected


def test_loading_a_file_of_keras_gives_a_warning() -> None:
    optimizer, _, _ = training()
    saved: dict[str, Any] = {}
    optimizer.save_own_variables(saved)
    with pytest.warns(ClipWarning, match="Keras files do not contain the state of the adaptive threshold"):
        optimizer.load_own_variables(saved)
