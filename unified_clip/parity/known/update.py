"""Update `known.toml`, a suite's list of known differences, for `unified-clip parity --accept`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.items import AoT, Table

from ..results import NativeResult, ParityReport
from .entries import KINDS, SIZED, WITHIN, KnownDifference
from .match import Place


class Changes(NamedTuple):
    """The numbers of entries that an update kept, dropped and added. A changed entry counts as dropped and as added."""

    kept: int
    dropped: int
    added: int


def write(path: Path, report: ParityReport) -> Changes:
    """Update the list of known differences in a file: drop stale entries, and add an entry for each new difference.

    Correct entries and comments stay. A stale entry that still covers a difference also stays. It gets the new size,
    and loses the patterns that match no case. If the file does not exist, create it.
    """
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    entries = _entry_tables(document)
    differences = _differences(report)
    correct, stale_entries = list[KnownDifference](), list[KnownDifference]()
    for result in report.known:
        if result.entry:
            natives = (native for place, native in differences.items() if _covers(result.entry, place, native))
            is_correct = not result.problem and not any(native.problem for native in natives)
            (correct if is_correct else stale_entries).append(result.entry)
    unlisted = {
        place: native
        for place, native in differences.items()
        if not any(_covers(each, place, native) for each in correct)
    }
    renewed, stale = 0, []
    for index, entry in enumerate(entries):
        if known := next((known for known in stale_entries if _is_same_entry(entry, known)), None):
            covered = {place: native for place, native in unlisted.items() if _covers(known, place, native)}
            if covered:
                _renew(entry, known, covered, report)
                renewed += 1
            else:
                stale.append(index)
            unlisted = {place: native for place, native in unlisted.items() if place not in covered}
    groups: dict[tuple[str, str, str, float], dict[str, NativeResult]] = {}
    for (framework, case), difference in unlisted.items():
        # An entry covers every smaller size, too: a large difference of one case must not hide the growth of another.
        key = (framework, difference.function or "", difference.kind, _magnitude(difference.size))
        groups.setdefault(key, {})[case] = difference
    added = [_entry(*key[:3], natives, list(entries)) for key, natives in groups.items()]
    for index in reversed(stale):
        del entries[index]
    kept = len(entries) - renewed
    for entry in added:
        entries.append(entry)
    if not entries:
        del document["known"]  # `known = []` would be in the way of later [[known]] tables
    partial = path.with_suffix(".partial")
    partial.write_text(tomlkit.dumps(document), encoding="utf-8")
    partial.replace(path)
    return Changes(kept, renewed + len(stale), renewed + len(added))


def _magnitude(size: float) -> float:
    """Return the order of magnitude of a size, as the exponent of 10. Return the size itself if it is 0 or infinite."""
    return math.floor(math.log10(size)) if 0 < size < math.inf else size


def _entry_tables(document: tomlkit.TOMLDocument) -> AoT:
    """Return the [[known]] tables of a document. If `known` is an inline array, such as `known = []`, convert it to
    tables.
    """
    entries = document.get("known")
    if isinstance(entries, AoT):
        return entries
    document.pop("known", None)
    tables = tomlkit.aot()
    for inline in entries or []:
        table = tomlkit.table()
        table.update(inline)
        tables.append(table)
    document["known"] = tables
    return tables


def _is_same_entry(entry: Any, known: KnownDifference) -> bool:
    names = ("framework", "function", "kind", "cases", "reason")
    same = all(entry[name] == getattr(known, name) for name in names)
    return same and entry.get("versions", "") == known.versions


def _covers(known: KnownDifference, place: Place, native: NativeResult) -> bool:
    return known.covers(*place, native.function or "", native.kind)


def _differences(report: ParityReport) -> dict[Place, NativeResult]:
    """Return the results of frameworks' functions that differ by more than rounding, by (framework, case name)."""
    return {
        (framework, case.name): native
        for case in report.cases
        for framework, native in case.natives.items()
        if native.kind
    }


def _renew(entry: Table, known: KnownDifference, covered: Mapping[Place, NativeResult], report: ParityReport) -> None:
    """Remove from an entry the cases that no longer differ, and set its size to the measured size.

    If its patterns also match a difference that another entry covers, replace the patterns by the names of the cases.
    Remove `versions` if the report has no version of its package.

    entry: The entry in the TOML document, which this function changes.
    known: The same entry as a model, with its values before the change.
    covered: The results that the entry covers, by (framework, case name).
    """
    names = sorted(case for _, case in covered)
    gone = known.unmatched_patterns(names)
    patterns = [pattern for pattern in known.cases if pattern not in gone]
    narrowed = known.model_copy(update={"cases": patterns})
    also = {place for place, native in _differences(report).items() if _covers(narrowed, place, native)}
    cases = patterns if also == covered.keys() else names
    if cases != known.cases:
        entry["cases"] = cases
    if known.unreported(report.versions):
        del entry["versions"]
    if known.kind in SIZED:
        entry["size"] = _size(covered.values(), known.within)


def _size(natives: Iterable[NativeResult], within: float) -> float:
    """Return the largest size of these results, rounded to three digits.

    within: If rounding changes the size by more than this factor, return the size unrounded.
    """
    greatest = max(difference.size for difference in natives)
    size = float(f"{greatest:.3g}")
    return size if size / within <= greatest <= size * within else greatest


def _entry(framework: str, function: str, kind: str, natives: dict[str, NativeResult], old: list[Any]) -> Table:
    """Return a new entry for the differences of a function.

    natives: The results of the function that differ, by case name.
    old: The previous entries. The first one for the same framework, function and kind provides the title and the
        reason. Without such an entry, the reason describes the kind.
    """
    subject = {"framework": framework, "function": function, "kind": kind}
    same = [entry for entry in old if all(entry[name] == value for name, value in subject.items())]
    words = {name: same[0][name] for name in ("title", "reason") if same and name in same[0]}
    entry = tomlkit.table()
    entry.update(subject)
    if kind in SIZED:
        entry["size"] = _size(natives.values(), WITHIN)
    entry["cases"] = sorted(natives)
    entry.update({"reason": KINDS[kind], **words})
    return entry
