"""Paddle: the bytes that the operations of a clip's program read and write are those of traffic.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import paddle
import pytest
from support.kits import Kit
from support.traffic import ELEMENTS, SHAPES, SMALL, row_of

import unified_clip.paddle as uc

BYTES = {"FLOAT32": 4, "BFLOAT16": 2, "FLOAT64": 8, "BOOL": 1}
WITHOUT_READS = {"pd_op.data", "builtin.parameter", "pd_op.reshape"}
CLIPS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "Paddle: unified_clip": (uc.ClipGradByGlobalNorm(1.0), ("float32", "bfloat16")),
    "Paddle: unified_clip, by value": (uc.ClipGradByValue(1.0), ("float32", "bfloat16")),
    "Paddle: `ClipGradByGlobalNorm`": (paddle.nn.ClipGradByGlobalNorm(1.0), ("float32",)),
}


def size(value: Any) -> int:
    with suppress(ValueError):  # lists of values have no shape
        return math.prod(value.shape) * BYTES.get(str(value.dtype).rsplit(".", 1)[-1].upper(), 0)
    return 0


def per_element(clip: Callable[[Any], Any], dtype: str) -> int:
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        clip([
            (paddle.create_parameter(list(shape), "float32"), paddle.static.data(f"g{index}", list(shape), dtype))
            for index, shape in enumerate(SHAPES)
        ])  # fmt: skip
        sizes = [
            sum(map(size, {value.id: value for value in (*operation.operands_source(), *operation.results())}.values()))
            for operation in program.global_block().ops
            if operation.name() not in WITHOUT_READS
        ]
    return round(sum(each for each in sizes if each > SMALL) / ELEMENTS)


@pytest.mark.parametrize("name", CLIPS)
def test_the_page_has_the_bytes_of_operations(name: str, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations do not know the coefficient, so they do the same whether it is 1 or not."""
    if not kit.exact:
        pytest.skip("once is enough")
    monkeypatch.setenv("UNIFIED_CLIP_GRAPH", "framework")
    clip, dtypes = CLIPS[name]
    paddle.enable_static()
    try:
        result = [per_element(clip, dtype) for dtype in dtypes for _ in range(2)]
    finally:
        paddle.disable_static()
    assert row_of(name)[: len(result)] == result
