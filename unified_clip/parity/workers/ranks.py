"""Run the modes that need several ranks. All ranks run the same cases, and rank 0 writes the results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...tensors.types import Gradient, densify, digest
from ..adapters.base import Adapter
from ..modes import DISTRIBUTED, PROCESSES


@contextmanager
def process_group(framework: str, adapter: Adapter, mode: str, rank: int, meeting: Path) -> Iterator[Adapter]:
    """Start the ranks of a mode, and yield an adapter for distributed tensors.

    If the mode has only one rank, yield `adapter`.

    meeting: The path of a file through which the ranks connect to each other.
    """
    if mode not in PROCESSES:
        yield adapter
        return
    # The same command line, as another rank. The other rank exits with this process: see `_workers.prepare`.
    again = [sys.executable, *sys.orig_argv[1:], "--rank"]
    numbers = range(1, PROCESSES[mode]) if rank == 0 else ()
    others = [subprocess.Popen([*again, str(number)], stdin=subprocess.DEVNULL) for number in numbers]
    module = importlib.import_module(f"unified_clip.parity.adapters.{DISTRIBUTED[framework]}")
    with module.process_group(rank, PROCESSES[mode], meeting) as sharded:
        yield sharded
    statuses = [process.wait() for process in others]
    if any(statuses):
        raise SystemExit("a rank other than 0 ended with an error. Read its traceback above, and correct the cause")


def compare_ranks(adapter: Adapter, packed: Mapping[str, Any], tensors: Mapping[str, Sequence[Gradient]]) -> str:
    bits = digest(densify(gradient) for gradients in tensors.values() for gradient in gradients)
    results = gather_in_step(adapter, "a result", f"{bits}, {packed['warned']}")
    others = [f"rank {rank}" for rank, result in enumerate(results) if result != results[0]]
    return f"the result on {', '.join(others)} differs from the result on rank 0" if others else ""


def gather_in_step(adapter: Adapter, step: str, text: str = "") -> list[str]:
    """Return the `text` of every rank, in the order of the ranks. Raise SystemExit if the steps of the ranks differ.

    step: The step that this rank has reached, such as "the end of a call".
    """
    steps, texts = zip(*map(json.loads, adapter.all_gather_text(json.dumps([step, text]))), strict=True)
    if len(set(steps)) > 1:
        where = ", ".join(f"rank {rank} reached {each}" for rank, each in enumerate(steps))
        raise SystemExit(
            f"the ranks are at different steps: {where}. Run the suite again. If the steps still differ, report a bug "
            "of unified_clip"
        )
    return list(texts)
