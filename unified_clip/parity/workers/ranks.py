"""Modes in which several processes hold the gradients: all of them make the same runs in step, and the first tells."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...tensors import types
from ...tensors.types import Dense
from ..adapters.base import Adapter
from ..modes import DISTRIBUTED, PROCESSES


@contextmanager
def process_group(framework: str, adapter: Adapter, mode: str, rank: int, meeting: Path) -> Iterator[Adapter]:
    """Yield the adapter for a mode. If the mode has several ranks, join their process group; rank 0 starts the others.

    meeting: A file that does not exist yet, by which the ranks find each other.
    """
    if mode not in PROCESSES:
        yield adapter
        return
    others = [_another(mode, number) for number in range(1, PROCESSES[mode])] if rank == 0 else []
    module = importlib.import_module(f"unified_clip.parity.adapters.{DISTRIBUTED[framework]}")
    with module.process_group(rank, PROCESSES[mode], meeting) as sharded:
        yield sharded
    statuses = [process.wait() for process in others]
    if any(statuses):
        raise SystemExit("not all of the processes ended as they should")


def _another(mode: str, rank: int) -> subprocess.Popen[bytes]:
    """This process once more. It does not outlive this one: see `worker.exit_when_orphaned`."""
    own = sys.orig_argv[1:]
    return subprocess.Popen([sys.executable, *own, "--mode", mode, "--rank", str(rank)], stdin=subprocess.DEVNULL)


def check_in_step(adapter: Adapter, come_to: str) -> None:
    """End where another process has come to something else: what they would send each other next would not fit."""
    _told(adapter, come_to, "")


def compare(adapter: Adapter, told: Mapping[str, Any], found: Mapping[str, Dense]) -> str:
    """What is wrong with what the processes have in the end, which has to be the same; '' if nothing."""
    everywhere = _told(adapter, "a result", f"{types.digest(found.values())}, {told['warned']}")
    others = [f"rank {rank}" for rank, each in enumerate(everywhere) if each != everywhere[0]]
    return f"came to something else on {', '.join(others)} than on rank 0" if others else ""


def _told(adapter: Adapter, come_to: str, own: str) -> list[str]:
    """What each process tells, where all have come to the same."""
    places, everywhere = zip(*map(json.loads, adapter.all_gather_text(json.dumps([come_to, own]))), strict=True)
    if len(set(places)) > 1:
        said = ", ".join(f"rank {rank} came to {place}" for rank, place in enumerate(places))
        raise SystemExit(f"the processes are no longer in step: {said}")
    return list(everywhere)
