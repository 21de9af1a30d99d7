"""The lists of gradients that `unified-clip bench` measures."""

from __future__ import annotations

import pytest

from unified_clip.bench import lists
from unified_clip.bench.gradients import create_gradients, rough_norm
from unified_clip.bench.options import DTYPES

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [("GPT-2", 148, 124_439_808), ("ResNet-50", 161, 25_557_032), ("Llama-7B-layer", 9, 202_383_360)],
)
def test_the_lists_have_the_published_sizes(name: str, tensors: int, elements: int) -> None:
    assert len(lists.LISTS[name]) == tensors
    assert lists.elements(lists.LISTS[name]) == elements


def test_the_lists_come_in_order_of_size() -> None:
    sizes = list(map(lists.elements, lists.LISTS.values()))
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_have_the_shapes_and_are_random(dtype: str) -> None:
    shapes = [(3, 4), (1100, 1000), (1,)]
    gradients = create_gradients(shapes, dtype)
    assert [array.shape for array in gradients] == shapes
    assert {array.dtype.name for array in gradients} == {dtype}
    assert rough_norm(gradients) == pytest.approx(lists.elements(shapes) ** 0.5, rel=0.01)
