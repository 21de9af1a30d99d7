"""PyTorch's script, the file of LightningCLI, and the examples of docstrings run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.trainers.torch_training import EXAMPLES, plain_records

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("accelerate_state")]

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
EXAMPLE = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```", re.DOTALL)


def test_the_file_of_lightning_cli_clips(tmp_path: Path) -> None:
    pytest.importorskip("jsonargparse")
    text = (PAGES / "lightning.md").read_text(encoding="utf-8")
    (code, _), *_ = EXAMPLE.findall(text)
    (tmp_path / "config.yaml").write_text(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
    script = f"""{code.partition("pl.seed_everything")[0]}
from lightning.pytorch.cli import LightningCLI

cli = LightningCLI(Regression, run=False, save_config_callback=None)
(clip,) = [each for each in cli.trainer.callbacks if type(each).__name__ == "ClipCallback"]
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=16)
cli.trainer.fit(cli.model, data)
print(clip.last.clipped, round(clip.last.norm_clipped, 3))
"""
    options = ["max_epochs=1", "accelerator=cpu", "logger=false", "enable_checkpointing=false"]
    command = [sys.executable, "-c", script, "--config", "config.yaml", *(f"--trainer.{each}" for each in options)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True 1.0"


def test_the_script_makes_the_records_of_a_plain_loop(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_torch.py"), str(tmp_path / "run.jsonl")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    printed = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    lines = map(json.loads, (tmp_path / "run.jsonl").read_text(encoding="utf-8").splitlines()[1:])
    lines = [line for line in lines if "call" in line]
    expected = plain_records(tmp_path / "plain.jsonl")
    unlike = {"seconds": None, "place": None}
    assert [line | unlike for line in lines] == [line | unlike for line in expected]
    assert f"'grad_norm': {expected[-1]['norm']!r}" in printed
