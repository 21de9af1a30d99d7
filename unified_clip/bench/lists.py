"""Lists of gradients to clip. To keep `--help` fast, this module does not import NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

Shape = tuple[int, ...]


def gpt2() -> list[Shape]:
    layer: list[Shape] = [
        (768,), (768,), (768, 2304), (2304,), (768, 768), (768,),
        (768,), (768,), (768, 3072), (3072,), (3072, 768), (768,),
    ]  # fmt: skip
    return [(50257, 768), (1024, 768), *layer * 12, (768,), (768,)]


def resnet50() -> list[Shape]:
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(planes, inputs, 1, 1), (planes, planes, 3, 3), (4 * planes, planes, 1, 1)]
            if block == 0:
                convolutions.append((4 * planes, inputs, 1, 1))
            for shape in convolutions:
                shapes += [shape, shape[:1], shape[:1]]
            inputs = 4 * planes
    return [*shapes, (1000, 2048), (1000,)]


LISTS: Mapping[str, Sequence[Shape]] = {
    "10x10": [(10,)] * 10,
    "1000x100": [(100,)] * 1000,
    "ResNet-50": resnet50(),
    "GPT-2": gpt2(),
    "Llama-7B-layer": [*[(4096, 4096)] * 4, *[(11008, 4096)] * 2, (4096, 11008), (4096,), (4096,)],
}
"""Small lists come first. After a large list, a framework could reuse freed memory, which bench does not measure."""

LISTS_ON_GPU = ("ResNet-50", "GPT-2", "Llama-7B-layer")


def elements(shapes: Sequence[Shape]) -> int:
    return sum(map(prod, shapes))
