"""A call of a public name is one piece: what compiles Python takes it whole, or runs it as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from . import observer
from .distributed import AWAITED

P = ParamSpec("P")
R = TypeVar("R")


def as_it_is(body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
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


def nothing(message: str) -> None:
    return


run: Callable[..., Any] = as_it_is
"""How bodies are run. A framework whose compiler follows Python into them replaces it."""

leave: Callable[[str], None] = nothing
"""Called before what a graph cannot do, with what is to be told."""

PUBLIC: list[Callable[..., Any]] = []
"""All that `public` made."""


def public(body: Callable[P, R]) -> Callable[P, R]:
    """Where a call begins."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = run(body, *args, **kwargs)
        return result

    body.__qualname__ = body.__name__  # for Python's own complaints about arguments
    call.__code__ = call.__code__.replace(co_name=body.__name__)  # its own: compilers count per code how often they did
    PUBLIC.append(functools.wraps(body)(call))
    return call
