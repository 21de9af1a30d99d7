"""PyTorch: kinds of gradients that are DTensors or beside DTensors, and their derivatives, graphs and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.processes import torch_sharded_cases as cases
from support.processes.worlds import World
from torch import Tensor

nan, inf = math.nan, math.inf

CLIPPED_FIVE = (5.0, [pytest.approx([0.6, 0.8])])


@pytest.fixture(scope="module")
def world(torch_worlds: Callable[[int], World]) -> World:
    return torch_worlds(2)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (cases.twice, (5.0, CLIPPED_FIVE[1] * 2)),
        (cases.tied, (5.0, CLIPPED_FIVE[1] * 2)),
        (cases.tied_by_memory, (5.0, CLIPPED_FIVE[1] * 2)),
        (cases.left_out, (5.0, [*CLIPPED_FIVE[1], [100.0]])),
        (cases.sparse, (13.0, [pytest.approx([3 / 13, 4 / 13]), [[0.0], [pytest.approx(12 / 13)], [0.0], [0.0]]])),
        (cases.complex_numbers, (13.0, [pytest.approx([(3 + 4j) / 13, 0, 12 / 13])])),
        (cases.without_dimensions, (5.0, [pytest.approx(0.6), [pytest.approx(0.8)]])),
        (cases.narrower, (13.0, [pytest.approx([3 / 13, 4 / 13]), pytest.approx([12 / 13, 0.0], rel=2**-8)])),
        (cases.under_way, CLIPPED_FIVE),
        (cases.from_an_iterator, CLIPPED_FIVE),
        (cases.by_a_configuration, (13.0, [pytest.approx([3 / 13, 4 / 13])])),
        (cases.in_inference_mode, CLIPPED_FIVE),
        (cases.by_a_tensor, CLIPPED_FIVE),
        (cases.by_a_dtensor, CLIPPED_FIVE),
    ],
)
def test_gradients_of_every_kind_count_in_the_norm(world: World, case: Callable[[], Any], expected: Any) -> None:
    assert world.run(case) == [expected] * 2


N = math.sqrt(153)


@pytest.mark.parametrize(
    ("case", "first", "bias"),
    [
        (cases.param_grads_of_a_class, 3 / N, 12 / N),
        (cases.param_grads_of_a_configuration, 3 / N, 12 / N),
        (cases.param_grads_by_own_norms, 1.0, 1.0),
    ],
)
def test_in_param_grads_the_parameters_give_the_placements(
    world: World, case: Callable[[], Any], first: float, bias: float
) -> None:
    """The second rank has no gradient for the first parameter. Its shard would be the 4 of `[3, 4]`."""
    expected_bias = pytest.approx([bias])
    assert world.run(case) == [[pytest.approx([first]), expected_bias], [None, expected_bias]]


@pytest.mark.parametrize(("p", "norm"), [(2.0, 13.0), (float("inf"), 12.0)])
def test_a_norm_of_pytorch_may_be_passed(world: World, p: float, norm: float) -> None:
    """With p = inf, PyTorch's norm on each rank is that of the local shard."""
    expected = [pytest.approx([3 / norm, 4 / norm]), pytest.approx([12 / norm, 0.0])]
    assert world.run(cases.clip_by_torch_norm, p) == [(norm, expected)] * 2


@pytest.mark.parametrize("case", [cases.clip_saved_gradient, cases.clip_saved_local_tensor])
def test_backward_raises_if_a_saved_gradient_was_clipped(world: World, case: Callable[[], str]) -> None:
    for message in world.run(case):
        assert "modified by an inplace operation" in message


def test_a_compiled_function_clips_outside_its_graph(world: World) -> None:
    for plain, compiled in world.run(cases.clip_compiled):
        assert plain == compiled == (10.0, CLIPPED_FIVE[1])


def test_results_have_derivatives(world: World) -> None:
    for norm, derivative in world.run(cases.differentiate_clip):
        assert (type(norm), norm.tolist()) == (Tensor, 5.0)
        assert derivative == pytest.approx([0.032, -0.024], rel=1e-5)


@pytest.mark.parametrize(
    ("p", "values", "expected", "derivative"),
    [
        (1.0, (3.0, -4.0), 7.0, [1.0, -1.0]),
        (2.0, (3.0, 4.0), 5.0, pytest.approx([0.6, 0.8])),
        (inf, (3.0, -4.0), 4.0, [0.0, -1.0]),
        (inf, (4.0, 3.0), 4.0, [1.0, 0.0]),
        (3.0, (-3.0,), 3.0, [-1.0]),
        (inf, (-3.0,), 3.0, [-1.0]),
        (inf, (nan, 3.0), nan, None),
        (inf, (3.0, nan), nan, None),
    ],
)
def test_a_norm_with_a_derivative_is_one_number(
    world: World, p: float, values: Any, expected: float, derivative: Any
) -> None:
    """PyTorch's inf norm differs between ranks, may lack a NaN, and is an error for an empty shard."""
    for norm, result in world.run(cases.differentiate_norm, p, *values):
        assert (type(norm), str(norm.item())) == (Tensor, str(expected))
        assert derivative is None or result == derivative


def test_bounds_of_distributed_gradients_must_be_numbers(world: World) -> None:
    for message in world.run(cases.clip_by_tensor_bounds):
        assert "a bound has shape [2], and the gradient is distributed. Pass numbers" in message
