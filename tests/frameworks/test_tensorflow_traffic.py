"""TensorFlow: the bytes that the operations of a clip's graph read and write are those of traffic.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from support.kits import Kit
from support.traffic import ELEMENTS, SHAPES, SMALL, row_of

import unified_clip.tensorflow as uc

WITHOUT_READS = {"Placeholder", "Identity", "Reshape", "Const", "StatelessIf", "Bitcast"}
CLIPS: dict[str, Callable[..., Any]] = {
    "TensorFlow: unified_clip": lambda *tensors: uc.clip_by_global_norm(list(tensors), 1.0),
    "TensorFlow: unified_clip, by value": lambda *tensors: [uc.clip_by_value(each, -1.0, 1.0) for each in tensors],
    "TensorFlow: `tf.clip_by_global_norm`": lambda *tensors: tf.clip_by_global_norm(tensors, 1.0),
}


def operations(graph: Any, branch: str) -> Iterator[Any]:
    for operation in graph.get_operations():
        yield operation
        if operation.type == "StatelessIf":
            yield from operations(graph._get_function(operation.get_attr(branch).name).graph, branch)


def size(tensor: Any) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def per_element(graph: Any, branch: str) -> int:
    """Return the bytes that operations on gradients read and write: all of their inputs and results."""
    sizes = [
        sum(map(size, {id(each): each for each in (*operation.inputs, *operation.outputs)}.values()))
        for operation in operations(graph, branch)
        if operation.type not in WITHOUT_READS
    ]
    return round(sum(each for each in sizes if each > SMALL) / ELEMENTS)


@pytest.mark.parametrize("name", CLIPS)
def test_the_page_has_the_bytes_of_operations(name: str, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kit.exact:
        pytest.skip("once is enough")
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    result = []
    for dtype in (tf.float32, tf.bfloat16):
        signature = [tf.TensorSpec(shape, dtype) for shape in SHAPES]
        graph = tf.function(CLIPS[name]).get_concrete_function(*signature).graph
        result += [per_element(graph, branch) for branch in ("then_branch", "else_branch")]
    assert row_of(name)[:4] == result
