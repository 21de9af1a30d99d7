"""Recording on PyTorch: graphs of its compiler, functorch, autograd, and CUDA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import unified_clip
import unified_clip.torch as uc
from unified_clip import ClipWarning
from unified_clip._backends.torch import operations

MISSED = "a clip call inside a graph of torch is not recorded"


def parameter(*values: float) -> torch.nn.Parameter:
    weight = torch.nn.Parameter(torch.ones(len(values)))
    weight.grad = torch.tensor(values)
    return weight


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_compiled_graph_stays_whole_and_says_once_that_it_is_not_recorded(tmp_path: Path) -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def clip(weight: torch.nn.Parameter) -> torch.Tensor:
        return uc.clip_grad_norm_([weight], 1.0)

    assert clip(parameter(3.0, 4.0)) == 5.0  # made before, so the recording has to be noticed
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        weight, again = parameter(3.0, 4.0), parameter(3.0, 4.0)
        with pytest.warns(ClipWarning, match=MISSED):
            clip(weight)
        clip(again)
        for each in (weight, again):
            torch.testing.assert_close(each.grad, torch.tensor([0.6, 0.8]))
        uc.clip_grad_norm_([parameter(3.0, 4.0)], 1.0)
    warning, line = lines(tmp_path / "run.jsonl")
    assert MISSED in warning["warning"]
    assert line["norm"] == 5.0
    assert clip(parameter(3.0, 4.0)) == 5.0


def test_a_transformed_function_says_that_it_is_not_recorded(tmp_path: Path) -> None:
    with unified_clip.record(tmp_path / "run.jsonl"), pytest.warns(ClipWarning, match=MISSED):
        torch.func.vmap(lambda x: uc.clip_by_norm(x, 1.0))(torch.ones(3, 2))
    (warning,) = lines(tmp_path / "run.jsonl")
    assert MISSED in warning["warning"]


def test_a_call_whose_derivative_is_wanted_is_recorded(tmp_path: Path) -> None:
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    with unified_clip.record(tmp_path / "run.jsonl", norms=True):
        uc.clip_by_norm(x, 1.0).sum().backward()
    (line,) = lines(tmp_path / "run.jsonl")
    assert (line["norm"], line["coef"], line["parameters"]["0"]["norm"]) == ([5.0], [0.2], 5.0)


def test_a_threshold_that_is_known_to_a_device_only_is_recorded(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(uc.BACKEND), "read", lambda self, scalar: None)
    with unified_clip.record(tmp_path / "run.jsonl"):
        uc.clip_grad_norm_([parameter(3.0, 4.0)], torch.tensor(2.5))
    (line,) = lines(tmp_path / "run.jsonl")
    assert line["threshold"] == 2.5
    assert line["norm"] == 5.0


def test_a_call_that_says_who_holds_the_gradients_is_recorded_on_one_process(tmp_path: Path) -> None:
    with unified_clip.record(tmp_path / "run.jsonl"):
        uc.clip_grad_norm_([parameter(3.0, 4.0)], 1.0, process_group=None, check_numel=2)
    (line,) = lines(tmp_path / "run.jsonl")
    assert (line["norm"], line["ranks"], line["rank"], line["layout"]) == (5.0, 1, 0, {"plain": 1})


class Number:
    """A number on a device. Its copy arrives when the host waits for the device's stream."""

    def __init__(self, device: str, arrived: set[str]) -> None:
        self.device, self.is_cuda, self.arrived = device, device != "cpu", arrived

    def detach(self) -> Number:
        return self

    def to(self, device: str, non_blocking: bool) -> Number:
        assert (device, non_blocking) == ("cpu", self.is_cuda)
        return self

    def tolist(self) -> str:
        assert not self.is_cuda or self.device in self.arrived, "the copy has not arrived"
        return self.device


@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cuda:1", "cpu", "cuda:0"), ("cpu", "cuda:1"), ("cpu",)])
def test_numbers_of_several_gpus_arrive_from_each(devices: tuple[str, ...], monkeypatch: Any) -> None:
    arrived: set[str] = set()

    class Event:
        def record(self, stream: str) -> None:
            self.stream = stream

        def synchronize(self) -> None:
            arrived.add(self.stream)

        def query(self) -> bool:
            return self.stream in arrived

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    numbers: Any = [Number(device, arrived) for device in devices]
    deferred = operations.read_later(numbers)
    gpus = sorted({*devices} - {"cpu"})
    arrived.update(gpus[:-1])
    assert deferred.ready() is not bool(gpus)
    assert deferred.values() == list(devices)
    assert deferred.ready()
