"""`unified-clip bench --device cuda` on an imitated device: the functions, their times, and the report."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.kits import Kit

from unified_clip import cli
from unified_clip._compute import cuda as kernels
from unified_clip.bench import cuda, report, worker
from unified_clip.bench.options import Options
from unified_clip.bench.pairs import torch_gradients

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
NATIVE = "torch.nn.utils.clip_grad_norm_"
HAS_KERNELS = cuda._has_kernels
OPTIONS = Options(["torch"], ["10x10"], ["float32"], growth=False, seconds=0.0, device="cuda")


@pytest.fixture(autouse=True)
def _once(kit: Kit) -> None:
    if not kit.exact:
        pytest.skip("what is measured chooses its path itself")


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
    data = {"growth": [], "missing": {}, "failed": {}, **first, **machine, **one}
    report.write(data, tmp_path)
    assert json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["machine"] == machine["machine"]


def test_kernels_that_do_not_support_the_device_are_not_measured(
    replays: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operations would take the place of the kernels, so their times are not times of the kernels."""
    monkeypatch.setattr(cuda, "_has_kernels", HAS_KERNELS)
    settings: list[bool] = []
    monkeypatch.setattr("unified_clip.torch.get_total_norm", lambda _: settings.append(kernels.ENABLED))
    pairs = cuda.pairs([torch.ones(3).numpy()])
    assert [pair.native_name for pair in pairs.clips(1.0)] == [f"{NATIVE}, operations"]
    assert [pair.native_name for pair in pairs.in_graphs(1.0)] == [f"{NATIVE}, operations, CUDA graphs"]
    pairs.norm.unified([])
    assert settings == [False]


def test_without_a_device_the_gpu_tests_fail() -> None:
    """Without a device, all GPU tests are skipped, which must not look like a success."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        ["make", "gpu"], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert run.returncode
    assert "make gpu needs a GPU: PyTorch finds no CUDA device." in run.stderr
    assert "passed" not in run.stdout


def test_without_a_device_the_command_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert cli.main(["bench", "--device", "cuda", "--out", str(tmp_path)]) == 3
    assert "torch was not measured: PyTorch finds no CUDA device. Use a machine with a GPU" in capfd.readouterr().out
