"""Adaptive thresholds in optax and in Paddle's optimizers: norms of weights, absent gradients, and what is rejected."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import is_at_least, where
from support.trainers.adaptive_cases import (
    CONFIG,
    TENSORS,
    UNITS,
    check_absent_gradients,
    check_units_in_an_optimizer,
)

pytestmark = [pytest.mark.graphs, where(lambda kit: kit.name in RUNS)]


class Optax:
    """A run whose weights are zeros before each step, so that a step returns the effects of the gradients."""

    def __init__(self, config: Any, weights: list[np.ndarray], *, is_compiled: bool = True) -> None:
        import jax
        import optax

        self.jax, self.config, self.weights = jax, config, list(map(jax.numpy.asarray, weights))
        optimizer = optax.chain(config.as_optax(), optax.sgd(1.0))
        self.state = optimizer.init(self.weights)
        self.update = jax.jit(optimizer.update) if is_compiled else optimizer.update

    def step(self, gradients: list[Any]) -> list[np.ndarray]:
        gradients = [None if each is None else self.jax.numpy.asarray(each) for each in gradients]
        updates, self.state = self.update(gradients, self.state, self.weights)
        return [np.zeros(3) if each is None else np.asarray(each) for each in updates]

    def state_dict(self) -> Any:
        from unified_clip.integrations import optax_transforms

        return optax_transforms.state_dict(self.config, self.state)

    def load_state_dict(self, data: Any) -> None:
        from unified_clip.integrations import optax_transforms

        self.state = optax_transforms.load_state_dict(self.config, self.state, data)


class Paddle:
    def __init__(self, config: Any, weights: list[np.ndarray]) -> None:
        import paddle

        self.paddle, self.begin = paddle, weights
        make = paddle.nn.initializer.Assign
        self.weights = [paddle.create_parameter(e.shape, "float32", default_initializer=make(e)) for e in weights]
        self.clip = config.as_paddle(dict(zip("ab", self.weights, strict=False)))
        self.optimizer = paddle.optimizer.SGD(1.0, self.weights, grad_clip=self.clip)

    def step(self, gradients: list[Any]) -> list[np.ndarray]:
        self.clip.step = self.clip.step  # begins a new step also if heads take turns
        for weight, values, grad in zip(self.weights, self.begin, gradients, strict=True):
            weight.set_value(values)
            weight.grad = None if grad is None else self.paddle.to_tensor(grad)
        self.optimizer.step()
        return [weight.numpy() - values for weight, values in zip(self.weights, self.begin, strict=True)]

    def state_dict(self) -> Any:
        return self.clip.state_dict()

    def load_state_dict(self, data: Any) -> None:
        self.clip.load_state_dict(data)


RUNS: dict[str, Callable[..., Any]] = {"jax": Optax, "paddle": Paddle}
ZERO = np.zeros(3, np.float32)


def test_agc_clips_by_the_norms_of_the_weights(kit: Kit) -> None:
    check_units_in_an_optimizer(lambda weight, grad: weight + RUNS[kit.name](UNITS, [weight]).step([grad])[0])


@pytest.mark.parametrize("is_compiled", [True, False])
@where(lambda kit, is_compiled: kit.name == "jax" or not is_compiled)
def test_parameters_without_a_gradient_keep_their_places(kit: Kit, is_compiled: bool) -> None:
    if kit.name == "paddle" and not is_at_least("paddle", "3.3"):
        pytest.skip("`parameter.grad` cannot become None")
    options = {"is_compiled": is_compiled} if kit.name == "jax" else {}
    run = RUNS[kit.name](TENSORS, [ZERO, ZERO], **options)
    check_absent_gradients(run.step, run.state_dict)


@where(lambda kit: kit.name == "paddle")
def test_paddles_adagc_needs_the_whole_model_and_a_single_group() -> None:
    paddle: Any = importlib.import_module("paddle")
    weights = [paddle.create_parameter([3], "float32") for _ in "ab"]
    groups = [{"params": [weight]} for weight in weights]
    for given, clip, error, message in (
        (weights, TENSORS.as_paddle({"a": weights[0]}), ValueError, r"is not in the model .*as_paddle\(model\)"),
        (groups, CONFIG.as_paddle(), RuntimeError, "an adaptive threshold needs an optimizer with a single group"),
    ):
        optimizer = paddle.optimizer.SGD(1.0, given, grad_clip=clip)
        (weights[0] + weights[1]).sum().backward()
        with pytest.raises(error, match=message):
            optimizer.step()
    with pytest.raises(TypeError, match=r"adagc has a state for each parameter.* Pass the model: clip\.as_paddle"):
        TENSORS.as_paddle()


@where(lambda kit: kit.name == "jax")
def test_updates_of_optax_that_do_not_fit_are_rejected() -> None:
    run, ones = Optax(TENSORS, [ZERO, ZERO], is_compiled=False), np.ones(3, np.float32)
    other = Optax(TENSORS, [ZERO] * 3)
    run.step([ones, ones])
    with pytest.raises(ValueError, match="the norms of 2 tensors, but the call has 3"):
        other.load_state_dict(run.state_dict())
    with pytest.raises(ValueError, match="1 updates for 2 parameters, and the update 'c' has no parameter"):
        run.update({"c": ones}, run.state, {"a": ones, "b": ones})
    units = UNITS.as_optax()
    with pytest.raises(ValueError, match="agc needs the parameters"):
        units.update([ones], units.init([ones]))
    updates, _ = units.update({"a": None, "b": 100 * ones}, units.init([]), {"a": ones, "b": ones})
    np.testing.assert_array_equal(updates["b"], UNITS([100 * ones], parameters=[ones])[0])
    assert updates["a"] is None
