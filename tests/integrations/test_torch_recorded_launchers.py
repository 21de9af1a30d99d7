"""`unified-clip record` of commands that train by Accelerate and by Lightning."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from unified_clip.recording import runs

pytestmark = pytest.mark.nightly

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}

ACCELERATE = """
    import torch
    from accelerate import Accelerator

    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.randn(32, 6), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for batch in data:
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    accelerator.end_training()
"""

LIGHTNING = """
    import lightning.pytorch as pl
    import torch

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(6, 1)

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, gradient_clip_val=0.25
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(32, 6), batch_size=4))
"""

ACCELERATE_LAUNCH = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1")
ACCELERATE_LAUNCH += ("--mixed_precision", "no", "--dynamo_backend", "no")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29741")


def record(folder: Path, script: str, *launcher: str) -> runs.RecordedRun:
    (folder / "train.py").write_text(textwrap.dedent(script), encoding="utf-8")
    own = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--", sys.executable, *launcher, "train.py"]
    subprocess.run(own, cwd=folder, env=ENVIRONMENT, check=True, timeout=300)
    return runs.read(folder / "run.jsonl")


@pytest.mark.parametrize(
    ("script", "launcher", "ranks", "steps"),
    [(ACCELERATE, ACCELERATE_LAUNCH, 1, 8), (ACCELERATE, TORCHRUN, 2, 4), (LIGHTNING, (), 1, 8)],
    ids=["accelerate launch", "Accelerate in two processes", "Lightning"],
)
def test_each_step_of_each_rank_is_recorded(
    tmp_path: Path, script: str, launcher: tuple[str, ...], ranks: int, steps: int
) -> None:
    run = record(tmp_path, script, *launcher)
    assert len(run.header.processes) == ranks
    for lines in (run.lines, *run.others):
        assert [line.call for line in lines] == ["torch.nn.utils.clip_grad_norm_"] * steps
        assert {line.threshold for line in lines} == {0.25}
        assert [line.norm for line in lines] == [line.norm for line in run.lines]
    assert [step.calls for step in run.optimizer_steps] == list(range(1, steps + 1))
