"""PyTorch's trainers on a real CUDA device, where there is one: they clip steps with a scaled loss in float16."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.cuda import needs_cuda  # noqa: F401 - a fixture of each test

import unified_clip.torch as uc
from unified_clip import ClipConfig

THRESHOLD = 0.5


@pytest.mark.usefixtures("accelerate_state")
def test_transformers_clips_steps(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from unified_clip.integrations.transformers_callback import ClipCallback

    transformers.set_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    tokens = torch.arange(64).reshape(8, 8) % 16
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_grad_norm=0, max_steps=5, logging_steps=1, save_strategy="no", disable_tqdm=True, fp16=True,
        report_to="none",
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        callbacks=[ClipCallback(ClipConfig(rule="global_norm", threshold=THRESHOLD))],
    )  # fmt: skip
    trainer.train()
    logs = [line for line in trainer.state.log_history if "clip_coef" in line]
    finite = [line for line in logs if math.isfinite(line["grad_norm"])]
    assert len(logs) == 5
    assert finite
    for line in finite:
        expected = min(1.0, THRESHOLD / (line["grad_norm"] + 1e-6))
        assert line["clip_coef"] == pytest.approx(expected, rel=1e-4)
        assert line["grad_norm_clipped"] == pytest.approx(expected * line["grad_norm"], rel=1e-4)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:.*num_workers:UserWarning",
    "ignore:.*logging interval:UserWarning",
)
def test_lightning_clips_steps() -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from unified_clip.integrations.lightning_callback import ClipCallback

    class Regression(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return (self.layers(batch[0]) - 3).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.02)

    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=5, callbacks=[ClipCallback(ClipConfig(rule="global_norm", threshold=THRESHOLD))],
        log_every_n_steps=1, accelerator="gpu", devices=1, precision="16-mixed", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.ones(16, 4))
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=16))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert metrics["grad_norm"] > THRESHOLD
    assert metrics["grad_norm_clipped"] == pytest.approx(THRESHOLD, rel=1e-5)
    assert metrics["clip_coef"] == pytest.approx(THRESHOLD / metrics["grad_norm"], rel=1e-5)


@pytest.mark.usefixtures("accelerate_state")
def test_accelerate_clips_steps() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(mixed_precision="fp16")
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.02))
    data = torch.randn(32, 64, device=accelerator.device)
    handle = ClipConfig(rule="global_norm", threshold=THRESHOLD).attach_to(optimizer, model)
    for _ in range(5):
        accelerator.backward((model(data).float() - data.sum(1, keepdim=True)).pow(2).mean())
        before = handle.step
        optimizer.step()
        if handle.step > before:  # the scaler did not skip the step
            clipped_norm = uc.get_total_norm([parameter.grad for parameter in model.parameters()])
            assert float(clipped_norm) == pytest.approx(min(THRESHOLD, handle.last.norm), rel=1e-5)
        optimizer.zero_grad()
    assert handle.step > 0
