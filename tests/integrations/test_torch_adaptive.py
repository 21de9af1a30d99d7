"""Adaptive thresholds in PyTorch's optimizers, Lightning and Transformers: checkpoints have the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import adaptive
from support.tiers import is_at_least, nightly
from support.trainers.adaptive_cases import (
    CONFIG,
    HALF,
    TENSOR_NORMS,
    TENSORS,
    THRESHOLDS,
    UNITS,
    check_absent_gradients,
    check_tensors_in_an_optimizer,
    check_tensors_resume,
    check_units_in_an_optimizer,
    gradient,
    state_of_another_framework,
)

from unified_clip import ClipConfig, ClipWarning


def training(adaptive_first: bool = True) -> tuple[torch.nn.Parameter, torch.optim.Optimizer, Any]:
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    return weight, optimizer, CONFIG.attach_to(optimizer)


def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, norm: float) -> np.ndarray:
    with torch.no_grad():
        weight.zero_()
    weight.grad = torch.from_numpy(gradient(norm))
    optimizer.step()
    change: np.ndarray = weight.detach().numpy().copy()
    return change


@pytest.mark.parametrize("source", ["the optimizer's checkpoint", "another framework"])
def test_a_run_goes_on_from_a_state_as_it_would_have(tmp_path: Path, source: str) -> None:
    weight, optimizer, handle = training()
    for norm in adaptive.NORMS[:HALF]:
        step(weight, optimizer, norm)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    changes = [step(weight, optimizer, norm) for norm in adaptive.NORMS[HALF:]]

    weight, optimizer, resumed = training()
    if source == "another framework":
        resumed.load_state_dict(state_of_another_framework())
    else:
        optimizer.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    assert resumed.step == HALF
    for norm, change, threshold in zip(adaptive.NORMS[HALF:], changes, THRESHOLDS[HALF:], strict=True):
        np.testing.assert_array_equal(step(weight, optimizer, norm), change)
        assert resumed.last.parts[""].threshold == threshold
    assert resumed.state_dict() == handle.state_dict() == state_of_another_framework(200)


def test_adagc_and_agc_clip_in_an_optimizer_and_its_checkpoint_has_the_state() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=1.0)
    handle = TENSORS.attach_to(optimizer)

    def make_step(gradients: Any) -> Any:
        for weight, grad in zip(weights, gradients, strict=True):
            weight.data.zero_()
            weight.grad = torch.from_numpy(grad.copy())
        optimizer.step()
        return [weight.detach().numpy() for weight in weights]

    check_tensors_in_an_optimizer(make_step, handle.state_dict)
    assert optimizer.state_dict()["unified_clip"] == handle.state_dict()

    def unit_step(values: Any, grad: Any) -> Any:
        weight = torch.nn.Parameter(torch.from_numpy(values.copy()))
        weight.grad, units = torch.from_numpy(grad.copy()), torch.optim.SGD([weight], lr=1.0)
        with UNITS.attach_to(units):
            units.step()
        assert units.state_dict().keys() == optimizer.state_dict().keys() - {"unified_clip"}
        return weight.detach().numpy()

    check_units_in_an_optimizer(unit_step)


def weights_and_step() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer, Any]:
    weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=1.0)

    def make_step(gradients: Any, clip: Any = lambda: None) -> Any:
        for weight, grad in zip(weights, gradients, strict=True):
            weight.data.zero_()
            weight.grad = None if grad is None else torch.from_numpy(grad.copy())
        clip()
        optimizer.step()
        return [weight.detach().numpy() for weight in weights]

    return weights, optimizer, make_step


def test_parameters_without_a_gradient_keep_their_places() -> None:
    _, optimizer, step = weights_and_step()
    check_absent_gradients(step, TENSORS.attach_to(optimizer).state_dict)


def test_adagc_goes_on_from_the_optimizers_checkpoint(tmp_path: Path) -> None:
    optimizers = {}

    def begin() -> Any:
        _, optimizer, step = weights_and_step()
        handle = TENSORS.attach_to(optimizer)
        optimizers[handle] = optimizer
        return step, handle

    def restore(stopped: Any, handle: Any) -> None:
        torch.save(optimizers[stopped].state_dict(), tmp_path / "optimizer.pt")
        optimizers[handle].load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))

    check_tensors_resume(begin, restore)


@pytest.mark.parametrize("config", [CONFIG, TENSORS], ids=["zclip", "adagc"])
def test_accelerates_checkpoints_have_the_state(tmp_path: Path, config: ClipConfig) -> None:
    accelerate = pytest.importorskip("accelerate")
    from unified_clip.integrations.accelerate_clip import clip_

    def begin() -> Any:
        accelerator, (weights, _, make_step), clip = (
            accelerate.Accelerator(cpu=True),
            weights_and_step(),
            config.clipper(),
        )
        accelerator.register_for_checkpointing(clip)
        return accelerator, clip, lambda grads: make_step(grads, lambda: clip_(accelerator, clip, weights))

    _, whole, step = begin()
    expected = [[each.copy() for each in step([gradient(each) for each in norms])] for norms in TENSOR_NORMS]
    accelerator, _, step = begin()
    for norms in TENSOR_NORMS[:8]:
        step([gradient(each) for each in norms])
    accelerator.save_state(str(tmp_path))
    accelerator, resumed, step = begin()
    accelerator.load_state(str(tmp_path))
    for norms, right in zip(TENSOR_NORMS[8:], expected[8:], strict=True):
        np.testing.assert_array_equal(step([gradient(each) for each in norms]), right)
    assert resumed.state_dict() == whole.state_dict()
    assert whole.state_dict()["step"] == len(TENSOR_NORMS)


@pytest.mark.parametrize("is_saved", [True, False])
def test_pytorchs_checkpoint_functions_make_no_step_of_the_threshold(is_saved: bool) -> None:
    """These functions make a step with gradients of 0 if the optimizer has no state."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    handle = CONFIG.attach_to(optimizer)
    model.weight.grad = torch.tensor([[0.0, 2.0, 0.0]])
    optimizer.step()
    optimizer.zero_grad()
    state = handle.state_dict()
    saved = get_optimizer_state_dict(model, optimizer)
    if not is_saved:
        with pytest.warns(ClipWarning, match="The checkpoint has no state of the adaptive threshold"):
            set_optimizer_state_dict(model, optimizer, saved)
    assert handle.state_dict() == state
    assert state["step"] == 1
    model.weight.grad = torch.tensor([[0.0, 4.0, 0.0]])
    optimizer.step()
    assert handle.state_dict()["adaptive"][""]["state"]["mean"] == 3.0


def test_a_checkpoint_without_the_state_gives_a_warning() -> None:
    _, optimizer, _ = training()
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=1.0)
    with pytest.warns(ClipWarning, match="The checkpoint has no state of the adaptive threshold"):
        optimizer.load_state_dict(plain.state_dict())


def test_optimizers_with_fixed_thresholds_have_the_checkpoints_of_pytorch() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=1.0)
    before = optimizer.state_dict()
    with ClipConfig(rule="global_norm", threshold=1.0).attach_to(optimizer):
        assert optimizer.state_dict() == before
    with CONFIG.attach_to(optimizer):
        assert optimizer.state_dict().keys() == {*before, "unified_clip"}
    assert optimizer.state_dict() == before


NORMS = 3 * [norm for norm in adaptive.NORMS if norm < 1e20][:20]
"""The norms of three epochs. Transformers changes gradients with larger norms."""


class Module(torch.nn.Module):
    """A loss whose gradient in step i has the norm NORMS[i]. The gradient of the second weight has twice this norm."""

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(3) for _ in range(weights))

    def forward(self, inputs: torch.Tensor, **ignored: Any) -> dict[str, torch.Tensor]:
        return {"loss": sum(((1 + index) * weight * inputs).sum() for index, weight in enumerate(self.weights))}

    @property
    def numbers(self) -> torch.Tensor:
        return torch.cat([weight.detach().clone() for weight in self.weights])


CONFIGS = [pytest.param(CONFIG, 1, id="zclip"), pytest.param(TENSORS, 2, id="adagc")]


def states(config: ClipConfig, weights: int) -> dict[str, Any]:
    clip = config.clipper()
    for norm in NORMS:
        clip([(1 + index) * gradient(norm) for index in range(weights)])
    result: dict[str, Any] = clip.state_dict()["adaptive"]
    return result


def rows() -> list[dict[str, torch.Tensor]]:
    return [{"inputs": torch.from_numpy(gradient(norm))} for norm in NORMS]


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:.*resuming from a checkpoint",
    "ignore:.*isinstance.treespec, LeafSpec.:FutureWarning",
    "ignore:.*isinstance.treespec, LeafSpec.:DeprecationWarning",
)
@pytest.mark.parametrize(("config", "weights"), CONFIGS)
def test_lightning_checkpoints_have_the_state(tmp_path: Path, config: ClipConfig, weights: int) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from unified_clip.integrations.lightning_callback import ClipCallback

    class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Module(weights)

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.inner(batch["inputs"][0])["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fitted(epochs: int, **options: Any) -> tuple[Any, Any, torch.Tensor]:
        clip, module = ClipCallback(config, log_every=0), Lit()
        trainer = lightning.Trainer(
            default_root_dir=tmp_path, max_epochs=epochs, callbacks=[clip], logger=False, accelerator="cpu",
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(module, torch.utils.data.DataLoader(rows()[:20], shuffle=False), **options)
        return trainer, clip, module.inner.numbers

    _, whole, weight = fitted(3)
    trainer, _, _ = fitted(2)
    trainer.save_checkpoint(tmp_path / "first.ckpt")
    _, resumed, same = fitted(3, ckpt_path=tmp_path / "first.ckpt")
    assert resumed.state_dict() == whole.state_dict()
    assert torch.equal(weight, same)
    assert whole.state_dict()["clips"][0]["adaptive"] == states(config, weights)


@pytest.mark.parametrize("restore", [False, *nightly(True)])
@pytest.mark.parametrize(("config", "weights"), CONFIGS)
def test_transformers_checkpoints_have_the_state(
    tmp_path: Path, config: ClipConfig, weights: int, restore: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    if not is_at_least("torch", "2.6"):
        pytest.skip("with older releases of PyTorch, Transformers warns or refuses to resume")
    from support.trainers.transformers_trainer import InOrder

    from unified_clip.integrations.transformers_callback import ClipCallback

    def trained(steps: int, folder: str, **options: Any) -> tuple[Any, torch.Tensor]:
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / folder), per_device_train_batch_size=1, max_steps=steps, max_grad_norm=0.0,
            lr_scheduler_type="constant", save_strategy="steps", save_steps=40,
            report_to="none", disable_tqdm=True, use_cpu=True, logging_strategy="no", remove_unused_columns=False,
            restore_callback_states_from_checkpoint=restore,
        )  # fmt: skip
        model = Module(weights)
        trainer = InOrder(
            model, arguments, train_dataset=rows(), callbacks=[ClipCallback(config)],
            optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
            data_collator=lambda batch: batch[0],
        )  # fmt: skip
        trainer.train(**options)
        (clip,) = [each for each in trainer.callback_handler.callbacks if isinstance(each, ClipCallback)]
        return clip, model.numbers

    whole, weight = trained(60, "whole")
    trained(40, "first")
    resumed, same = trained(60, "second", resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-40"))
    assert resumed.state_dict() == whole.state_dict()
    assert whole.state_dict()["adaptive"] == states(config, weights)
    assert torch.equal(weight, same)
