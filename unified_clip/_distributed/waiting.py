"""Log a message if a collective waits long for other ranks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 60.0
"""After this number of seconds, a waiting rank logs a message."""

REJECTION_PATIENCE = 10.0
"""The same as PATIENCE, for a collective that sends an error."""

INTERVAL = 1.0
"""The number of seconds between two checks of the waiting calls."""

_WAITS: dict[object, tuple[float, int, Callable[[], str]]] = {}

_STARTING = threading.Lock()
_WATCH: list[threading.Thread] = []


@contextmanager
def logged(patience: float, level: int, message: Callable[[], str]) -> Iterator[None]:
    """Log a message if the `with` block takes longer than `patience` seconds. All calls share one thread."""
    wait = object()
    _WAITS[wait] = time.monotonic() + patience, level, message
    _start()
    try:
        yield
    finally:
        _WAITS.pop(wait, None)


def _start() -> None:
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
