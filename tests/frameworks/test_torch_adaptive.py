"""Adaptive thresholds in `torch.compile` and on a device: the bits of the recursion, and no value read on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiers import quick
from support.trainers.adaptive_cases import (
    ADAGC,
    AGC,
    FITTING,
    rule_of,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unified_clip import adaptive as functions


class OnDevice(TorchDispatchMode):
    """Raises where an operation reads a value, or moves a tensor between the device and the host."""

    READS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "tolist")

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        assert name not in self.READS
        tensors = [value for value in tree_leaves([args, kwargs, results]) if isinstance(value, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors}
        assert devices <= {"cuda"}, f"{name} moves values between {devices}"
        self.operations += 1
        return results


@pytest.mark.parametrize("settings", quick(FITTING, FITTING[2], FITTING[6]))
def test_on_a_device_no_step_reads_a_value(settings: dict[str, Any]) -> None:
    rule = rule_of(settings)
    with FakeTensorMode():
        parameter = torch.nn.Parameter(torch.empty(3, device="cuda"))
        parameter.grad = torch.empty(3, device="cuda")
        state = functions.initial_state(rule, [parameter.grad])
        assert state.device.type == "cuda"
        with OnDevice() as seen:
            _, state = functions.clip_grad_norm_([parameter], rule, state, max_norm=1.0)
            _, norm, state = functions.clip_by_global_norm([parameter.grad], rule, state)
    assert seen.operations > 10
    assert {norm.device.type, state.device.type} == {"cuda"}


def test_on_a_device_thresholds_of_tensors_and_units_read_no_value() -> None:
    with FakeTensorMode():
        parameters = [torch.nn.Parameter(torch.empty(shape, device="cuda")) for shape in ((4, 3), (5,))]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        state = functions.initial_state(ADAGC, parameters)
        with OnDevice() as seen:
            gradients = [parameter.grad for parameter in parameters]
            _, norm, state = functions.clip_by_tensor_norm(gradients, ADAGC, state, clip_norm=1.0)
            functions.clip_by_unit_norm(gradients, parameters, AGC)
    assert seen.operations > 20
    assert {norm.device.type, state.device.type} == {"cuda"}


def test_the_example_clips_bad_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import train_adaptive

    for name in ("zclip", "adagc"):
        config = train_adaptive.CLIPS[name]
        table = {**config.adaptive.data(), "warmup_steps": 4}
        steps = train_adaptive.train(config.model_copy(update={"adaptive": table}), 7, {5: 1000.0})
        assert steps[5].norm > 100
        assert 0 < steps[5].clipped < 1.5 * max(step.norm for step in steps[:5])


@pytest.mark.nightly
def test_the_example_recovers_with_adaptive_thresholds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import train_adaptive

    train_adaptive.main(str(tmp_path / "plot.svg"))
    assert "<svg" in (tmp_path / "plot.svg").read_text()
    losses = {line.partition(":")[0]: float(line.split()[-2]) for line in capsys.readouterr().out.splitlines()}
    assert losses["fixed"] > 2 > max(losses["zclip"], losses["adagc"])
