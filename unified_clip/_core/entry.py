"""A call of a public name is one piece: what compiles Python takes it whole, or runs it as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def _run(body: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return body(*args, **kwargs)


run = _run
"""How bodies are run. A framework whose compiler follows Python into them replaces it."""


def public(body: Callable[P, R]) -> Callable[P, R]:
    """Where a call begins."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        result: R = run(body, *args, **kwargs)
        return result

    call.__code__ = call.__code__.replace(co_name=body.__name__)  # its own: compilers count per code how often they did
    return functools.wraps(body)(call)
