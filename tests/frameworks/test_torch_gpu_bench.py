"""`unified-clip bench --device cuda` on an imitated device: the functions, their times, and the report."""

from __future__ import annotations

import importlib.metadata
import json
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unified_clip import cli
from unified_clip.bench import cuda, report, worker
from unified_clip.bench.options import Options
from unified_clip.bench.pairs import torch_gradients

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
NATIVE = "torch.nn.utils.clip_grad_norm_"
OPTIONS = Options(["torch"], ["10x10"], ["float32"], seconds=0.0, device="cuda")


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1000 * (end.time - self.time)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A CUDA device in CPU memory. Return a list that grows with each replay of a graph."""
    result: list[None] = []
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes: dict[str, Any] = {
        "is_available": lambda: True,
        "synchronize": lambda: None,
        "get_device_name": lambda: "none",
        "current_stream": lambda: stream,
        "Stream": lambda: stream,
        "stream": lambda _: nullcontext(),
        "graph": lambda _: nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: result.append(None)),
        "Event": Event,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(cuda, "torch_gradients", lambda arrays, device: torch_gradients(arrays))
    monkeypatch.setattr(cuda, "_has_kernels", lambda tensors: True)
    monkeypatch.setattr(cuda, "FRAMEWORK", cuda.FRAMEWORK._replace(bytes_per_ms=lambda: 1000))
    return result


def test_the_kernels_operations_and_pytorch_are_measured(replays: list[None], tmp_path: Path) -> None:
    first, machine, one = worker.results("torch", OPTIONS)
    assert first["versions"] == {"torch": importlib.metadata.version("torch")}
    assert machine["machine"]["device"] == "none"
    variants = [f"{NATIVE}, CUDA kernels", f"{NATIVE}, operations"]
    rows = [(row["what"], row["native"]) for row in one["results"]]
    assert rows == [
        *(("clipped", name) for name in variants),
        *(("not clipped", name) for name in variants),
        *(("clipped, in a graph", f"{name}, CUDA graphs") for name in variants),
        *(("not clipped, in a graph", f"{name}, CUDA graphs") for name in variants),
        ("norm alone", "torch.nn.utils.get_total_norm"),
    ]
    assert (one["memory"], one["limits"]) == ([], [])
    assert all(time > 0 for row in one["results"] for time in row["ours_ms"] + row["native_ms"])
    assert all(row["floor_ms"] == (1.2 if row["what"].startswith("clipped") else 0.4) for row in one["results"])
    assert replays
    data = {"missing": {}, "failed": {}, **first, **machine, **one}
    report.write(data, tmp_path)
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["machine"] == machine["machine"]


def test_without_a_device_the_command_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert cli.main(["bench", "--device", "cuda", "--out", str(tmp_path)]) == 3
    assert "torch was not measured: PyTorch finds no CUDA device. Use a machine with a GPU" in capfd.readouterr().out
