"""`unified-clip record` of a script that `paddle.distributed.launch` starts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from unified_clip.recording import runs

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}

TRAIN = """
    import paddle
    import paddle.distributed as dist

    dist.init_parallel_env()
    paddle.seed(0)
    model = paddle.DataParallel(paddle.nn.Linear(6, 1))
    clip = paddle.nn.ClipGradByGlobalNorm(0.25)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
    for step in range(3):
        model(paddle.ones([4, 6]) * (dist.get_rank() + 1)).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
"""


@pytest.mark.nightly
def test_each_rank_of_paddles_launcher_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN), encoding="utf-8")
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo", "train.py"]
    record = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--", sys.executable]
    subprocess.run([*record, *launch], cwd=tmp_path, env=ENVIRONMENT, check=True, timeout=300)
    run = runs.read(tmp_path / "run.jsonl")
    assert [(process.rank, process.ranks) for process in run.header.processes] == [(0, 2), (1, 2)]
    norms = [[line.norm for line in lines] for lines in (run.lines, *run.others)]
    assert len(norms[0]) == 3
    assert norms[0] == norms[1]
