"""What long work shows on a terminal's standard error, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Advance = Callable[[str, int], None]
"""A function of (name of a bar, how far it moves)."""


def unseen(name: str, count: int) -> None:
    """Move no bar."""


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a text while work of unknown length is done."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


@contextmanager
def progress(totals: Mapping[str, int]) -> Iterator[Advance]:
    """A bar for each of what is counted on a terminal's standard error, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, count: bars.advance(tasks[name], count)
