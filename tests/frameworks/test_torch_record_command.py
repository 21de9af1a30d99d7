"""`unified-clip record` of scripts that train by PyTorch's own functions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from unified_clip.recording import runs

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}

TRAIN = """
    import os, sys
    import torch
    from torch.nn.utils import clip_grad_norm_

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 16, 6)
    for batch in inputs:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    torch.save([p.detach().clone() for p in model.parameters()], sys.argv[1])
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN), encoding="utf-8")
    return tmp_path


def run(folder: Path, *command: str) -> None:
    subprocess.run([sys.executable, *command], cwd=folder, env=ENVIRONMENT, check=True, timeout=300)


RECORD = ("-m", "unified_clip", "record")


@pytest.mark.nightly
def test_recording_leaves_every_bit_of_the_weights(folder: Path) -> None:
    run(folder, "train.py", "alone.pt")
    for options in ([], ["--norms"]):
        file = f"run{len(options)}.jsonl"
        run(folder, *RECORD, file, *options, "--", sys.executable, "train.py", "recorded.pt")
        assert same_weights(folder)
        lines = runs.read(folder / file).lines
        assert [line.call for line in lines] == ["torch.nn.utils.clip_grad_norm_"] * 4
        assert [len(line.parameters) for line in lines] == [4 * len(options)] * 4


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(3)", 3), ("raise ValueError('no data')", 1), ("os.kill(os.getpid(), 2)", -2)]
)
def test_the_file_is_complete_up_to_the_end_in_the_middle_of_training(folder: Path, ending: str, status: int) -> None:
    script = (folder / "train.py").read_text(encoding="utf-8")
    step = "    optimizer.step()\n"
    assert script.count(step) == 1
    ended = script.replace(step, f"{step}    if batch is not inputs[0] and (batch == inputs[1]).all(): {ending}\n")
    (folder / "train.py").write_text(ended, encoding="utf-8")
    command = [sys.executable, *RECORD, "run.jsonl", "--", sys.executable, "train.py", "recorded.pt"]
    restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731  # a background shell ignores it
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=False, timeout=300, preexec_fn=restore)
    assert done.returncode == status
    recorded = runs.read(folder / "run.jsonl")
    assert len(recorded.lines) == len(recorded.optimizer_steps) == 2


def same_weights(folder: Path) -> bool:
    import torch

    weights = [torch.load(folder / name) for name in ("alone.pt", "recorded.pt")]
    return all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.nightly
def test_each_rank_of_torchrun_is_recorded(folder: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29713", "train.py")
    run(folder, *RECORD, "run.jsonl", "--", sys.executable, *launch, "recorded.pt")
    recorded = runs.read(folder / "run.jsonl")
    assert [(process.rank, process.ranks) for process in recorded.header.processes] == [(0, 2), (1, 2)]
    norms = [[line.norm for line in lines] for lines in (recorded.lines, *recorded.others)]
    assert len(norms[0]) == 4
    assert norms[0] == norms[1]
