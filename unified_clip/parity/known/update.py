"""Update a suite's list of known differences, for a person to read and commit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.items import AoT, Table

from ..results import ParityRun
from .entries import KINDS, KnownDifference, KnownDifferenceStatus, NativeDeviation

UNSIZED = ("raises", "returns", "silent", "form")


class Changes(NamedTuple):
    """How many entries of the list were kept, dropped and added."""

    kept: int
    dropped: int
    added: int


def write(path: Path, run: ParityRun) -> Changes:
    """Drop stale entries from a list, and add missing ones. Comments and correct entries stay.

    A stale entry that still covers a difference stays with its new size and the patterns that match.
    """
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    entries: AoT = document.setdefault("known", tomlkit.aot())
    stale_entries = [shown.known for shown in run.known if not _is_correct(shown, run)]
    unlisted = _unlisted(run, stale_entries)
    renewed, stale = 0, []
    for index, entry in enumerate(entries):
        if known := next((known for known in stale_entries if _is(entry, known)), None):
            covered = {place: found for place, found in unlisted.items() if known.covers(*place, found)}
            if covered:
                _renew(entry, known, covered, run)
                renewed += 1
            else:
                stale.append(index)
            unlisted = {place: found for place, found in unlisted.items() if place not in covered}
    added = [_entry(key, found, list(entries)) for key, found in _by_function(unlisted).items()]
    for index in reversed(stale):
        del entries[index]
    kept = len(entries) - renewed
    for entry in added:
        entries.append(entry)
    partial = path.with_suffix(".partial")
    partial.write_text(tomlkit.dumps(document), encoding="utf-8")
    partial.replace(path)
    return Changes(kept, renewed + len(stale), renewed + len(added))


def _is(entry: Any, known: KnownDifference) -> bool:
    names = ("framework", "function", "kind", "cases", "reason")
    same = all(entry[name] == getattr(known, name) for name in names)
    return same and entry.get("versions", "") == known.versions


def _is_correct(shown: KnownDifferenceStatus, run: ParityRun) -> bool:
    """Return whether an entry and every difference that it covers agree."""
    cells = ((row.case.name, row.frameworks.get(shown.known.framework)) for row in run.cases)
    wrong = ((name, cell.native) for name, cell in cells if cell and cell.native and cell.problem)
    return not shown.problem and not any(
        shown.known.covers(shown.known.framework, name, difference) for name, difference in wrong
    )


Place = tuple[str, str]
"""Framework and case."""

Key = tuple[str, str, str]
"""Framework, function and kind."""


def _unlisted(run: ParityRun, stale_entries: Sequence[KnownDifference]) -> dict[Place, NativeDeviation]:
    """Return the differences that no correct entry of the list covers."""
    known = [shown.known for shown in run.known if shown.known not in stale_entries]
    return {
        (framework, case): difference
        for framework, case, difference in _differences(run)
        if not any(entry.covers(framework, case, difference) for entry in known)
    }


def _by_function(differences: Mapping[Place, NativeDeviation]) -> dict[Key, dict[str, NativeDeviation]]:
    """Group the differences by function and kind."""
    found: dict[Key, dict[str, NativeDeviation]] = {}
    for (framework, case), difference in differences.items():
        found.setdefault((framework, difference.function, difference.kind), {})[case] = difference
    return found


def _differences(run: ParityRun) -> Iterator[tuple[str, str, NativeDeviation]]:
    for row in run.cases:
        for framework, cell in row.frameworks.items():
            if cell.native and cell.native.kind:
                yield framework, row.case.name, cell.native


def _renew(entry: Table, known: KnownDifference, covered: Mapping[Place, NativeDeviation], run: ParityRun) -> None:
    """Update an entry to what it covers now, and to nothing else."""
    names = sorted(case for _, case in covered)
    gone = known.unmatched(names)
    patterns = [pattern for pattern in known.cases if pattern not in gone]
    narrowed = dataclasses.replace(known, cases=patterns)
    also = {
        (framework, case) for framework, case, found in _differences(run) if narrowed.covers(framework, case, found)
    }
    cases = patterns if also == covered.keys() else names
    if cases != known.cases:
        entry["cases"] = cases
    if known.unreported(run.versions):
        del entry["versions"]
    if known.kind not in UNSIZED:
        entry["size"] = _size(covered.values(), known.within)


def _size(found: Iterable[NativeDeviation], within: float) -> float:
    """Return the largest size, in as many digits as the factor allows."""
    greatest = max(difference.size for difference in found)
    size = float(f"{greatest:.3g}")
    return size if size / within <= greatest <= size * within else greatest


def _entry(key: Key, found: dict[str, NativeDeviation], old: list[Any]) -> Table:
    """Return an entry for these differences, with title and reason of an old one for the same function and kind."""
    framework, function, kind = key
    same = [entry for entry in old if (entry["framework"], entry["function"], entry["kind"]) == key]
    words = {name: same[0][name] for name in ("title", "reason") if same and name in same[0]}
    entry = tomlkit.table()
    entry.update({"framework": framework, "function": function, "kind": kind})
    if kind not in UNSIZED:
        entry["size"] = _size(found.values(), KnownDifference.within)
    entry["cases"] = sorted(found)
    entry.update({"reason": KINDS[kind], **words})
    return entry
