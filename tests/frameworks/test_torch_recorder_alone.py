"""The folder `recorder` alone records the same as `unified-clip record`, also without the names of newer releases."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.recorder_alone import differences, lines, record_alone, record_by_command

TRAIN = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.OPTIMIZER
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(2):
            model(torch.randn(16, 6)).square().mean().backward()
        CLIP
        optimizer.step()
        schedule.step()
"""

OLD = (
    "import torch; del sys.modules['torch.optim.optimizer'].register_optimizer_step_pre_hook; "
    "del torch.optim.Optimizer.register_step_pre_hook; del torch._C._current_graph_task_id; "
)
"""PyTorch 1 lacks these names."""


@pytest.mark.parametrize("before", ["", OLD], ids=["new names", "old names"])
@pytest.mark.parametrize(
    ("optimizer", "clip"),
    [
        ("Adam(model.parameters(), 0.01)", "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)"),
        ("SGD(model.parameters(), 0.1, 0.9)", "torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)"),
        ("SGD(model.parameters(), 0.1)", "[each.grad.mul_(0.5) for each in model.parameters()]"),
        ("AdamW([{'params': [each], 'lr': 0.01} for each in model.parameters()])", "pass"),
    ],
)
def test_it_records_the_same_as_the_command(tmp_path: Path, before: str, optimizer: str, clip: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN).replace("OPTIMIZER", optimizer).replace("CLIP", clip), encoding="utf-8")
    alone, command = lines(record_alone(script, before)), lines(record_by_command(script))
    clips = 4 if "utils" in clip else 0
    assert [sum("rule" in line for line in alone), sum("optimizer" in line for line in alone)] == [clips, 4]
    assert differences(alone, command) == {}


def test_a_failing_recorder_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = textwrap.dedent(TRAIN).replace("OPTIMIZER", "SGD(model.parameters(), 0.1)").replace("CLIP", "pass")
    script.write_text(text + "torch.save(model.state_dict(), 'ended.pt')", encoding="utf-8")
    record_alone(script, "import numpy; numpy.ravel_multi_index = None; ")
    assert [line for line in lines(tmp_path / "alone.jsonl") if "warning" in line]
    assert (tmp_path / "ended.pt").exists()
