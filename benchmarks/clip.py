"""Ours against the frameworks' own clipping, in one process, alternating: `python benchmarks/clip.py torch`.

For each list of gradients, clipped and not: medians in milliseconds, and the ratio native / ours with its quartiles.
In-place calls get the gradients restored before each, outside the timing. All use the number of threads given.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

Shape = tuple[int, ...]


def gpt2() -> list[Shape]:
    """The parameters of GPT-2: 148 tensors, 124 million numbers."""
    layer: list[Shape] = [
        (768,), (768,), (768, 2304), (2304,), (768, 768), (768,),
        (768,), (768,), (768, 3072), (3072,), (3072, 768), (768,),
    ]  # fmt: skip
    return [(50257, 768), (1024, 768), *layer * 12, (768,), (768,)]


def resnet50() -> list[Shape]:
    """The parameters of ResNet-50: 161 tensors, 25.6 million numbers."""
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


LISTS: dict[str, Callable[[], list[Shape]]] = {
    "GPT-2": gpt2,
    "ResNet-50": resnet50,
    "1000 x 100": lambda: [(100,)] * 1000,
    "10 x 10": lambda: [(10,)] * 10,
}

REPEATS = {"GPT-2": 9, "ResNet-50": 25, "1000 x 100": 60, "10 x 10": 300}


class Pair(NamedTuple):
    """Ours and a native: each is called with what `prepare` returns."""

    native: str
    prepare: Callable[[], Any]
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]


def measure(pair: Pair, repeats: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"ours": [], "native": []}
    for repeat in range(repeats + 2):
        order = [("ours", pair.ours), ("native", pair.theirs)]
        for name, call in order if repeat % 2 else reversed(order):
            given = pair.prepare()
            start = time.perf_counter()
            call(given)
            if repeat >= 2:  # the first two warm up
                times[name].append(1000 * (time.perf_counter() - start))
    ratios = [native / ours for native, ours in zip(times["native"], times["ours"], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "native": pair.native,
        "ours_ms": statistics.median(times["ours"]),
        "native_ms": statistics.median(times["native"]),
        "ratio": quartiles[1],
        "quartiles": [quartiles[0], quartiles[2]],
    }


def limits(arrays: Sequence[Any], threads: int, repeats: int) -> dict[str, float]:
    """What the machine allows for the same bytes: a parallel read, and a parallel read and write, in milliseconds."""
    import numpy as np

    big = np.concatenate([array.ravel() for array in arrays])
    parts = np.array_split(big.view(np.uint32), threads)
    with ThreadPoolExecutor(threads) as pool:

        def best(work: Callable[[Any], Any]) -> float:
            found = []
            for _ in range(repeats):
                start = time.perf_counter()
                list(pool.map(work, parts))
                found.append(1000 * (time.perf_counter() - start))
            return statistics.median(found)

        return {
            "read_ms": best(np.bitwise_or.reduce),
            "read_write_ms": best(lambda part: np.bitwise_xor(part, np.uint32(0), out=part)),
        }


# -- the frameworks


def torch_pairs(arrays: Sequence[Any], threads: int) -> Callable[[float], list[Pair]]:
    import torch

    import unified_clip.torch as uc

    torch.set_num_threads(threads)
    masters = [torch.from_numpy(array) for array in arrays]
    parameters = [torch.nn.Parameter(torch.empty_like(master)) for master in masters]
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.grad = master.clone()

    def restore() -> Any:
        torch._foreach_copy_([parameter.grad for parameter in parameters], masters)
        return parameters

    def pairs(limit: float) -> list[Pair]:
        return [
            Pair(
                "torch.nn.utils.clip_grad_norm_",
                restore,
                lambda given: uc.clip_grad_norm_(given, limit),
                lambda given: torch.nn.utils.clip_grad_norm_(given, limit),
            )
        ]

    return pairs


def tensorflow_pairs(arrays: Sequence[Any], threads: int) -> Callable[[float], list[Pair]]:
    import tensorflow as tf

    import unified_clip.tensorflow as uc

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    grads = [tf.constant(array) for array in arrays]
    name = "tf.clip_by_global_norm"

    def pairs(limit: float) -> list[Pair]:
        return [
            Pair(
                name,
                lambda: grads,
                lambda given: uc.clip_by_global_norm(given, limit),
                lambda given: [t.device for t in tf.clip_by_global_norm(given, limit)[0]],
            )
        ]

    return pairs


def paddle_pairs(arrays: Sequence[Any], threads: int) -> Callable[[float], list[Pair]]:
    import paddle

    import unified_clip.paddle as uc

    masters = [paddle.to_tensor(array) for array in arrays]
    parameters = [paddle.create_parameter(master.shape, "float32") for master in masters]
    for parameter, master in zip(parameters, masters, strict=True):
        parameter.grad = master.clone()

    def restore() -> Any:
        for parameter, master in zip(parameters, masters, strict=True):
            paddle.assign(master, output=parameter.grad)
        return parameters

    def in_pairs() -> Any:
        return [(parameter, parameter.grad) for parameter in restore()]

    def pairs(limit: float) -> list[Pair]:
        ours, theirs = uc.ClipGradByGlobalNorm(limit), paddle.nn.ClipGradByGlobalNorm(limit)
        return [
            Pair("paddle.nn.ClipGradByGlobalNorm", in_pairs, ours, theirs),
            Pair(
                "paddle.nn.utils.clip_grad_norm_",
                restore,
                lambda given: uc.clip_grad_norm_(given, limit),
                lambda given: paddle.nn.utils.clip_grad_norm_(given, limit),
            ),
        ]

    return pairs


def jax_pairs(arrays: Sequence[Any], threads: int) -> Callable[[float], list[Pair]]:
    import jax
    import optax

    import unified_clip.jax as uc

    grads = [jax.numpy.asarray(array) for array in arrays]

    def pairs(limit: float) -> list[Pair]:
        clip = optax.clip_by_global_norm(limit)
        jitted = jax.jit(lambda given: (clip.update(given, optax.EmptyState())[0], optax.tree.norm(given)))
        return [
            Pair(
                "optax.clip_by_global_norm (jit)",
                lambda: grads,
                lambda given: jax.block_until_ready(uc.clip_by_global_norm(given, limit)),
                lambda given: jax.block_until_ready(jitted(given)),
            )
        ]

    return pairs


FRAMEWORKS = {"torch": torch_pairs, "tensorflow": tensorflow_pairs, "paddle": paddle_pairs, "jax": jax_pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--lists", nargs="+", choices=LISTS, default=list(LISTS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import numpy as np

    results = []
    for name in options.lists:
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(shape, np.float32) for shape in LISTS[name]()]
        norm = float(np.sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in arrays)))
        pairs = FRAMEWORKS[options.framework](arrays, options.threads)
        for clipped in (False, True):
            for pair in pairs(norm / 2 if clipped else 2 * norm):
                gc.collect()
                results.append({"list": name, "clipped": clipped, **measure(pair, REPEATS[name])})
        results[-1] |= limits(arrays, options.threads, REPEATS[name]) if sum(a.size for a in arrays) > 10**6 else {}
    if options.json:
        json.dump(results, sys.stdout, indent=1)
        return
    for each in results:
        low, high = each["quartiles"]
        print(
            f"{each['list']:11} {'clipped' if each['clipped'] else 'not clipped':12} {each['native']:32} ours "
            f"{each['ours_ms']:8.3f} ms, native {each['native_ms']:8.3f} ms, native / ours {each['ratio']:.2f} "
            f"({low:.2f} to {high:.2f})"
        )
        if "read_ms" in each:
            print(f"{'':11} the machine: read {each['read_ms']:.3f} ms, read and write {each['read_write_ms']:.3f} ms")


if __name__ == "__main__":
    main()
