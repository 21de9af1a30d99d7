"""Advice for users who must pass the name of a format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_advice: ContextVar[str] = ContextVar("_advice", default="pass from_='{}'")


@contextmanager
def naming_advice(advice: str) -> Iterator[None]:
    """In the `with` block, `name_format(name)` puts the name into `advice`, such as "pass --from-b {}"."""
    token = _advice.set(advice)
    try:
        yield
    finally:
        _advice.reset(token)


def name_format(name: str) -> str:
    return _advice.get().replace("{}", name)
