"""Print the errors of PyTorch's norm and of unified_clip's norm on 1, 2 and 4 processes."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import unified_clip.torch as uc
from unified_clip.parity.judge.verdict import relative_error
from unified_clip.tensors.norms import exact_norm
from unified_clip.tensors.types import encode, from_numpy
from unified_clip.tensors.ulp import ulps

SIZES = (1, 2, 4)
TIMEOUT = timedelta(seconds=15)

Array = npt.NDArray[np.float32]
RANDOM = np.random.default_rng(9)

ROWS, HYBRID, PLAIN = "rows", "hybrid", "plain"
"""The layouts of a gradient. ROWS: sharded along its first axis over all processes. HYBRID: sharded over two processes,
with copies on other processes. PLAIN: a plain tensor on every process.
"""


class Scenario(NamedTuple):
    name: str
    arrays: Sequence[Array]
    layouts: Sequence[str] = (ROWS,)
    p: float = 2.0


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape, np.float32)


LAYERS = [normal(64, 48), normal(64), normal(300, 64), normal(300), normal(10, 300), normal(10)]
NAN_AT_THE_END = np.array([[1.0], [2.0], [3.0], [np.nan]], np.float32)

SCENARIOS = [
    Scenario("2^24 numbers, normally distributed", [normal(2**24)]),
    Scenario("2^24 elements of 0.01", [np.full(2**24, 0.01, np.float32)]),
    Scenario(
        "one element of 2^24, two of 2^12, 70 of 2^-3", [np.array([2**24, 2**12, 2**12] + [2**-3] * 70, np.float32)]
    ),
    Scenario("three layers", LAYERS),
    Scenario("three layers, copies on half of the processes", LAYERS, [HYBRID]),
    Scenario("three layers, norm_type=1", LAYERS, p=1.0),
    Scenario("three layers, on two meshes", LAYERS, [ROWS, HYBRID]),
    Scenario("three layers, some of them plain tensors", LAYERS, [ROWS, PLAIN]),
    Scenario("NaN in the last row, norm_type=inf", [NAN_AT_THE_END], p=np.inf),
    Scenario("one row, norm_type=inf", [normal(1, 4)], p=np.inf),
]
"""On the last scenario, the processes differ: one may raise or wait, so no scenario follows it."""


def main() -> None:
    results = {size: measure_on_processes(size) for size in SIZES}
    print("| gradients | PyTorch on " + " | ".join(f"{size}" for size in SIZES) + " | unified_clip on 1, 2 and 4 |")
    print("|---" * (len(SIZES) + 2) + "|")
    for scenario in SCENARIOS:
        native = [results[size][scenario.name, "native"] for size in SIZES]
        by_unified_clip = dict.fromkeys(results[size][scenario.name, "unified_clip"] for size in SIZES)
        print("| " + " | ".join([scenario.name, *native, "; ".join(by_unified_clip)]) + " |")


def measure_on_processes(size: int) -> dict[tuple[str, str], str]:
    """Return {(name of the scenario, "native" or "unified_clip"): result in words}."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        arguments = (size, str(Path(directory) / "meeting"), queue)
        processes = [
            context.Process(target=measure_on_rank, args=(rank, *arguments), daemon=True) for rank in range(size)
        ]
        for process in processes:
            process.start()
        results_by_rank = [queue.get(timeout=300) for _ in range(size)]
        for process in processes:
            process.join()
    by_rank = [results for _, results in sorted(results_by_rank, key=lambda rank_results: rank_results[0])]
    return {key: join_ranks([results[key] for results in by_rank]) for key in by_rank[0]}


def join_ranks(descriptions: Sequence[str]) -> str:
    if len(set(descriptions)) == 1:
        return descriptions[0]
    ranks = {
        description: [
            str(rank) for rank, rank_description in enumerate(descriptions) if rank_description == description
        ]
        for description in descriptions
    }
    return "; ".join(f"rank {', '.join(numbers)}: {description}" for description, numbers in ranks.items())


def measure_on_rank(rank: int, size: int, meeting: str, queue: Any) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(meeting, size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    queue.put((rank, measure(SCENARIOS)))


def measure(scenarios: Sequence[Scenario]) -> dict[tuple[str, str], str]:
    """Return {(name of the scenario, "native" or "unified_clip"): result}. All processes have to call this function."""
    size = distributed.get_world_size()
    row = init_device_mesh("cpu", (size,))
    meshes = {ROWS: (row, [Shard(0)]), HYBRID: (hybrid(size), [Replicate(), Shard(0)])}
    results = {}
    for scenario in scenarios:
        layouts = [scenario.layouts[number % len(scenario.layouts)] for number in range(len(scenario.arrays))]
        gradients: list[torch.Tensor] = [
            torch.from_numpy(array)
            if layout == PLAIN
            else distribute_tensor(torch.from_numpy(array), *meshes[layout], src_data_rank=None)
            for array, layout in zip(scenario.arrays, layouts, strict=True)
        ]
        for library, norm in (("unified_clip", uc.get_total_norm), ("native", torch.nn.utils.get_total_norm)):
            results[scenario.name, library] = describe_result(scenario, gradients, norm)
    return results


def hybrid(size: int) -> Any:
    return init_device_mesh("cpu", (max(size // 2, 1), min(size, 2)))


def describe_result(scenario: Scenario, gradients: Sequence[torch.Tensor], norm: Callable[..., Any]) -> str:
    try:
        result = norm(gradients, scenario.p)
        result = result.full_tensor() if isinstance(result, DTensor) else result
    except RuntimeError as error:
        line = str(error).splitlines()[0].split(", ")[0]
        return "waits until the group's timeout" if "imed out" in line or "closed by peer" in line else f"`{line}`"
    exact = exact_norm([from_numpy(array) for array in scenario.arrays], scenario.p, "float32")
    distance = ulps([encode(np.asarray(exact), "float32")], [from_numpy(result.numpy())])
    if np.isnan(exact) and distance:
        return f"{result.item():g} in place of NaN"
    return "exact" if not distance else f"{distance:g} ulp ({relative_error(result.item(), exact):.1e})"


if __name__ == "__main__":
    main()
