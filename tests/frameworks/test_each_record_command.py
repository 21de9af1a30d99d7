"""`unified-clip record` of scripts that train by a framework, also in several ranks, leaves equal weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.kits import Kit
from support.tiers import where

from unified_clip.recording import runs

pytestmark = [pytest.mark.nightly, pytest.mark.graphs, where(lambda kit: kit.name in TRAIN and kit.exact)]

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}

TORCH = """
import os
import torch
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for number, batch in enumerate(torch.randn(4, 16, 6)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    # END
print([p.detach().numpy().tobytes().hex() for p in model.parameters()])
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
"""

PADDLE = """
import os
import paddle
import paddle.distributed as dist

paddle.seed(0)
model, rank = paddle.nn.Linear(6, 1), 0
if "PADDLE_TRAINER_ENDPOINTS" in os.environ:
    dist.init_parallel_env()
    model, rank = paddle.DataParallel(model), dist.get_rank()
clip = paddle.nn.ClipGradByGlobalNorm(0.25)
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
for step in range(4):
    model(paddle.ones([4, 6]) * (rank + 1)).square().mean().backward()
    optimizer.step()
    optimizer.clear_grad()
print([p.numpy().tobytes().hex() for p in model.parameters()])
"""

KERAS = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(0.1, clipnorm=0.5), "mse")
model.fit(np.ones((16, 3)), np.zeros((16, 2)), batch_size=4, verbose=0)
print([weight.tobytes().hex() for weight in model.get_weights()])
"""

TRAIN = {
    "torch": (TORCH, "torch.nn.utils.clip_grad_norm_"),
    "paddle": (PADDLE, "paddle.nn.ClipGradByGlobalNorm"),
    "tensorflow": (KERAS, "keras.optimizers.Adam(clipnorm=)"),
}
LAUNCH = {
    "torch": ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29713"],
    "paddle": ["paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo"],
}


def run(folder: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=ENVIRONMENT, timeout=300, capture_output=True, text=True, **options
    )


def record(*command: str) -> list[str]:
    return ["-m", "unified_clip", "record", "run.jsonl", *command[:-1], "--", sys.executable, command[-1]]


@pytest.fixture
def folder(kit: Kit, tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN[kit.name][0], encoding="utf-8")
    return tmp_path


def test_recording_leaves_every_bit_of_the_weights(kit: Kit, folder: Path) -> None:
    alone = run(folder, "train.py", check=True)
    for options in ([], ["--norms"]):
        recorded = run(folder, *record(*options, "train.py"), check=True)
        assert recorded.stdout.splitlines()[-1] == alone.stdout.splitlines()[-1]
        assert "unified-clip:" not in recorded.stderr
        lines = runs.read(folder / "run.jsonl").lines
        assert [line.call for line in lines] == [TRAIN[kit.name][1]] * 4
        assert {bool(line.parameters) for line in lines} == {bool(options)}


@where(lambda kit: kit.name in LAUNCH)
def test_each_rank_of_a_launcher_is_recorded(kit: Kit, folder: Path) -> None:
    run(folder, *record("-m")[:-1], "-m", *LAUNCH[kit.name], "train.py", check=True)
    recorded = runs.read(folder / "run.jsonl")
    assert [(process.rank, process.ranks) for process in recorded.header.processes] == [(0, 2), (1, 2)]
    norms = [[line.norm for line in lines] for lines in (recorded.lines, *recorded.others)]
    assert len(norms[0]) == 4
    assert norms[0] == norms[1]


@where(lambda kit: kit.name == "torch")
@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(3)", 3), ("raise ValueError('no data')", 1), ("os.kill(os.getpid(), 2)", -2)]
)
def test_the_file_is_complete_up_to_the_end_in_the_middle_of_training(folder: Path, ending: str, status: int) -> None:
    (folder / "train.py").write_text(TORCH.replace("# END", f"import sys\n    if number == 1: {ending}"))
    restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731  # a background shell ignores it
    assert run(folder, *record("train.py"), preexec_fn=restore).returncode == status
    recorded = runs.read(folder / "run.jsonl")
    assert len(recorded.lines) == len(recorded.optimizer_steps) == 2
