"""Run the modes that need several ranks. All ranks run the same cases in the same order. Rank 0 writes the results."""

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
    """Yield the adapter to use in a mode.

    For a mode with several ranks: start the other ranks, join the process group, and yield an adapter that makes
    distributed tensors. For any other mode, yield `adapter` itself.

    rank: The rank of this process. Only rank 0 starts other ranks.
    meeting: A file that all ranks use to find each other.

    SystemExit: another rank ended with an error.
    """
    if mode not in PROCESSES:
        yield adapter
        return
    # The same command line, as another rank. The other rank exits with this process: see `_workers.prepare`.
    again = [sys.executable, *sys.orig_argv[1:], "--mode", mode, "--rank"]
    numbers = range(1, PROCESSES[mode]) if rank == 0 else ()
    others = [subprocess.Popen([*again, str(number)], stdin=subprocess.DEVNULL) for number in numbers]
    module = importlib.import_module(f"unified_clip.parity.adapters.{DISTRIBUTED[framework]}")
    with module.process_group(rank, PROCESSES[mode], meeting) as sharded:
        yield sharded
    statuses = [process.wait() for process in others]
    if any(statuses):
        raise SystemExit("a rank other than 0 ended with an error. Read its traceback above, and correct the cause")


def compare_ranks(adapter: Adapter, packed: Mapping[str, Any], tensors: Mapping[str, Sequence[Gradient]]) -> str:
    """Return an error that names the ranks whose result differs from the result on rank 0. Return '' if all agree.

    A result is the tensors, and whether the call issued a ClipWarning.

    packed, tensors: The result of this rank, as `worker.pack` returns it.
    """
    bits = digest(densify(gradient) for gradients in tensors.values() for gradient in gradients)
    results = gather_in_step(adapter, "a result", f"{bits}, {packed['warned']}")
    others = [f"rank {rank}" for rank, result in enumerate(results) if result != results[0]]
    return f"the result on {', '.join(others)} differs from that on rank 0" if others else ""


def gather_in_step(adapter: Adapter, step: str, text: str = "") -> list[str]:
    """Send `text` to every rank. Return the texts of all ranks in order.

    step: The point that this rank has reached, in words, such as "the end of a call".

    SystemExit: another rank has ended, or the ranks are at different steps: their texts would not belong together.
    """
    steps, texts = zip(*map(json.loads, adapter.all_gather_text(json.dumps([step, text]))), strict=True)
    if len(set(steps)) > 1:
        where = ", ".join(f"rank {rank} reached {each}" for rank, each in enumerate(steps))
        raise SystemExit(
            f"the ranks are at different steps: {where}. Run the suite again. If they still differ, report a bug of "
            "unified_clip"
        )
    return list(texts)
