"""The example in docs/distributed.md runs, and prints the output on the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ENDED_BADLY = "terminate called without an active exception"
"""The message of PyTorch's threads if they abort a process that ends after a backward pass of FSDP2 on a CPU."""

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"


@pytest.mark.nightly
def test_the_example_runs_on_several_processes(tmp_path: Path) -> None:
    code, printed = re.findall(r"```python\n# train.py(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (tmp_path / "train.py").write_text(code.partition("\n")[2])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    for _ in range(4):
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        if ENDED_BADLY not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
