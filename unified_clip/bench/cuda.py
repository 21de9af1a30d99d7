"""Benchmark PyTorch's clip functions on a CUDA device, timed by CUDA events."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from .gradients import Array
from .measure import Call, Clock, Pair
from .pairs import Framework, Pairs, clip_to, torch_gradients

NATIVE = "torch.nn.utils.clip_grad_norm_"


class NoDeviceError(Exception):
    """PyTorch finds no CUDA device."""


def pairs(arrays: Sequence[Array]) -> Pairs:
    import torch

    import unified_clip.torch as uc

    if not torch.cuda.is_available():
        raise NoDeviceError("PyTorch finds no CUDA device. Use a machine with a GPU and a CUDA build of PyTorch.")
    masters, _, restore = torch_gradients(arrays, "cuda")
    has_kernels = _has_kernels(masters)
    labels = {True: "CUDA kernels", False: "operations"} if has_kernels else {False: "operations"}

    def native(parameters: Any, threshold: float) -> Any:
        return torch.nn.utils.clip_grad_norm_(parameters, threshold, foreach=True)

    def clips(threshold: float) -> list[Pair]:
        return [
            Pair(f"{NATIVE}, {label}", restore, _by(clip_to(threshold, uc.clip_grad_norm_), by_kernels),
                 clip_to(threshold, native), in_place=True)
            for by_kernels, label in labels.items()
        ]  # fmt: skip

    def in_graphs(threshold: float) -> list[Pair]:
        captured_native = _captured(clip_to(threshold, native), restore)
        return [
            Pair(f"{NATIVE}, {label}, CUDA graphs", restore,
                 _captured(_by(clip_to(threshold, uc.clip_grad_norm_), by_kernels), restore), captured_native,
                 in_place=True)
            for by_kernels, label in labels.items()
        ]  # fmt: skip

    norm = Pair(
        "torch.nn.utils.get_total_norm",
        lambda: masters,
        _by(uc.get_total_norm, has_kernels),
        lambda tensors: torch.nn.utils.get_total_norm(tensors, foreach=True),
    )
    return Pairs(clips, norm, list, in_graphs)


def _has_kernels(tensors: Sequence[Any]) -> bool:
    from .._backends.torch import gpu_lists as lists
    from .._compute import cuda

    before, cuda.ENABLED = cuda.ENABLED, True
    try:
        return lists.of_tensors(tensors) is not None
    finally:
        cuda.ENABLED = before


def _by(call: Call, kernels: bool) -> Call:
    from .._compute import cuda

    def with_setting(inputs: Any) -> Any:
        before, cuda.ENABLED = cuda.ENABLED, kernels
        try:
            return call(inputs)
        finally:
            cuda.ENABLED = before

    return with_setting


def _captured(call: Call, prepare: Callable[[], Any]) -> Call:
    """Capture a call in a CUDA graph, and return a function that replays the graph."""
    import torch

    inputs, side, graph = prepare(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call(inputs)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        call(inputs)
    return lambda _: graph.replay()


def _milliseconds(call: Call, inputs: Any, clock: Clock) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call(inputs)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _versions() -> dict[str, Any]:
    import torch

    return {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda or torch.version.hip}


@functools.cache
def _bytes_per_ms() -> float:
    import torch

    source = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = [_milliseconds(target.copy_, source, time.perf_counter) for _ in range(20)]
    return float(2 * source.nbytes / min(times))


FRAMEWORK = Framework(
    pairs, ("torch",), milliseconds=_milliseconds, describe_device=_versions, bytes_per_ms=_bytes_per_ms
)
