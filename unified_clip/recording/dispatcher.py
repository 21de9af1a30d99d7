"""Pass each clip call to the recorders that are active."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from .._core import watch
from .._core.watch import Clip

Recording = Any
"""`recorder.Recording`. Its module imports this one."""

NOT_CLIPS = ("get_total_norm", "global_norm", "set_gradient_clip")
"""Public functions that clip nothing."""


class Call:
    """A running call."""

    def __init__(self, name: str, recorders: Sequence[Recording]) -> None:
        self.entries = [recorder.begin(name) for recorder in recorders]
        self.recording = 0.0
        """Seconds spent on recording it."""


class Dispatcher:
    """The `watch.Watcher` of the process, which passes clips to every recorder."""

    def __init__(self) -> None:
        self._recorders: tuple[Recording, ...] = ()
        self._changing = threading.Lock()
        self._thread = threading.local()
        self.in_detail = self.norms = False

    def add(self, recorder: Recording) -> None:
        self._change(lambda recorders: (*recorders, recorder))

    def remove(self, recorder: Recording) -> None:
        self._change(lambda recorders: tuple(each for each in recorders if each is not recorder))

    def _change(self, change: Callable[[tuple[Recording, ...]], tuple[Recording, ...]]) -> None:
        with self._changing:
            self._recorders = change(self._recorders)
            self.in_detail = any(recorder.in_detail for recorder in self._recorders)
            self.norms = any(recorder.norms for recorder in self._recorders)
            watch.watcher = self if self._recorders else None

    def after_fork(self) -> None:
        """Reset in a forked process. A lock that another thread of the parent held would stay locked."""
        self._changing = threading.Lock()
        for recorder in self._recorders:
            recorder.after_fork()
        self._change(lambda _: ())

    def run(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if body.__name__ in NOT_CLIPS or self._running is not None:  # a call inside a call is a part of it
            return body(*args, **kwargs)
        call = self._thread.call = Call(_name(body, args), self._recorders)
        failure = None
        started = perf_counter()
        try:
            return body(*args, **kwargs)
        except BaseException as error:
            failure = error
            raise
        finally:
            seconds = perf_counter() - started - call.recording
            self._thread.call = None
            for entry in call.entries:
                entry.end(seconds, failure)

    def see(self, clip: Clip) -> None:
        call = self._running
        if call is None:
            return
        started = perf_counter()
        for entry in call.entries:
            entry.see(clip)
        call.recording += perf_counter() - started

    def miss(self, framework: str) -> None:
        for recorder in self._recorders:
            recorder.miss(framework)

    @property
    def is_running(self) -> bool:
        """Whether a call is running in this thread."""
        return self._running is not None

    @property
    def _running(self) -> Call | None:
        return getattr(self._thread, "call", None)


def _name(body: Callable[..., Any], args: Sequence[Any]) -> str:
    """Return the public name of a call."""
    kind = getattr(args[0], "recorded_as", None) if args else None
    if kind is None:
        return body.__name__
    return kind if body.__name__ == "__call__" else f"{kind}.{body.__name__}"


DISPATCHER = Dispatcher()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=DISPATCHER.after_fork)
