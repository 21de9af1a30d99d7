"""Find out why a worker failed, and skip the remaining cases of functions that failed too often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..._workers import Exit
from ..call_outcome import OUT_OF_MEMORY, Failure
from .worker_files import WorkItem

MAX_FAILURES = 4
"""After this number of failures in a mode, a function is not called again in this mode."""

MAX_FAILED_FUNCTIONS = 4
"""If this number of functions fail in a row, no further case runs."""

FAILURE_WEIGHTS = {"timed out": 2}


def failure_of(end: Exit, timeout: float) -> Failure | None:
    if end.code is None:
        return Failure("timed out", f"no new result in {timeout:g} seconds (set by --timeout); {end}")
    if end.code == 0:
        return None
    out_of_memory = [line for line in end.stderr if OUT_OF_MEMORY.search(line)]
    if out_of_memory:
        return Failure("out of memory", f"{out_of_memory[-1].strip()}; {end}")
    return Failure("crashed", str(end))


class WorkerFailures:
    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._last: dict[tuple[str, str], str] = {}
        self._in_a_row: dict[tuple[str, str], str] = {}

    def add(self, item: WorkItem, failure: Failure, *, had_results: bool) -> None:
        function, reason = _function(item), f"{failure.kind}, {failure.detail}"
        self._counts[function] += FAILURE_WEIGHTS.get(failure.kind, 1)
        self._last[function] = reason
        if had_results:
            self._in_a_row.clear()
        self._in_a_row.pop(function, None)
        self._in_a_row[function] = f"{item.case.call_name}: {reason}"

    def why_not_run(self, item: WorkItem) -> str:
        function = _function(item)
        if self._counts[function] >= MAX_FAILURES:
            return f"because earlier cases of this function failed. The last failure: {self._last[function]}"
        if len(self._in_a_row) >= MAX_FAILED_FUNCTIONS:
            *_, last = self._in_a_row.values()
            functions = f"{MAX_FAILED_FUNCTIONS} functions failed in a row"
            return f"because {functions}. The last failure: {last}"
        return ""

    def in_order(self, items: Mapping[int, WorkItem]) -> dict[int, WorkItem]:
        """Sort the items by mode. In each mode, items of functions that have failed come last."""
        modes = list(dict.fromkeys(item.mode for item in items.values()))
        numbers = sorted(items, key=lambda n: (modes.index(items[n].mode), self._counts[_function(items[n])] > 0, n))
        return {number: items[number] for number in numbers}


def _function(item: WorkItem) -> tuple[str, str]:
    return item.mode, item.case.call_name
