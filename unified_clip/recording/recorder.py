"""Record a line of JSON for every clip call: `unified_clip.record`."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import validation
from .._core.names import ByParameter, make_namer
from .._core.types import Deferred, Leaf
from .._kit import safetensors_files
from ..recorder import guard
from ..recorder.hooks import OUTPUT, RecordingHook
from ..recorder.lines import caller
from ..recorder.process import FileRecording, begin_in
from .clip_event import CallRecorder, ClipEvent, lines_of, name_gradients
from .dispatcher import DISPATCHER, FINDERS
from .lines import NO_CALLS, NOT_REPORTED

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..recorder.clips import NativeCall, Row

Lines = Sequence[dict[str, Any]]

END = RecordingHook("end of a recording", "the end of the training")
GRAPH = RecordingHook("a clip of a graph", "a clip in a graph")


def record(
    path: str | os.PathLike[str],
    *,
    norms: bool = False,
    gradients_every: int | None = None,
    names: Any = None,
    force: bool = False,
) -> Recording:
    """Record every clip call of this process, on any framework, inside a `with` block.

    The recording contains the calls of unified_clip's functions and of the frameworks' own clip functions, such as
    `torch.nn.utils.clip_grad_norm_`. Calls inside `torch.compile` or `jit_compile=True` are not recorded.

    The file has a line of JSON for each call. `docs/recording_fields.md` lists the fields of a line. On a CPU, the line
    is written when the call returns. On a GPU, a later call writes the line, after the device has computed the norm.
    After a crash, all lines except the last one are readable. A recording changes no gradients and no results. If the
    disk is full, the recording ends with a ClipWarning.

    Args:
        path: The file to write. Without `force`, the file must not exist.
        norms: Record the norm of each gradient under the name of its parameter. If the clip call gets
            the weights, also record the norms of the weights. To compute norms, all gradients are read once more.
        gradients_every: Every N steps, store the gradients before clipping as safetensors files beside `path`.
        names: The names of the parameters: a list of names in order, a dict of name to parameter, or a model with
            `named_parameters()`. With a dict or a model, a clip call can also get a list of gradients
            without names, one for each parameter, in the same order. If `names` is None, the names come from the call:
            the keys of a dict, or (name, gradient) tuples. Parameters of Paddle and TensorFlow have their own names.
            Gradients without a name get their position as a name.
        force: Replace an existing file when the `with` block begins.

    Returns:
        The recording, a context manager. By default, the attribute `step` counts calls. To count the steps of your
        training, set `step` or call `next_step()`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: gradients_every is below 1, or a list of names contains the same name twice.
        FileExistsError: The file exists when the `with` block begins, and `force` is False.
        OSError: The file cannot be created when the `with` block begins.

    Source: unified_clip. docs/recording_fields.md describes every field.

    Example:
        >>> import json, pathlib, tempfile
        >>> import numpy as np
        >>> import unified_clip
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "run.jsonl"
        >>> with unified_clip.record(path):
        ...     norm = unified_clip.clip_grad_norm_([np.array([3.0, 4.0])], max_norm=1.0)
        >>> line = json.loads(path.read_text().splitlines()[1])
        >>> line["step"], line["call"], line["norm"], line["clipped"]
        (1, 'clip_grad_norm_', 5.0, True)
    """
    return Recording(Path(path), norms, gradients_every, names, force=force)


class Recording(FileRecording):
    """A recording of clip calls, which `record` returns. Each call adds a line to the file."""

    def __init__(
        self,
        path: Path,
        norms: bool,
        gradients_every: int | None = None,
        names: Any = None,
        *,
        force: bool = False,
        in_directory: bool = False,
    ) -> None:
        if gradients_every is not None:
            _check_count(gradients_every, "gradients_every")
        self.gradients_every, self._force = gradients_every, force
        self.needs_leaves = bool(norms) or gradients_every is not None
        self._namer = _name_found if names is None else make_namer(names)
        self._arranged: set[str] = set()
        super().__init__(path, bool(norms), sys.modules["unified_clip"].__version__, in_directory=in_directory)

    def _begin(self) -> None:
        super()._begin()
        self._flushing = threading.RLock()  # taken before `_lock`; its owner may wait for a device
        self._is_empty = True
        self._pending, self._stored = deque[tuple[Callable[[], Lines], Sequence[Deferred]]](), dict[int, int]()
        self._waits: set[Callable[[], object]] = set()
        self._failed: set[str] = set()

    @property
    def step(self) -> int:
        """The step of the last call, or 0 before the first call. You can set `step` to the same or a higher number."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        _check_count(step, "step")
        self._begin_step(step)

    def next_step(self) -> None:
        """Wait until running graphs have reported their calls, and begin the next step.

        If you never call `next_step()` and never set `step`, each clip call is a step.

        ValueError: Several calls were already counted as steps. Call `next_step()` before the first call of each step.
        """
        self._begin_step(None)

    def _begin_step(self, step: int | None) -> None:
        self.wait()
        with self._lock:
            step = self._step + 1 if step is None else step
            if self._by_calls and self._step > 1:
                raise ValueError(
                    f"step was not set before the first call, so each of the {self._step} calls was counted as a step. "
                    "Call next_step() or set step before the first call of each step."
                )
            if step < self._step:
                raise ValueError(f"step is {step}, but step {self._step} has begun. Pass {self._step} or more.")
            self._step, self._by_calls = step, False

    # -- the context

    def __enter__(self) -> Self:
        try:
            self._open("wb" if self._force else "xb")
        except FileExistsError:
            message = f"{self.path} exists. Pass another path, or replace this file with force=True."
            raise FileExistsError(message) from None
        self._has_ended = False
        DISPATCHER.add(self)
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self.end()
        if self._is_empty and failure is None:
            self.warn(
                f"{self.path}: {NO_CALLS} Graphs that were compiled before the recording began are not recorded: "
                "begin to record before the first step, and in TensorFlow 1 before the graph is built."
            )

    def end(self) -> None:
        END.run(self.wait)  # calls of frameworks' functions reach only the recordings of the dispatcher
        DISPATCHER.remove(self)
        END.run(self._finish)

    def _finish(self) -> None:
        try:
            self.wait()
            with self._flushing:
                self._flush(wait=True)
        finally:
            self._end_file()

    def after_fork(self) -> None:
        super().after_fork()
        self._is_empty = False

    def name_gradients(
        self, call: str, leaves: Sequence[Leaf], group: Sequence[int], shape: Callable[[Any], Any], taken: set[str]
    ) -> dict[str, int]:
        names = name_gradients(leaves, group, shape, self._namer, taken)
        if isinstance(self._namer, ByParameter) and any(map(str.isdecimal, names)):
            self.warn(
                f"names= does not match the gradients of {call}. Add all parameters to names=. Or "
                "pass named gradients to the clip: a dict {name: gradient}, or (name, gradient) tuples."
            )
        return names

    def begin(self, call: str) -> CallRecorder:
        OUTPUT.recorded_calls += 1
        return CallRecorder(self, call, caller())

    @property
    def stores_next(self) -> bool:
        """Whether the next call stores its gradients."""
        return self.gradients_every is not None and (self._step + self._by_calls) % self.gradients_every == 0

    def add_call(
        self, fields: dict[str, Any], call: NativeCall | None = None, rows: Sequence[Row] = (), after: Any = ()
    ) -> None:
        """Add a call of a framework's function. A recording for `verify` stores the gradients before and after it."""
        if fields.get("is_gradient") is False and not self.stores_results:
            return
        OUTPUT.recorded_calls += 1
        stores, step = self.stores_next, self._take_step()
        fields |= OUTPUT.scale_fields()
        if call is not None and self.needs_leaves:
            names = self._names_of(call.name, rows)
            if "parameters" in fields:
                fields["parameters"] = dict(zip(names, fields["parameters"].values(), strict=True))
            if stores:
                results = import_module("unified_clip.recording.results")
                fields["gradients"] = self._store(step, results.stored(names, [each.stored for each in rows]))
                if self.stores_results:
                    fields |= {"after": self._store(step, results.stored(names, after))}
                    fields |= results.result_fields(call, fields, rows, after)
        self._add(lambda: [{"step": step, **fields, "seconds": None}])

    def _names_of(self, call: str, rows: Sequence[Row]) -> Sequence[str]:
        leaves = [
            Leaf(each.fields.get("shape"), place, each.name if each.is_named else None, each.parameter)
            for place, each in enumerate(rows)
        ]
        return list(self.name_gradients(call, leaves, range(len(leaves)), lambda shape: shape, set()))

    def add_line(self, fields: dict[str, Any]) -> None:
        with self._flushing:
            self._flush(wait=True)
            super().add_line(fields)

    def log(self, **numbers: float) -> None:
        for name, value in numbers.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"{name} has the type {type(value).__name__}. Pass a number, or {name}.item().")
        self.add_line({"logged": numbers})

    def on_failure(self, hook: guard.Hook, error: Exception) -> None:
        self._is_empty = False
        if hook.name not in self._failed:
            self._failed.add(hook.name)
            self.warn(hook.message(error))

    def wait_with(self, wait: Callable[[], object]) -> None:
        self._waits.add(wait)

    def on_unrecordable_graph(self, framework: str) -> None:
        self._is_empty = False  # this warning replaces the warning about an empty recording
        self.warn(
            f"a clip call inside a graph of {framework} {NOT_REPORTED}. To record the call, clip outside the graph."
        )

    def _add(self, lines: Callable[[], Lines], waits: Sequence[Deferred] = ()) -> None:
        """Write the lines of a call, in the order of the calls, when the device has computed what they wait for."""
        self._is_empty = False
        with self._flushing:
            self._flush()
            if self._pending or waits:
                self._pending.append((lines, waits))
            else:
                self._write(*lines())

    def _flush(self, wait: bool = False) -> None:
        while self._pending and (wait or all(each.ready() for each in self._pending[0][1])):
            self._write(*self._pending.popleft()[0]())

    def _report_from_graph(self, call: str, events: Sequence[ClipEvent], place: str | None) -> None:
        callbacks = [each.path.graph_callback() for each in events if each.path is not None]
        callback = callbacks[0]
        if callback is None or None in callbacks:
            self.on_unrecordable_graph(events[0].fields["framework"])
            return
        lengths = [len(each.scalars) for each in events]

        def receive(values: Sequence[Any]) -> None:
            rest = iter(values)
            with self._lock:
                if not self._has_ended:
                    parts = [[*itertools.islice(rest, length)] for length in lengths]
                    groups = [each.complete_fields(part) for each, part in zip(events, parts, strict=True)]
                    self._is_empty = False
                    head = {"step": self._take_step(), "call": call}
                    self._write(*lines_of(head, groups, {"seconds": None, "place": place}))

        self._waits.add(callback([scalar for each in events for scalar in each.scalars], GRAPH.guarded(receive)))
        for each in events:
            each.scalars, each.path = [], None  # the graph may end before the recording

    def wait(self) -> None:
        """Wait until running graphs have reported their calls. The caller must not hold `_lock`."""
        for wait in tuple(self._waits):
            wait()

    def _store(self, step: int, gradients: dict[str, Any]) -> str | None:
        with self._lock:
            number = self._stored[step] = self._stored.get(step, 0) + 1
        mark = "" if number == 1 else f".{number}"
        path = self.path.with_name(f"{self.path.stem}.step{step}{mark}.safetensors")
        try:
            safetensors_files.write(path, gradients)
        except OSError as error:
            self.warn(f"gradients cannot be stored beside {self.path}: {error.strerror}. Record to another path.")
            return None
        return path.name

    def warn(self, message: str) -> None:
        if self.in_directory:
            super().warn(message)
        elif message not in self._said:
            guard.warn(message, validation.warn_at_call)


def start(directory: str, norms: bool) -> None:
    """Record this process of a command, and the processes that it forks."""
    begin_in(Path(directory))
    recording = Recording(Path(directory), norms, in_directory=True)
    DISPATCHER.add(recording)
    atexit.register(recording.end)


def _check_count(value: Any, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is {value!r}. Pass a whole number.")
    if value < 1:
        raise ValueError(f"{what} is {value}. Pass 1 or more.")


def _name_found(leaf: Any) -> str | None:
    return leaf.name or next(filter(None, (find(leaf.parameter) for find in FINDERS)), None)
