"""`unified_clip.record`: a line of JSON for every clip call, in any framework."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from . import _safetensors
from ._core import checks
from ._core.watch import Clip
from ._recording.calls import DISPATCHER, Call
from ._recording.lines import Lines
from ._recording.told import Told, called, copies, merged, namer

SCHEMA = 1
"""The version of the file's format."""


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
            has `named_parameters()`. None: the keys of dicts and the names in pairs, Paddle's and TensorFlow's names
            of parameters, else positions.

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


@dataclass(eq=False)
class _Seen:
    """What a recording has seen of a call that is running."""

    step: int | None = None
    told: list[Told] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    gradients: dict[str, Any] = field(default_factory=dict)
    """To be stored, as `_safetensors` takes them."""


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
        self._running: dict[Call, _Seen] = {}
        self._pending: deque[tuple[list[Told], Callable[[list[dict[str, Any]]], None]]] = deque()
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
        self._write(
            {
                "unified_clip": sys.modules[__package__].__version__,
                "schema": SCHEMA,
                "started": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                "norms": self.norms,
                "gradients_every": self.gradients_every,
            }
        )
        DISPATCHER.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        DISPATCHER.remove(self)
        self._wait_for_graphs()
        with self._flushing:
            self._flush(wait=True)
        self._close()
        if self._is_empty:
            self._warn(
                f"{self.path} holds no clip call: none was made while it was recorded, or only in graphs that were "
                "made before; begin to record before the first step"
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

    def see(self, clip: Clip, call: Call) -> None:
        """What a call is about to clip."""
        seen = self._seen(call)
        names = called(clip, self._name_of, seen.names) if self.in_detail else {}
        told = Told(clip, names if self.norms else None)
        seen.told.append(told)
        if self.gradients_every is None:
            return
        if told.in_graph:
            self._warn("gradients inside a graph are not stored; clip outside it where gradients_every is wanted")
        elif self._step_of(seen) % self.gradients_every == 0:
            seen.gradients.update(copies(clip, names))

    def end(self, call: Call) -> None:
        """Write the call's line, or have it written when its numbers are there."""
        seen = self._seen(call)
        del self._running[call]
        told = [] if call.error else seen.told
        if any(each.in_graph for each in told):
            self._have_graph_tell(call, told)
            return
        with self._flushing:
            step = self._step_of(seen)
            head = {"step": step, "call": call.name}
            tail: dict[str, Any] = {"seconds": call.seconds}
            if seen.gradients:
                tail["gradients"] = self._store(step, seen.gradients)
            if call.error:
                tail["error"] = f"{type(call.error).__name__}: {call.error}"
            self._flush()
            self._pending.append((told, lambda found: self._write_all(head, found, tail)))
            if not any(each.scalars for each in told):
                self._flush()

    def miss(self, framework: str) -> None:
        """Say once that something is not recorded."""
        self._is_empty = False  # but for a gap that has been told of
        self._warn(
            f"a clip call inside a graph of {framework} is not recorded, since that graph cannot tell what it does; "
            "call it outside the graph to record it"
        )

    def _seen(self, call: Call) -> _Seen:
        return self._running.setdefault(call, _Seen())

    def _step_of(self, seen: _Seen) -> int:
        if seen.step is None:
            seen.step = self._take_step()
        return seen.step

    def _flush(self, wait: bool = False) -> None:
        """Write what is pending, up to the first line whose numbers are not there."""
        while self._pending and (wait or all(told.later.ready() for told in self._pending[0][0])):
            told, write = self._pending.popleft()
            write([each.take(each.later.values()) for each in told])

    def _have_graph_tell(self, call: Call, told: Sequence[Told]) -> None:
        """Lines to be written whenever the graph runs."""
        tellers = [each.path.graph_teller() for each in told if each.path is not None]
        teller = tellers[0]
        if teller is None or None in tellers:
            self.miss(told[0].fields["framework"])
            return
        name, lengths = call.name, [len(each.scalars) for each in told]

        def receive(values: Sequence[Any]) -> None:
            rest = iter(values)
            with self._lock:
                if self._lines is None:
                    return
                parts = [list(itertools.islice(rest, length)) for length in lengths]
                found = [each.take(part) for each, part in zip(told, parts, strict=True)]
                self._write_all({"step": self._take_step(), "call": name}, found, {"seconds": None})

        self._waits.add(teller([scalar for each in told for scalar in each.scalars], receive))
        for each in told:
            each.forget_graph()

    def _wait_for_graphs(self) -> None:
        """Not under a lock: what they tell takes one."""
        for wait in tuple(self._waits):
            wait()

    # -- what is written

    def _write_all(self, head: dict[str, Any], found: Sequence[dict[str, Any]], tail: dict[str, Any]) -> None:
        with self._lock:
            for fields in merged(found) or [{}]:
                self._write({**head, **fields, **tail})
            self._is_empty = False

    def _write(self, line: dict[str, Any]) -> None:
        try:
            if self._lines is not None:
                self._lines.write(line)
        except OSError as error:
            self._close()
            self._warn(f"{self.path} cannot be written any more, and the recording has ended: {error}")

    def _store(self, step: int, gradients: dict[str, Any]) -> str | None:
        """Write gradients into a file of their own; its name, if they could be written."""
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


def _check_count(value: Any, what: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is {value!r}; pass a whole number")
    if value < 1:
        raise ValueError(f"{what} is {value}; it must be 1 or more")
