"""Time clips of lists that others have published, on a CUDA device, beside PyTorch's function and the memory's limit.

Both functions run alternately in one process. The floor is the time in which a copy in the GPU's memory moves as many
bytes: a norm reads each gradient once, and a product reads and writes it. `host` is the time until the call returns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

import unified_clip.torch as uc
from unified_clip._compute import cuda
from unified_clip.bench.cuda import _bytes_per_ms

F, B = torch.float32, torch.bfloat16
WORKLOADS: dict[str, list[tuple[tuple[int, ...], torch.dtype]]] = {
    "10x10": [((10,), F)] * 10,
    "2,000 tensors of 512": [((512,), F)] * 2000,
    "500 matrices of float32 and bfloat16, 225 M elements": [((671, 671), F if i % 2 else B) for i in range(500)],
    "one bfloat16 tensor of 6,000,261 x 256": [((6_000_261, 256), B)],
}


def parameters(shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[torch.nn.Parameter]:
    result = [torch.nn.Parameter(torch.empty(shape, dtype=dtype, device="cuda")) for shape, dtype in shapes]
    for parameter in result:
        parameter.grad = torch.randn_like(parameter)
    return result


def dtensors() -> list[torch.nn.Parameter]:
    """300 DTensors of 16 x 16 on one rank."""
    mesh = dist.device_mesh.init_device_mesh("cuda", (1,))
    result = []
    for _ in range(300):
        parameter, gradient = (distribute_tensor(torch.randn(16, 16, device="cuda"), mesh, [Shard(0)]) for _ in "pg")
        result.append(torch.nn.Parameter(parameter))
        result[-1].grad = gradient
    return result


def times(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """Return the median time of each call, in milliseconds: until the device is done, and until the call returns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for repeat in range(repeats + 3):
        for name in sorted(calls, reverse=repeat % 2 == 0):
            torch.cuda.synchronize()
            start = time.perf_counter()
            calls[name]()
            host = time.perf_counter() - start
            torch.cuda.synchronize()
            if repeat >= 3:
                found[name].append((time.perf_counter() - start, host))
    return {
        name: {
            key: 1000 * statistics.median(column)
            for key, column in zip(("ms", "host_ms"), zip(*rows, strict=True), strict=True)
        }
        for name, rows in found.items()
    }


def measured(name: str, params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
    size = sum(parameter.grad.numel() * parameter.grad.element_size() for parameter in params)
    norm = float(uc.clip_grad_norm_(params, float("inf")))
    rows = []
    for what, factor, passes in (("not clipped", 2.0, 1), ("clipped", 1 - 1e-4, 3)):
        thresholds = {"threshold": norm * factor}

        def clip(function: Callable[..., Any], thresholds: dict[str, float] = thresholds, what: str = what) -> Any:
            if what == "clipped":  # each call clips what the last one has left
                thresholds["threshold"] *= 1 - 1e-3
            return function(params, thresholds["threshold"])

        calls = {
            "unified_clip": lambda clip=clip: clip(uc.clip_grad_norm_),
            "torch": lambda clip=clip: clip(torch.nn.utils.clip_grad_norm_),
        }
        floor = size * passes / _bytes_per_ms()
        rows.append({"list": name, "what": what, "floor_ms": floor, **times(calls, 10 if size > 2**30 else 30)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu/workloads.json"))
    options = parser.parse_args()
    start = time.perf_counter()
    first = parameters(WORKLOADS["10x10"])
    uc.clip_grad_norm_(first, 1.0)
    torch.cuda.synchronize()
    data: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "kernels": cuda.ENABLED,
        "first_call_s": time.perf_counter() - start, "copy_bytes_per_ms": _bytes_per_ms(), "rows": [],
    }  # fmt: skip
    for name, shapes in WORKLOADS.items():
        data["rows"] += measured(name, parameters(shapes))
        torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", 0))
        try:
            data["rows"] += measured("300 DTensors of 16 x 16, one rank", dtensors())
        finally:
            dist.destroy_process_group()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(data, indent=1) + "\n")
    for row in data["rows"]:
        ours, torch_row = row["unified_clip"], row["torch"]
        print(
            f"{row['list']:54} {row['what']:12} floor {row['floor_ms']:8.3f}  unified_clip {ours['ms']:8.3f} "
            f"(host {ours['host_ms']:.3f})  torch {torch_row['ms']:8.3f} (host {torch_row['host_ms']:.3f}) ms"
        )


if __name__ == "__main__":
    main()
