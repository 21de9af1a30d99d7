"""Advice on how the user can name the format of a file: by an option, by an argument in Python, or in a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_way: ContextVar[str] = ContextVar("_way", default="pass from_='{}'")


@contextmanager
def named_by(way: str) -> Iterator[None]:
    """Set the advice that `name_format` returns inside the `with` block.

    way: The advice with {} for the name, such as "pass --from-b {}". Outside of all blocks, the advice is for Python.
    """
    token = _way.set(way)
    try:
        yield
    finally:
        _way.reset(token)


def name_format(name: str) -> str:
    """Return advice to name a format, such as "pass --from hf@5.0". The advice begins with a verb in lower case."""
    return _way.get().replace("{}", name)
