"""A checker of types sees signatures with the types of each framework, though functions are written once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

USE = """
import unified_clip.numpy as uc

reveal_type(uc.clip_by_global_norm([], 1.0))
clip: uc.GradientClipByNorm = uc.ClipGradByNorm(clip_norm=1.0)
uc.clip_grad_norm_([], max_nrom=1.0)
uc.global_norm()
"""


def test_mypy_sees_the_signatures_and_the_types_of_a_framework(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "use.py"]
    environment = {"MYPYPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    lines = [re.sub(r"^use.py:(\d+): ", r"\1 ", line) for line in done.stdout.splitlines()]
    assert 'note: Revealed type is "tuple[Any, numpy.floating[Any]]"' in lines[0]
    assert [(line.split()[0], line.rpartition("[")[2]) for line in lines[1:3]] == [
        ("6", "call-arg]"),
        ("7", "call-arg]"),
    ]
    assert done.stderr == ""
