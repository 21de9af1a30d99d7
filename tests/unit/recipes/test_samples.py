"""Samples of a tensor and of its transpose have common elements, which show the order of a weight's elements."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from unified_clip.recorder.samples import ELEMENTS, FLAT, positions
from unified_clip.tensors import samples as module
from unified_clip.tensors.samples import aligned, have_same_elements, order_of, sample_of, sums_of

SHAPES = [(), (5,), (0,), (1, 1), (3, 7), (0, 4), (300, 40), (6, 4, 3), (8, 3, 5, 2), (1, 4, 2, 3), (4, 2, 2, 3, 3)]

TRANSPOSED = [
    ((3, 7), (1, 0)),
    ((5, 5), (1, 0)),
    ((8, 3, 5), (2, 1, 0)),  # a convolution of PyTorch to Keras
    ((8, 3, 5, 2), (2, 3, 1, 0)),
    ((8, 3, 3, 3), (2, 3, 1, 0)),
    ((4, 2, 2, 3, 3), (2, 3, 4, 1, 0)),
    ((6, 1, 3, 3), (2, 3, 0, 1)),  # a convolution of each channel: Keras has (3, 3, 6, 1)
    ((4, 6, 3), (0, 2, 1)),  # the matrices of experts
]


def weight_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def order(a: np.ndarray, b: np.ndarray) -> str:
    return order_of(sample_of(a), sample_of(b))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_has_few_elements_of_the_tensor(shape: tuple[int, ...]) -> None:
    weight = weight_of(shape)
    places = positions(shape)
    assert len(places) <= ELEMENTS + FLAT
    assert (places < weight.size).all()
    assert len(places) > 0 or weight.size == 0
    assert sample_of(weight).elements.tolist() == weight.ravel()[places].tolist()


def test_a_sample_of_a_large_tensor_is_spread_over_each_axis() -> None:
    indices = np.unravel_index(positions((300, 40)), (300, 40))
    for axis, length in enumerate((300, 40)):
        assert len({*(4 * indices[axis] // length)}) == 4, "each quarter of the axis has elements"


@pytest.mark.parametrize("shape", [each for each in SHAPES if 0 not in each])
def test_a_weight_has_its_own_order(shape: tuple[int, ...]) -> None:
    assert order(weight_of(shape), weight_of(shape)) == "same"


@pytest.mark.parametrize(("shape", "axes"), TRANSPOSED)
def test_the_order_of_another_framework_is_transposed_and_its_gradients_are_aligned(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    weight, gradient = weight_of(shape), weight_of(shape, seed=1)
    weights, gradients = ([sample_of(each), sample_of(each.transpose(axes))] for each in (weight, gradient))
    for first, second in ((0, 1), (1, 0)):
        assert order_of(weights[first], weights[second]) == "transposed"
        both = aligned(gradients[first], gradients[second], (weights[first], weights[second]))
        assert both is not None
        assert both[0].tolist() == both[1].tolist()
        assert len(both[0]) >= min(8, weight.size)


@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 7), (1, 0)), ((8, 3, 5), (2, 1, 0)), ((8, 3, 3, 3), (2, 3, 1, 0)), ((4, 6, 3), (0, 2, 1))]
)
def test_a_weight_with_the_shape_of_another_framework_and_its_own_order_is_reshaped(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    weight = weight_of(shape)
    assert order(weight, weight.reshape(weight.transpose(axes).shape)) == "reshaped"


@pytest.mark.parametrize("axes", [(3, 2, 1, 0), (1, 0, 2, 3), (0, 1, 3, 2)])
def test_other_orders_of_axes_and_other_elements_are_other(axes: tuple[int, ...]) -> None:
    weight = weight_of((3, 3, 3, 3))
    assert order(weight, weight.transpose(axes)) == order(weight, weight[::-1]) == "other"


def test_one_column_has_the_order_of_a_vector_and_of_a_row() -> None:
    weight = weight_of((5, 1))
    assert order(weight, weight[:, 0]) == order(weight, weight.T) == "same"


@pytest.mark.parametrize("slice_elements", [7, 1 << 20])
def test_sums_show_the_same_elements_in_another_order(slice_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE", slice_elements)
    weight = weight_of((30, 4))
    gates = np.roll(weight, 10, axis=0)
    norm = float(np.linalg.norm(weight))
    sums = sums_of(weight, "float32")
    assert sums == pytest.approx([weight.sum(dtype=np.float64), (weight.astype(np.float64) ** 3).sum()])
    assert have_same_elements(sums, sums_of(gates, "float32"), norm)
    assert not have_same_elements(sums, sums_of(-weight, "float32"), norm)
    assert sums_of(weight[0], "float32") is None


def test_a_large_weight_is_not_copied_whole() -> None:
    weight = np.ones((1 << 10, 1 << 13), np.float32)
    tracemalloc.start()
    sums_of(weight, "float32")
    sample_of(weight)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weight.size * 8 * 0.6, "bytes of less than the weight in float64"
