"""Run a training step again with some transposed initial weights."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..errors import VerifyError, WorkerError
from . import run
from .input_files import Arrays, Batches
from .outputs import ScriptRun
from .script import Script


def run_transposed(
    script: Script, weights: Arrays, batches: Batches, scratch: Path, timeout: float, names: Collection[str]
) -> ScriptRun | None:
    """Run the training step with some transposed initial weights. Return None if the step fails."""
    directory = scratch / "-".join(map(str, sorted(map(list(weights).index, names))))
    directory.mkdir(parents=True)
    changed = {name: array.T.copy() if name in names else array for name, array in weights.items()}
    try:
        return run.run([script], changed, batches, directory, timeout)[0]
    except (VerifyError, WorkerError):
        return None
