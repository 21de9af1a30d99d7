"""The catalog of `unified-clip port` has the parameters of Paddle's functions. The functions of Paddle 1.x are gone."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from support.port import natives as port_natives

import unified_clip.paddle as uc

GONE = {"paddle.nn.clip_by_norm", "paddle.nn.ClipGradBase"}
MODULES = {"paddle.nn.utils.clip_grad_norm_.clip_grad_norm_", "paddle.nn.utils.clip_grad_value_.clip_grad_value_"}
"""The functions with the same names hide these modules."""


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known() -> None:
    assert list(port_natives.changed_parameters("paddle")) == []
    old = {name for name, _ in port_natives.functions_of("paddle") if name.startswith("paddle.fluid.")}
    assert port_natives.missing_functions("paddle") == old | GONE | MODULES


def test_ours_take_the_same_arguments() -> None:
    assert list(port_natives.without_replacement("paddle")) == []


def test_its_class_per_tensor_rejects_float64_on_the_cpu_and_ours_does_not() -> None:
    """The page of the function and docs/porting/optimizers_and_layers.md describe this pitfall."""
    weight, gradient = paddle.create_parameter([3], "float64"), paddle.to_tensor(np.array([3.0, 4.0, 12.0]))
    with pytest.raises(RuntimeError, match="clip_by_norm"):
        paddle.nn.ClipGradByNorm(1.3)([(weight, gradient)])
    ((_, clipped),) = uc.ClipGradByNorm(1.3)([(weight, gradient)])
    np.testing.assert_allclose(clipped.numpy(), [0.3, 0.4, 1.2], rtol=1e-15)


def test_its_momentum_is_float32_for_float64_weights() -> None:
    """docs/porting/optimizers_and_layers.md and `unified-clip compare` describe this pitfall."""
    weight = paddle.to_tensor(np.zeros(1), stop_gradient=False)
    optimizer = paddle.optimizer.Momentum(1.0, momentum=0.9, parameters=[weight])
    for _ in range(2):
        weight.sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    assert weight.item() == pytest.approx(-(2.0 + float(np.float32(0.9))), rel=1e-15)
    assert weight.item() != pytest.approx(-2.9, rel=1e-9)
