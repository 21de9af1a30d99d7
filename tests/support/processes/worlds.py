"""Several processes on this machine that work together, as those of a training run do."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

Start = Callable[[int, int, str], None]
"""What each process does first, with its rank, how many there are, and a file that does not exist yet."""

LIMIT = 120
"""Seconds that a call may take."""


class World:
    """Processes that run functions of test modules, all the same one at once.

    preload: Modules that are imported once, in the process that the others are copies of. A copy has no threads, so
        these modules must not start any: TensorFlow does.
    """

    def __init__(self, start: Start, size: int, preload: Sequence[str] = ()) -> None:
        self.size = size
        self._is_late = False
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        pipes = [context.Pipe() for _ in range(size)]
        self._ends = [ours for ours, _ in pipes]
        self._directory = tempfile.TemporaryDirectory()
        meeting = str(Path(self._directory.name) / "meeting")
        self._processes = [
            context.Process(target=_work, args=(theirs, start, rank, size, meeting), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process, (_, theirs) in zip(self._processes, pipes, strict=True):
            process.start()
            theirs.close()  # so that ours ends with the process

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returned in each process; AssertionError where it raised."""
        found = self.attempt(function, *args)
        failed = [f"rank {rank}: {each}" for rank, each in enumerate(found) if isinstance(each, Failure)]
        assert not failed, "\n".join(failed)
        return found

    def attempt(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The same, with a `Failure` where it raised, or where the process ended."""
        assert not self._is_late, "a rank did not return from an earlier call, so results would be those of that call"
        for end in self._ends:
            end.send((function.__module__, function.__qualname__, args))
        return [self._received(rank) for rank in range(self.size)]

    def _received(self, rank: int) -> Any:
        end = self._ends[rank]
        self._is_late = not wait([end, self._processes[rank].sentinel], LIMIT)
        assert not self._is_late, f"rank {rank} did not return within {LIMIT} seconds"
        try:
            return end.recv()
        except (EOFError, ConnectionResetError):
            self._processes[rank].join()
            return Failure("it ended", self._processes[rank].exitcode)

    def close(self) -> None:
        for end in self._ends:
            with suppress(OSError):  # of a process that has ended
                end.send(None)
        for process in self._processes:
            process.join(10)
            process.kill()
            process.join()
        self._directory.cleanup()


@contextmanager
def of_any_size(start: Start) -> Iterator[Callable[[int], World]]:
    """Worlds of any size, each made when it is asked for."""
    made: dict[int, World] = {}

    def of(size: int) -> World:
        if size not in made:
            made[size] = World(start, size, [start.__module__])
        return made[size]

    try:
        yield of
    finally:
        for world in made.values():
            world.close()


@contextmanager
def calls_of(module: Any, names: Sequence[str]) -> Iterator[list[str]]:
    """Those of a module's functions that are called meanwhile."""
    calls: list[str] = []
    own = {name: getattr(module, name) for name in names}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return own[name](*args, **kwargs)

        return call

    for name in names:
        setattr(module, name, counting(name))
    try:
        yield calls
    finally:
        for name in names:
            setattr(module, name, own[name])


class Failure:
    """What a process raised, as text, or how it ended."""

    def __init__(self, text: str, exitcode: int | None = None) -> None:
        self.text, self.exitcode = text, exitcode

    def __str__(self) -> str:
        return self.text


def _work(end: Connection, start: Start, rank: int, size: int, meeting: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    start(rank, size, meeting)
    while (asked := end.recv()) is not None:
        module, name, args = asked
        try:
            result = getattr(importlib.import_module(module), name)(*args)
        except Exception:
            result = Failure(traceback.format_exc())
        end.send(result)
