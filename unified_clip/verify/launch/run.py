"""Run the old and the new training step on the same weights and batches, each in its own process."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ..._command.progress import Advance, unseen
from ..._kit import atomic_files, install, workers
from ..._kit.scratch import Scratch
from ..errors import VerifyError, WorkerError
from .input_files import Arrays, Batches
from .outputs import OUTPUT, ScriptRun, read_outputs
from .script import Script


def make_directory(path: Path) -> Path:
    names = ("old", "new")
    if present := [name for name in names if os.path.lexists(path / name)]:  # also links to missing files
        remedy = "Pass another directory to --out. If an earlier run wrote these files, you can also remove them."
        raise VerifyError(f"--out {path} contains {', '.join(present)} already. {remedy}", "UC206")
    atomic_files.make_directory(path)
    return path


def run(
    scripts: Sequence[Script],
    weights: Arrays,
    batches: Batches,
    out: Path,
    timeout: float,
    *,
    advance: Advance = unseen,
) -> list[ScriptRun]:
    with ExitStack() as stack:
        scratch = stack.enter_context(Scratch("verify"))
        np.savez(scratch.path / "weights.npz", **weights)  # type: ignore[arg-type]  # names are any strings
        by_step = {f"{step}/{name}": each for step, batch in enumerate(batches, 1) for name, each in batch.items()}
        np.savez(scratch.path / "batches.npz", **by_step)  # type: ignore[arg-type]
        for script in scripts:
            (out / script.side).mkdir()
        started = [stack.enter_context(_start(script, scratch, out / script.side)) for script in scripts]
        until = time.monotonic() + timeout
        done = Counter[str]()

        def poll() -> bool:
            for side in (script.side for script in scripts):
                while (out / side / OUTPUT.format(done[side] + 1)).exists():
                    done[side] += 1
                    advance(side, 1)
            return False

        for script, worker in zip(scripts, started, strict=True):
            _check_end(script, worker.wait(max(0.0, until - time.monotonic()), poll), timeout)
    return [read_outputs(script, out / script.side, len(batches)) for script in scripts]


def _check_end(script: Script, end: workers.Exit, timeout: float) -> None:
    if end.code is None:
        remedy = "Pass a higher --timeout, or correct the step if it hangs."
        raise WorkerError(f"{script} has not ended after {timeout:g} seconds: {end}. {remedy}")
    if end.code:
        repeat = f"To repeat the error, call {script.name}(weights, batches) in Python. Then correct the error."
        raise WorkerError(f"{script} failed: {end}. {_not_installed(script, end) or repeat}")


def _start(script: Script, scratch: Scratch, out: Path) -> workers.Worker:
    arguments = [
        script.python,
        "-X",
        "faulthandler",
        "-m",
        "unified_clip.verify.launch.worker",
        str(script.file),
        script.name,
    ]
    try:
        return workers.Worker([*arguments, str(scratch.path), str(out)], scratch)
    except OSError as error:
        raise VerifyError(
            f"{script.python} cannot be started: {error.strerror}. Pass another --python-{script.side}.", "UC203"
        ) from None


def _not_installed(script: Script, end: workers.Exit) -> str:
    if script.python == sys.executable or not end.stderr or not end.stderr[-1].startswith("ModuleNotFoundError"):
        return ""
    pip = f"{script.python} -m pip install PACKAGE"
    own = f"{script.python} -m {install.command('cli')}"
    return f"Install the package of this module: {pip}. If unified_clip needs this module, type {own}"
