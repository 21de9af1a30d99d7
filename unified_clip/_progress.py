"""Bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def progress(totals: Mapping[str, int]) -> Iterator[Callable[[str, int], None]]:
    """A bar for each of what is counted on a terminal's standard error, and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, count: bars.advance(tasks[name], count)
