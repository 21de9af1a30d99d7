"""Advice for users who must pass the name of a format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_way: ContextVar[str] = ContextVar("_way", default="pass from_='{}'")


@contextmanager
def named_by(way: str) -> Iterator[None]:
    """Inside a `with` block, set the advice that `name_format` returns.

    way: The advice with the placeholder {} for the name, such as "pass --from-b {}".
    """
    token = _way.set(way)
    try:
        yield
    finally:
        _way.reset(token)


def name_format(name: str) -> str:
    return _way.get().replace("{}", name)
