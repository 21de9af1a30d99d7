"""Progress bars, if standard error is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Advance = Callable[[str, int], None]
"""A function that gets the name of a progress bar, and a number to add to its count."""


def unseen(name: str, count: int) -> None:
    pass


@contextmanager
def busy(text: str) -> Iterator[None]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def progress(totals: Mapping[str, int]) -> Iterator[Advance]:
    """Show progress bars, and yield the function that advances them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, count: bars.advance(tasks[name], count)
