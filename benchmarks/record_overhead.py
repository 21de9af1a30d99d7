"""Measure a clip with and without a recording, in turns: python benchmarks/record_overhead.py torch numpy"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import unified_clip
from unified_clip.bench.gradients import create_gradients, rough_norm
from unified_clip.bench.lists import LISTS, Shape

RESNET = LISTS["ResNet-50"]
SHAPES: dict[str, Sequence[Shape]] = {
    "ResNet-50": RESNET,
    "ResNet-50, an element each": [(1,)] * len(RESNET),  # so the clip itself takes no time
    "small": [(64, 32), (64,), (10, 64), (10,)],
}
REPEATS = {"ResNet-50": 200}
OTHERWISE = 1000


def call(framework: str, shapes: Sequence[Shape]) -> Callable[[], Any]:
    """Return a clip that always scales, because its threshold decreases by 0.1 % in each call."""
    gradients = create_gradients(shapes, "float32")
    norm = rough_norm(gradients)
    limits = (norm * 0.999**number for number in itertools.count(1))
    if framework == "numpy":
        import unified_clip.numpy as uc

        return lambda: uc.clip_grad_norm_(gradients, next(limits))
    import torch

    import unified_clip.torch as uc_torch

    torch.set_num_threads(2)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter, array in zip(parameters, gradients, strict=True):
        parameter.grad = torch.from_numpy(array)
    return lambda: uc_torch.clip_grad_norm_(parameters, next(limits))


def timed(clip: Callable[[], Any]) -> float:
    clip()  # fill the caches, which the opening of a file has emptied
    begin = perf_counter()
    clip()
    return perf_counter() - begin


def beside(clip: Callable[[], Any], folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Return the times without a recording, and the times that a recording adds, measured in turns."""
    alone, added = [], []
    for number in range(repeats):
        times = {}
        for recorded in (number % 2 == 1, number % 2 == 0):
            with unified_clip.record(folder / f"{number}.jsonl") if recorded else nullcontext():
                times[recorded] = timed(clip)
        alone.append(times[False])
        added.append(times[True] - times[False])
    return alone, added


def inside(clip: Callable[[], Any], folder: Path, repeats: int) -> tuple[list[float], list[float]]:
    """Measure recorded calls. Their lines have the duration of the clip alone, so other programs disturb this less."""
    with unified_clip.record(folder / "run.jsonl"):
        with_recording = [timed(clip) for _ in range(repeats)]
    lines = (folder / "run.jsonl").read_text().splitlines()[1:]
    alone = [json.loads(line)["seconds"] for line in lines[1::2]]  # `timed` measures every second call
    return alone, [time - seconds for time, seconds in zip(with_recording, alone, strict=True)]


def measure(framework: str, name: str, folder: Path) -> None:
    clip, repeats = call(framework, SHAPES[name]), REPEATS.get(name, OTHERWISE)
    for measurement in (beside, inside):
        alone, added = measurement(clip, folder, repeats)
        low, middle, high = (1e6 * seconds for seconds in statistics.quantiles(added, n=4))
        typical = 1e6 * statistics.median(alone)
        print(
            f"{framework:6} {name:26} {len(SHAPES[name]):4} tensors, {measurement.__name__}: {typical:9.1f} us alone; "
            f"a recording adds {middle:6.1f} us (quartiles {low:.1f} to {high:.1f}), {middle / typical:.2%}",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] != ["--one"]:
        for framework in sys.argv[1:] or ["torch", "numpy"]:
            subprocess.run([sys.executable, __file__, "--one", framework], check=True)
        return
    for name in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            measure(sys.argv[2], name, Path(folder))


if __name__ == "__main__":
    main()
