"""Run the body of a public function. A compiler traces the whole body or no part of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from . import observer
from .distributed import AWAITED

P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    def __call__(self, body: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


def run_eagerly(body: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    active = observer.active
    try:
        return body(*args, **kwargs) if active is None else active.run(body, *args, **kwargs)
    except Exception as error:
        send_rejection, AWAITED.send_rejection = AWAITED.send_rejection, None
        if send_rejection is not None:
            send_rejection(error)
        raise
    finally:
        if AWAITED.send_rejection is not None:  # the call needed no other rank
            AWAITED.send_rejection = None


def break_nothing(message: str) -> None: ...


run: Run = run_eagerly

break_graph: Callable[[str], None] = break_nothing
"""Makes the compiler end its graph before an unsupported operation."""


_public: list[Callable[..., object]] = []
_marks: list[Callable[[Callable[..., object]], object]] = []


def mark_public(mark: Callable[[Callable[..., object]], object]) -> None:
    """Call `mark` with each function that `public` returns, also later, for a compiler that translates source."""
    _marks.append(mark)
    for call in _public:
        mark(call)


def public(body: Callable[P, R]) -> Callable[P, R]:
    """Return a function that passes its arguments to `run`."""

    @functools.wraps(body)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(body, *args, **kwargs)

    del call.__wrapped__  # compilers would unwrap it, and call the body
    call.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
    _public.append(call)
    for mark in _marks:
        mark(call)
    return call


def register_compiler(compiler_run: Run, compiler_break_graph: Callable[[str], None]) -> None:
    """A compiler such as `torch.compile` replaces `run` and `break_graph`."""
    global run, break_graph
    run, break_graph = compiler_run, compiler_break_graph
