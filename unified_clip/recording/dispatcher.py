"""Pass each clip call to the active recordings."""

from __future__ import annotations

import inspect
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from time import perf_counter
from typing import Any

from .._core import observer
from .._core.observer import Clip
from ..recorder.guard import Call
from ..recorder.hooks import CLIP_CALLS, HOOKS, OUTPUT, RecordingHook

Recording = Any
"""`recorder.Recording`. This module cannot import `recorder`, which imports this module."""

OWN_CALL = RecordingHook("a call of unified_clip", "a call of unified_clip")

FINDERS: list[Callable[[Any], str | None]] = []
"""Functions that return the name of a parameter, for recordings only: a configuration must find the same names with and
without a recording."""

NOT_CLIPS = ("get_total_norm", "global_norm", "set_gradient_clip")


class RunningCall:
    def __init__(self, name: str, recordings: Sequence[Recording]) -> None:
        self.recorders = [recording.begin(name) for recording in recordings]
        self.overhead = 0.0  # seconds that the recordings took
        self.parameters: list[Any] = []
        self.empty: str | None = None
        """The framework, if no clip of the call has a gradient."""

    def add(self, clip: Clip) -> bool:
        for recorder in self.recorders:
            recorder.on_clip(clip)
        only_measures = type(clip.threshold) is float and clip.threshold == math.inf
        self.empty = None if only_measures or clip.group else clip.path.framework
        if OUTPUT.on_clipped and not only_measures:  # building the leaves takes time
            self.parameters += [clip.gradients.leaves[index].parameter for index in clip.group]
        return True


class Dispatcher:
    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._thread = threading.local()
        self.norms = False
        self.on_jax_clips: Callable[[int], object] = lambda count: None

    def add(self, recording: Recording) -> None:
        self._change(lambda recordings: (*recordings, recording))

    def remove(self, recording: Recording) -> None:
        self._change(lambda recordings: tuple(each for each in recordings if each is not recording))

    def _change(self, change: Callable[[Sequence[Recording]], Sequence[Recording]]) -> None:
        with self._changing:
            OUTPUT.recordings, OUTPUT.store = change(OUTPUT.recordings), _copy_of
            OUTPUT.summed.clear()
            self.norms = OUTPUT.norms
            observer.active = self if OUTPUT.recordings else None
            HOOKS.switch(bool(OUTPUT.recordings))

    def after_fork(self) -> None:
        """A forked process needs a new lock, because another thread may hold the lock during the fork."""
        self._changing = threading.Lock()
        for recording in OUTPUT.recordings:
            recording.after_fork()
        self._change(lambda recordings: tuple(each for each in recordings if each.in_directory))

    def run(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if body.__name__ in NOT_CLIPS or self.running is not None:  # a call inside another call belongs to it
            return body(*args, **kwargs)
        inspect.signature(body).bind(*args, **kwargs)  # a call with wrong arguments is no clip: it runs nothing
        return OWN_CALL.around(body, self._observe)(*args, **kwargs)

    def _observe(self, called: Call) -> Iterator[None]:
        name = _name(called.function, called.args)
        call = self._thread.call = RunningCall(name, OUTPUT.recordings)
        started = perf_counter()
        try:
            yield
        finally:
            seconds = perf_counter() - started - call.overhead
            self._thread.call = None
            if call.recorders and called.error is None:
                self.on_jax_clips(call.recorders[0].count_lines("jax"))
                OUTPUT.report_clipped(name, call.parameters)
                if call.empty in OUTPUT.on_empty:
                    passed = [list(each) for each in called.args if isinstance(each, list | tuple | dict)]
                    OUTPUT.on_empty[call.empty](passed[0] if passed else called.args)
            for recorder in call.recorders:
                recorder.end(seconds, called.error)

    def on_clip(self, clip: Clip) -> None:
        call = self.running
        if call is None:
            return
        started = perf_counter()
        if not OWN_CALL.run(call.add, clip):
            call.recorders = []  # a line without this clip would be wrong
        call.overhead += perf_counter() - started

    def on_unrecordable_graph(self, framework: str) -> None:
        for recording in OUTPUT.recordings:
            OWN_CALL.run(recording.on_unrecordable_graph, framework)

    def on_warning(self, message: str) -> None:
        for recording in OUTPUT.recordings:
            OWN_CALL.run(recording.on_warning, message)

    def wait_with(self, wait: Callable[[], object]) -> None:
        for recording in OUTPUT.recordings:
            recording.wait_with(wait)

    def log(self, **numbers: float) -> None:
        for recording in OUTPUT.recordings:
            recording.log(**numbers)

    @property
    def running(self) -> RunningCall | None:
        return getattr(self._thread, "call", None)


def _name(body: Callable[..., Any], args: Sequence[Any]) -> str:
    """Return a name such as "clip_grad_norm_" or "ClipConfig.clip_"."""
    kind, method = getattr(args[0], "recorded_as", None) if args else None, body.__name__.removeprefix("_")
    if kind is None:
        return method
    return kind if method.strip("_") == "call" else f"{kind}.{method}"


DISPATCHER = Dispatcher()
CLIP_CALLS.is_hidden = lambda: DISPATCHER.running is not None


def _copy_of(gradient: Any) -> Any:
    # `import unified_clip` needs no NumPy, and checkers of types must not follow it to readers of files
    return import_module("unified_clip.recording.results").copy_of(gradient)


def _installer(module: str, function: str = "install") -> Callable[[], object]:
    return lambda: getattr(import_module(f"unified_clip.{module}"), function)()


INSTALLERS = {
    "torch": _installer("recording.natives.torch"),
    "tensorflow": _installer("recording.natives.tensorflow"),
    "keras": _installer("recording.natives.keras"),
    "paddle": _installer("recorder.paddle2"),
    "unified_clip.paddle": _installer("recorder.paddle2", "install_unified_clip"),
    "optax": _installer("recording.natives.optax"),
}
"""{module with clip functions: function that adds the hooks}."""
HOOKS.installers = INSTALLERS


def log(**numbers: float) -> None:
    """Write numbers, such as the loss, to all recordings of this process.

    A script that `unified-clip record` runs can also call this function. Without a recording, the call has no effect.

    Args:
        numbers: Numbers by name. For a tensor, pass `loss.item()`.

    Raises:
        TypeError: The process has a recording, and an argument is not a number.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> import unified_clip
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> with unified_clip.record(path):
        ...     norm = unified_clip.clip_grad_norm_([np.array([3.0, 4.0])], max_norm=1.0)
        ...     unified_clip.recording.log(loss=0.5)
        >>> path.read_text().splitlines()[-1]
        '{"step": 1, "logged": {"loss": 0.5}}'
    """
    DISPATCHER.log(**numbers)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RecordingHook("fork", "a forked process").guarded(DISPATCHER.after_fork))
