"""`unified_clip.record`: a line of JSON for every clip call, in any framework."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from .. import _safetensors
from .._core import checks
from .._core.watch import Clip
from .clip_event import ByParameter, Told, called, copies, merged, namer
from .dispatcher import DISPATCHER
from .event_file import Lines

SCHEMA = 1
"""The version of the file's format."""

NO_CALLS = (
    "No unified_clip calls were recorded. Framework functions are not recorded: replace them with unified_clip's, "
    "or use `unified-clip verify`."
)
"""What a recording without calls means, and what to do."""


def record(
    path: str | os.PathLike[str], *, norms: bool = False, gradients_every: int | None = None, names: Any = None
) -> Recording:
    """Record every clip call of this process, on any framework: a context manager.

    The file is JSON lines, one for each call; `docs/recording.md` says what they hold. A line is written whole when the
    call has returned (on a GPU, after a later call, when the norm is there without waiting), so that after a crash
    every line but the last is readable. The gradients and the results are the same with a recording as without.

    Args:
        path: The file, which must not exist.
        norms: Record the norm of each gradient by its parameter's name, and of its weight where that is known. It reads
            all gradients once more.
        gradients_every: Store the gradients before clipping every so many steps, as safetensors files beside `path`.
        names: What to call the parameters: a list of names by position, a dict of name to parameter, or a model that
            has `named_parameters()`. A list of gradients, one for each parameter in order, takes their names. None: the
            keys of dicts and the names in pairs, Paddle's and TensorFlow's names of parameters, else positions.

    Returns:
        The recording, to be entered by `with`; its `step` counts calls, or is set by `step =` or `next_step()`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: gradients_every is below 1, or a name is there twice.
        FileExistsError: There is such a file; when entered.

    Source: none, it is our own.

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
    return Recording(Path(path), norms, gradients_every, names)


class Recording:
    """A run that is recorded; `record` makes it."""

    def __init__(self, path: Path, norms: bool, gradients_every: int | None, names: Any) -> None:
        if gradients_every is not None:
            _check_count(gradients_every, "gradients_every")
        self.path, self.norms, self.gradients_every = path, bool(norms), gradients_every
        self.in_detail = self.norms or gradients_every is not None
        self._name_of = namer(names)
        self._make_locks()
        self._lines: Lines | None = None
        self._step, self._by_calls = 0, True
        self._is_empty = True
        self._pending: deque[tuple[dict[str, Any], Sequence[Told], dict[str, Any]]] = deque()
        self._stored: dict[int, int] = {}
        self._waits: set[Callable[[], object]] = set()
        self._warned: set[str] = set()

    def _make_locks(self) -> None:
        self._lock = threading.RLock()  # of the file and the step; graphs that tell something take it
        self._flushing = threading.RLock()  # taken first; whoever has it may wait for a device

    # -- steps

    @property
    def step(self) -> int:
        """The step of the last call, or the one that was set; 0 before."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        _check_count(step, "step")
        with self._lock:
            if self._by_calls and self._step > 1:
                raise ValueError(
                    f"{self._step} calls have been counted as steps; set the step before the first clip call of each"
                )
            if step < self._step:
                raise ValueError(f"step is {step}, and step {self._step} is being recorded; steps do not go back")
        self._wait_for_graphs()
        self._step, self._by_calls = step, False

    def next_step(self) -> None:
        """Begin a step: all calls from here on belong to it. Without this, each call is a step."""
        self.step = self._step + 1

    def _take_step(self) -> int:
        """The step that a call belongs to."""
        with self._lock:
            self._step = max(self._step + self._by_calls, 1)
            return self._step

    # -- the context

    def __enter__(self) -> Self:
        self._lines = Lines(self.path)
        self._lines.write(
            {
                "unified_clip": sys.modules["unified_clip"].__version__,
                "schema": SCHEMA,
                "started": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                "norms": self.norms,
                "gradients_every": self.gradients_every,
            }
        )
        DISPATCHER.add(self)
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        DISPATCHER.remove(self)
        self._wait_for_graphs()
        with self._flushing:
            self._flush(wait=True)
        self._close()
        if self._is_empty and failure is None:
            self._warn(
                f"{self.path}: {NO_CALLS} Graphs that were compiled before the recording began are not recorded "
                "either: begin to record before the first step."
            )

    def let_go(self) -> None:
        """In a process that was forked: the file, and what was to be written, are its parent's."""
        self._make_locks()
        self._pending.clear()
        self._waits.clear()
        self._is_empty = False
        self._close()

    def _close(self) -> None:
        with self._lock:
            if self._lines is not None:
                self._lines.close()
            self._lines = None

    # -- calls

    def begin(self, call: str) -> _Entry:
        return _Entry(self, call)

    def add(self, fields: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
        """A line for a call that is not ours, which was watched, and its gradients by name, as dtypes and arrays."""
        step = self._take_step()
        fields |= {"gradients": self._store(step, before), "after": self._store(step, after)}
        with self._flushing:
            self._flush(wait=True)
            self._write([{"step": step, **fields}])

    def miss(self, framework: str) -> None:
        """Say once that something is not recorded."""
        self._is_empty = False  # but for a gap that has been told of
        self._warn(
            f"a clip call inside a graph of {framework} is not recorded, since that graph cannot tell what it does; "
            "call it outside the graph to record it"
        )

    def _end(self, head: dict[str, Any], told: Sequence[Told], tail: dict[str, Any], is_late: bool) -> None:
        """Write a call's line, or have it written when its numbers are there."""
        with self._flushing:
            if self._pending:
                self._flush()
            if self._pending or is_late:
                self._pending.append((head, told, tail))
            elif len(told) == 1:
                self._write([{**head, **told[0].take([]), **tail}])
            else:
                self._write_all(head, [each.take([]) for each in told], tail)

    def _flush(self, wait: bool = False) -> None:
        """Write what is pending, up to the first line whose numbers are not there."""
        while self._pending and (wait or all(told.later.ready() for told in self._pending[0][1] if told.later)):
            head, told, tail = self._pending.popleft()
            self._write_all(head, [each.take(each.later.values() if each.later else []) for each in told], tail)

    def _have_graph_tell(self, call: str, told: Sequence[Told]) -> None:
        """Lines to be written whenever the graph runs."""
        tellers = [each.path.graph_teller() for each in told if each.path is not None]
        teller = tellers[0]
        if teller is None or None in tellers:
            self.miss(told[0].fields["framework"])
            return
        lengths = [len(each.scalars) for each in told]

        def receive(values: Sequence[Any]) -> None:
            rest = iter(values)
            with self._lock:
                if self._lines is None:
                    return
                parts = [list(itertools.islice(rest, length)) for length in lengths]
                found = [each.take(part) for each, part in zip(told, parts, strict=True)]
                self._write_all({"step": self._take_step(), "call": call}, found, {"seconds": None})

        self._waits.add(teller([scalar for each in told for scalar in each.scalars], receive))
        for each in told:
            each.forget_graph()

    def _wait_for_graphs(self) -> None:
        """Not under a lock: what they tell takes one."""
        for wait in tuple(self._waits):
            wait()

    # -- what is written

    def _write_all(self, head: dict[str, Any], found: Sequence[dict[str, Any]], tail: dict[str, Any]) -> None:
        """The lines of a call that may have clipped several groups, or none."""
        self._write([{**head, **fields, **tail} for fields in merged(found) or [{}]])

    def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            self._is_empty = False
            if self._lines is None:
                return
            try:
                for line in lines:
                    self._lines.write(line)
            except OSError as error:
                self._close()
                self._warn(f"{self.path} cannot be written any more, and the recording has ended: {error}")

    def _store(self, step: int, gradients: dict[str, Any]) -> str | None:
        """Write gradients into a file of their own; its name, if they could be written."""
        with self._lock:
            number = self._stored[step] = self._stored.get(step, 0) + 1
        mark = "" if number == 1 else f".{number}"
        path = self.path.with_name(f"{self.path.stem}.step{step}{mark}.safetensors")
        try:
            _safetensors.write_at_once(path, gradients)
        except OSError as error:
            self._warn(f"the gradients of a step could not be stored beside {self.path}: {error.strerror}")
            return None
        return path.name

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            checks.warn_at_call(message)


class _Entry:
    """A running call, in a recording."""

    def __init__(self, recording: Recording, call: str) -> None:
        self._recording, self._call = recording, call
        self._step: int | None = None
        self._told: list[Told] = []
        self._is_late = False
        self._names: set[str] = set()
        self._gradients: dict[str, Any] = {}

    @property
    def step(self) -> int:
        if self._step is None:
            self._step = self._recording._take_step()
        return self._step

    def see(self, clip: Clip) -> None:
        recording = self._recording
        names = called(clip, recording._name_of, self._names) if recording.in_detail else {}
        if isinstance(recording._name_of, ByParameter) and any(map(str.isdecimal, names)):
            recording._warn(
                f"{self._call} got gradients that names= does not name: neither its parameters, nor one gradient for "
                "each of them in order. Pass a dict of name to gradient, or (name, gradient) pairs."
            )
        told = Told(clip, names if recording.norms else None)
        self._told.append(told)
        self._is_late = self._is_late or told.later is not None
        if recording.gradients_every is None:
            return
        if told.in_graph:
            recording._warn("gradients inside a graph are not stored; clip outside it where gradients_every is wanted")
        elif self.step % recording.gradients_every == 0:
            self._gradients.update(copies(clip, names))

    def end(self, seconds: float, error: BaseException | None) -> None:
        recording, told = self._recording, self._told
        tail: dict[str, Any] = {"seconds": seconds}
        if error is not None:
            told, self._is_late, tail["error"] = [], False, f"{type(error).__name__}: {error}"
        elif any(each.in_graph for each in told):
            recording._have_graph_tell(self._call, told)
            return
        if self._gradients:
            tail["gradients"] = recording._store(self.step, self._gradients)
        step = self._step or recording._take_step()
        recording._end({"step": step, "call": self._call}, told, tail, self._is_late)


def _check_count(value: Any, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is {value!r}; pass a whole number")
    if value < 1:
        raise ValueError(f"{what} is {value}; it must be 1 or more")
