"""Sentences about recordings without calls, and which recordings can be read."""

from __future__ import annotations

from collections.abc import Collection

from ..recorder.hooks import NOT_RECORDED
from ..recorder.lines import SCHEMA

READABLE = (1, 2, SCHEMA)

NO_CALLS = (
    "No clip calls were recorded. Recordings contain the calls of unified_clip and of the functions that "
    "docs/recording.md lists. Turn off torch.compile and jit_compile=True: calls inside them are not recorded. "
    'If the code does not clip, call ClipConfig(rule="none").attach_to(optimizer) to record the norms of its gradients.'
)


NOT_REPORTED = f"{NOT_RECORDED}, because that graph cannot report values"

NO_PROCESS = (
    "No clip calls were recorded, because no Python process that imports unified_clip or a framework was recorded. Put "
    "the training command after --, as in: unified-clip record run.jsonl -- python train.py. Processes in containers, "
    "on other machines, or with Python's option -I, -E or -S are not recorded."
)


def failure(exit_status: int | None) -> str:
    """Return a sentence about a command that failed, or "". A negative status is a signal."""
    if not exit_status:
        return ""
    end = f"failed with exit status {exit_status}" if exit_status > 0 else f"was ended by signal {-exit_status}"
    return f"The recorded command {end}."


def without_calls(exit_status: int | None, processes: Collection[object]) -> str:
    """Both arguments are from the header. `exit_status` is None if no command was recorded."""
    if failed := failure(exit_status):
        return f"No clip calls were recorded. {failed} Correct the command, and record it to another file."
    return NO_CALLS if processes or exit_status is None else NO_PROCESS
