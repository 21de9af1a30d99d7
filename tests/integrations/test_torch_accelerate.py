"""Accelerate: what `test_torch_trainers.py` has no word for, such as two optimizers, and containers of parameters."""

from __future__ import annotations

import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from support.trainers.kits import scaler
from support.trainers.torch_training import DATA, RATE, Model, batches, config

from unified_clip import ClipConfig
from unified_clip.integrations import torch_optimizers
from unified_clip.integrations.accelerate_clip import clip_

pytestmark = pytest.mark.usefixtures("accelerate_state")

GLOBAL = ClipConfig(rule="global_norm", threshold=0.5, eps=0.0)


def accelerator(*, scaled: bool = False) -> Accelerator:
    """Return an Accelerator. With `scaled`, it gets a scaler, which Accelerate does not create on a CPU."""
    made = Accelerator(cpu=True)
    if scaled:
        made.scaler = scaler()
    return made


def prepared(using: Accelerator, **changes: object) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = Model()
    return using.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE, **changes))


def test_of_two_optimizers_only_the_one_whose_gradients_are_clipped_is_unscaled() -> None:
    using = accelerator(scaled=True)
    one, first = prepared(using)
    other, second = prepared(using)
    using.backward(one.loss(*next(batches())) + other.loss(*next(batches())))
    scaled_norm = other.output.weight.grad.norm()
    norm = clip_(using, GLOBAL, one.parameters())
    assert norm is not None
    assert norm < scaled_norm / 2**10
    assert other.output.weight.grad.norm() == scaled_norm
    assert clip_(using, GLOBAL, other.parameters()) == norm
    del first, second


def overflowing(using: Accelerator, *gradients: list[float], **changes: object) -> list[torch.nn.Parameter]:
    using.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    using.scaler.scale(torch.zeros(()))  # which makes the scale
    parameters = [torch.nn.Parameter(torch.zeros(len(gradient))) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        using.prepare(torch.optim.SGD([parameter], lr=1.0, **changes))
        parameter.grad = torch.tensor(gradient)
    return parameters


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("first_overflows", [False, True])
def test_of_two_optimizers_the_one_that_steps_is_clipped(first_overflows: bool, fused: bool) -> None:
    using, gradients = accelerator(), [[math.inf, 0.0], [600.0, 800.0]]
    parameters = overflowing(using, *(gradients if first_overflows else gradients[::-1]), fused=fused)
    clipper = ClipConfig(rule="global_norm", threshold=0.5, eps=0.0, include=["steps"]).clipper(
        ["overflows", "steps"] if first_overflows else ["steps", "overflows"]
    )
    for clip in (GLOBAL, clipper):
        assert clip_(using, clip, parameters) == (500 if clip is GLOBAL else 0.5)
    for optimizer in using._optimizers:
        using.scaler.step(optimizer.optimizer)
    left_out, stepped = parameters if first_overflows else parameters[::-1]
    assert not left_out.detach().any()
    assert not left_out.grad.isfinite().all()
    assert stepped.detach().tolist() == pytest.approx([-0.3, -0.4])


def test_where_all_are_left_out_nothing_is_clipped_and_all_are_unscaled() -> None:
    using = accelerator()
    parameters = overflowing(using, [math.inf, 2.0], [math.nan, 4.0])
    assert clip_(using, GLOBAL, parameters) is None
    assert [parameter.grad[1].item() for parameter in parameters] == [1.0, 2.0]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["parameter", "dict", "list", "generator", "list of generators", "dict of generators"])
def test_every_container_of_parameters_is_clipped(kind: str, scaled: bool) -> None:
    using, model = accelerator(), torch.nn.Linear(2, 3, bias=False)
    using.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    if scaled:
        using.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        using.scaler.scale(torch.zeros(()))
    model.weight.grad = torch.full((3, 2), 8.0)
    containers = {
        "parameter": model.weight,
        "dict": dict(model.named_parameters()),
        "list": [model.weight],
        "list of generators": [model.parameters()],
        "dict of generators": {"model": model.parameters()},
    }
    norm = clip_(using, GLOBAL, containers.get(kind, model.parameters()))
    assert norm == pytest.approx((6 * (4.0 if scaled else 8.0) ** 2) ** 0.5)
    assert model.weight.grad.norm() == pytest.approx(0.5)


@pytest.mark.parametrize("scaled", [False, True])
def test_parameters_of_an_optimizer_that_clips_too_are_refused(scaled: bool) -> None:
    using = accelerator(scaled=scaled)
    (model, optimizer), (other, second) = prepared(using), prepared(using)
    using.backward(model.loss(*next(batches())) + other.loss(*next(batches())))
    handle = GLOBAL.attach_to(optimizer)
    before = model.output.weight.grad.clone()
    with pytest.raises(ValueError, match=r"attached to this SGD already\. Gradients would be clipped twice"):
        clip_(using, GLOBAL, model.parameters())
    assert torch.equal(model.output.weight.grad, before)
    assert clip_(using, GLOBAL, other.parameters()) > 0.5
    handle.detach()
    assert clip_(using, GLOBAL, model.parameters()) > 0.5
    del second


class OnGpu:
    """A `found_inf` flag of a scaler on a GPU. A reader of the flag would have to wait."""

    device = torch.device("cuda")

    def __bool__(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("fused", "nonfinite", "waits"),
    [
        (False, "family", True),
        (False, "zero", True),
        (True, "family", False),
        (True, "zero", False),
        (True, "skip", True),
    ],
)
def test_on_a_gpu_it_waits_for_the_scaler_where_somebody_does_anyway(
    fused: bool, nonfinite: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = accelerator()
    parameters = overflowing(using, [math.inf, 0.0], fused=fused)
    monkeypatch.setattr(torch_optimizers, "unscale", lambda scaler, optimizer: [OnGpu()])
    clip = ClipConfig(rule="global_norm", threshold=0.5, nonfinite=nonfinite)
    assert (clip_(using, clip, parameters) is None) == waits
    assert clip.step == (not waits)


def test_a_clipper_counts_steps_of_its_own() -> None:
    using = accelerator()
    model, _ = prepared(using)
    clipper = config(nonfinite="family").clipper()
    using.backward(model.loss(*next(batches())))
    clip_(using, clipper, model.named_parameters())
    assert clipper.step == 1
    clip_(using, clipper, model.named_parameters(), step=DATA.STEPS)
    assert clipper.last.parts[""].threshold == 0.5


@pytest.mark.parametrize("kind", ["DEEPSPEED", "MEGATRON_LM", "XLA"])
def test_gradients_out_of_reach_are_refused_before_a_write(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    using = accelerator()
    model, _ = prepared(using)
    using.backward(model.loss(*next(batches())))
    before = model.output.weight.grad.clone()
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType[kind])
    with pytest.raises(RuntimeError, match=f"{kind} does not expose .* use .*clip"):
        clip_(using, GLOBAL, model.parameters())
    assert torch.equal(model.output.weight.grad, before)
