"""Several processes on this machine that form one job, such as the ranks of a training run."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

Layout = TypeVar("Layout")
Start = Callable[[int, int, str], None]
"""The first call in each process. It gets the rank, the number of processes, and a path for exchanging addresses."""

TIMEOUT = 120
"""The maximum number of seconds of a call."""


class World:
    """Processes that run functions of test modules. All run the same function at the same time."""

    def __init__(self, start: Start, size: int) -> None:
        self.size = size
        self._is_late = False
        context = multiprocessing.get_context("forkserver")
        imported = _start_origin(start)
        pipes = [context.Pipe() for _ in range(size)]
        self._ends = [own_end for own_end, _ in pipes]
        self._directory = tempfile.TemporaryDirectory()
        meeting = str(Path(self._directory.name) / "meeting")
        self._processes = [
            context.Process(target=_work, args=(process_end, imported, start, rank, size, meeting), daemon=True)
            for rank, (_, process_end) in enumerate(pipes)
        ]
        for process, (_, process_end) in zip(self._processes, pipes, strict=True):
            process.start()
            process_end.close()  # so that the own end closes with the process

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the function's result of each process. Raise AssertionError if it raised in any."""
        results = self.attempt(function, *args)
        failed = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, Failure)]
        assert not failed, "\n".join(failed)
        return results

    def attempt(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return the result of each process, or a `Failure` if the function raised or the process ended."""
        assert not self._is_late, "a rank did not return from an earlier call, so results would be those of that call"
        for end in self._ends:
            end.send((function.__module__, function.__qualname__, args))
        return [self._received(rank) for rank in range(self.size)]

    def _received(self, rank: int) -> Any:
        end = self._ends[rank]
        self._is_late = not wait([end, self._processes[rank].sentinel], TIMEOUT)
        assert not self._is_late, f"rank {rank} did not return within {TIMEOUT} seconds"
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


def worlds_of_any_size(start: Start) -> AbstractContextManager[Callable[[int], World]]:
    return worlds_when_needed(functools.partial(World, start))


@contextmanager
def worlds_when_needed(start: Callable[[Layout], World]) -> Iterator[Callable[[Layout], World]]:
    """Return a function that calls `start` once for each layout, when its world is first needed."""
    started: dict[Layout, World] = {}

    def of(layout: Layout) -> World:
        if layout not in started:
            started[layout] = start(layout)
        return started[layout]

    try:
        yield of
    finally:
        for world in started.values():
            world.close()


def error_message(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return ""


@contextmanager
def record_calls(module: Any, names: Sequence[str]) -> Iterator[list[str]]:
    calls: list[str] = []
    originals = {name: getattr(module, name) for name in names}

    def counting(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return originals[name](*args, **kwargs)

        return call

    for name in names:
        setattr(module, name, counting(name))
    try:
        yield calls
    finally:
        for name in names:
            setattr(module, name, originals[name])


class Failure:
    """The traceback of a process as text, or the exit code with which it ended."""

    def __init__(self, text: str, exitcode: int | None = None) -> None:
        self.text, self.exitcode = text, exitcode

    def __str__(self) -> str:
        return self.text


PRELOADED = {
    "torch": ["torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "unified_clip.torch"],
    "jax": ["jax.experimental.multihost_utils", "jax.experimental.sparse", "unified_clip.jax"],
    "paddle": ["paddle.distributed.fleet", "unified_clip.paddle"],
    "tensorflow": [],
}
"""The modules that all worlds of a framework import once, before they are forked. A fork does not have the threads of
its origin, so no module may start threads, or JAX's backend. TensorFlow starts threads."""


def _start_origin(start: Start) -> list[str]:
    """Start the process from which all worlds are forked. Return the modules that it has imported."""
    modules = PRELOADED[getattr(start, "func", start).__module__.rpartition(".")[2].partition("_")[0]]
    forkserver.set_forkserver_preload(modules)
    search = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"}  # it does not get the path otherwise
    with mock.patch.dict(os.environ, search):
        forkserver.ensure_running()
    return modules


def _work(end: Connection, imported: list[str], start: Start, rank: int, size: int, meeting: str) -> None:
    missing = {*imported} - sys.modules.keys()
    assert not missing, f"{missing} could not be imported, which the origin does not report"
    os.environ["OMP_NUM_THREADS"] = "1"
    start(rank, size, meeting)
    while (request := end.recv()) is not None:
        module, name, args = request
        try:
            result = getattr(importlib.import_module(module), name)(*args)
        except Exception:
            result = Failure(traceback.format_exc())
        end.send(result)
