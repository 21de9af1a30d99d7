"""Run the body of a public function as one piece. Compilers trace the piece whole, or leave it out of their graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

from . import observer
from .distributed import AWAITED

P = ParamSpec("P")
R = TypeVar("R")


class Run(Protocol):
    def __call__(self, body: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...


def run_eagerly(body: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a body. Pass its call to the observer, and its error to the ranks that wait for this one."""
    active = observer.active
    try:
        return body(*args, **kwargs) if active is None else active.run(body, *args, **kwargs)
    except Exception as error:
        send_rejection, AWAITED.send_rejection = AWAITED.send_rejection, None
        if send_rejection is not None:
            send_rejection(error)
        raise
    finally:
        if AWAITED.send_rejection is not None:  # of a call that needed no other rank
            AWAITED.send_rejection = None


def break_nothing(message: str) -> None:
    """Break no graph: no compiler traces this call."""


run: Run = run_eagerly
"""Every public function calls this with its body. Compilers look for this function in the code that they trace."""

break_graph: Callable[[str], None] = break_nothing
"""Leave the graph that a compiler makes, before an operation that it cannot have. The message has the reason."""


def register_compiler(compiler_run: Run, compiler_break_graph: Callable[[str], None]) -> None:
    """Have a compiler of Python code run all bodies from now on, and break its graphs."""
    global run, break_graph
    run, break_graph = compiler_run, compiler_break_graph
