"""Fingerprints of the order of a weight's elements."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from unified_clip.tensors import arrangement as module
from unified_clip.tensors.arrangement import fingerprints_of, order_of

SHAPES = [(), (5,), (0,), (1, 1), (3, 7), (0, 4), (300, 40), (6, 4, 3), (8, 3, 5, 2), (1, 4, 2, 3), (4, 2, 2, 3, 3)]


def weight_of(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def order(a: np.ndarray, b: np.ndarray) -> str:
    of_a, of_b = (fingerprints_of(each, "float32") for each in (a, b))
    assert of_a
    assert of_b
    return order_of(of_a, of_b, float(np.linalg.norm(a)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("elements", [7, 1 << 20])
def test_slices_give_the_fingerprints_of_the_whole(
    shape: tuple[int, ...], elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE", elements)
    weight = weight_of(shape)
    result = fingerprints_of(weight, "float32")
    places = [axis for axis, length in enumerate(shape) if length != 1]
    factors = np.ones(shape)
    for place, axis in enumerate(places, 1):
        lengths = [-1 if each == axis else 1 for each in range(len(shape))]
        factors = factors * np.cos(place + np.sqrt(place + 1) * np.arange(shape[axis])).reshape(lengths)
    flat = np.cos(np.sqrt(7) * np.arange(weight.size)) @ weight.ravel()
    assert result is not None
    expected = [float((weight * factors).sum(dtype=np.float64)), float(flat)]
    assert result[:2] == pytest.approx(expected, rel=0, abs=1e-6 * (1 + float(np.linalg.norm(weight))))


@pytest.mark.parametrize("shape", [each for each in SHAPES if 0 not in each])
def test_a_weight_has_its_own_order(shape: tuple[int, ...]) -> None:
    assert order(weight_of(shape), weight_of(shape)) == "same"


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 7), (1, 0)),
        ((5, 5), (1, 0)),
        ((8, 3, 5), (2, 1, 0)),  # a convolution of PyTorch to Keras
        ((8, 3, 5, 2), (2, 3, 1, 0)),
        ((8, 3, 3, 3), (2, 3, 1, 0)),
        ((4, 2, 2, 3, 3), (2, 3, 4, 1, 0)),
        ((6, 1, 3, 3), (2, 3, 0, 1)),  # a convolution of each channel: Keras has (3, 3, 6, 1)
        ((4, 6, 3), (0, 2, 1)),  # the matrices of experts
    ],
)
def test_the_order_of_another_framework_is_transposed_in_both_directions(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    weight = weight_of(shape)
    assert order(weight, weight.transpose(axes)) == order(weight.transpose(axes), weight) == "transposed"


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


def test_a_large_weight_is_not_copied_whole() -> None:
    weight = np.ones((3, 3, 1 << 10, 1 << 10), np.float32)
    tracemalloc.start()
    fingerprints_of(weight, "float32")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weight.size * 8 / 2, "bytes of half of the weight in float64"
