"""Log collectives that wait long for other ranks. Some frameworks wait for half an hour, or forever."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 60.0
"""Seconds after which a rank logs that it waits."""

REJECTION_PATIENCE = 10.0
"""The same for a rank that waits with an error."""

INTERVAL = 1.0
"""Seconds between two looks at the waiting calls."""

_WAITS: dict[object, tuple[float, int, Callable[[], str]]] = {}
"""The deadline of each waiting call, its level of logging, and its message."""

_STARTING = threading.Lock()
_WATCH: list[threading.Thread] = []


@contextmanager
def logged(patience: float, level: int, message: Callable[[], str]) -> Iterator[None]:
    """Log a message if the block takes longer than `patience` seconds. One thread watches the blocks of a process."""
    wait = object()
    _WAITS[wait] = time.monotonic() + patience, level, message
    _start()
    try:
        yield
    finally:
        _WAITS.pop(wait, None)


def _start() -> None:
    """Start the thread, also in a process that was forked, which does not have it."""
    with _STARTING:
        if not any(thread.is_alive() for thread in _WATCH):
            _WATCH[:] = [threading.Thread(target=_watch, name="unified_clip waits", daemon=True)]
            _WATCH[0].start()


def _watch() -> None:
    while True:
        time.sleep(INTERVAL)
        for wait, (deadline, level, message) in list(_WAITS.items()):
            if time.monotonic() > deadline and _WAITS.pop(wait, None) is not None:
                logging.getLogger("unified_clip").log(level, message())
