"""Write the differences of a run into a suite's list of known differences, for `unified-clip parity --accept`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.items import AoT, Table

from ..._atomic_write import atomic_write
from ..results import NativeResult, ParityReport
from .entries import (
    KINDS,
    SIZED,
    UNEXPLAINED,
    WITHIN,
    KnownDifference,
    NotFinite,
    cause_value,
    is_match,
    recorded_cause,
)
from .match import Place


class Changes(NamedTuple):
    kept: int
    changed: int
    removed: int
    added: int


def accept_differences(path: Path, report: ParityReport) -> Changes:
    """Remove stale entries from the list of known differences, and add entries for new differences.

    Correct entries and comments stay unchanged. If only the size or the cases of an entry are stale, the entry is
    updated.
    """
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    tables = _entry_tables(document)
    old = [table.unwrap() for table in tables]
    differences = _differences(report)
    correct, stale_entries = _correct_and_stale(report, differences)
    unlisted = {
        place: native
        for place, native in differences.items()
        if not any(each.covers(*place, native) for each in correct)
    }
    renewed, stale, more = 0, list[int](), list[tuple[int, Table]]()
    for index, table in enumerate(tables):
        if known := next((known for known in stale_entries if _is_same_entry(table, known)), None):
            covered = {place: native for place, native in unlisted.items() if known.covers(*place, native)}
            if covered:
                more += [(index, each) for each in _renew(table, known, covered, report)]
                renewed += 1
            else:
                stale.append(index)
            unlisted = {place: native for place, native in unlisted.items() if place not in covered}
        elif known := next((known for known in correct if known.lacks_cause and _is_same_entry(table, known)), None):
            covering = [native for place, native in differences.items() if known.covers(*place, native)]
            table["cause"] = cause_value(covering)
            renewed += 1
        elif table.get("size") == math.inf:  # an entry of an earlier version, which this run did not measure
            del table["size"]
            table["not_finite"] = "norm and gradients"
    groups: dict[tuple[str, str, str, str, str, str], dict[str, NativeResult]] = {}
    for (framework, case), each in unlisted.items():
        # An entry covers every smaller size, too: a large difference of one case must not hide the growth of another.
        key = (framework, each.function or "", each.kind, each.not_finite, recorded_cause(each), _magnitude(each))
        groups.setdefault(key, {})[case] = each
    added = [_entry(*key[:3], natives=natives, old=old) for key, natives in groups.items()]
    kept = len(tables) - len(stale) - renewed
    for index in reversed(range(len(tables))):
        for table in reversed([each for place, each in more if place == index]):
            tables.insert(index + 1, table)
        if index in stale:
            del tables[index]
    for table in added:
        tables.append(table)
    if not tables:
        del document["known"]  # `known = []` would be in the way of later [[known]] tables
    with atomic_write(path) as new:
        new.write_text(tomlkit.dumps(document), encoding="utf-8")
    return Changes(kept, renewed, len(stale), len(more) + len(added))


def _correct_and_stale(
    report: ParityReport, differences: Mapping[Place, NativeResult]
) -> tuple[list[KnownDifference], list[KnownDifference]]:
    correct, stale = list[KnownDifference](), list[KnownDifference]()
    for result in report.known:
        if result.entry:
            natives = (native for place, native in differences.items() if result.entry.covers(*place, native))
            is_correct = not result.problem and not any(native.problem for native in natives)
            (correct if is_correct else stale).append(result.entry)
    return correct, stale


def _magnitude(native: NativeResult) -> str:
    """Return the decimal exponent of the relative difference, or '' if this difference is 0."""
    return str(math.floor(math.log10(native.finite_size))) if native.finite_size else ""


def _entry_tables(document: tomlkit.TOMLDocument) -> AoT:
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


def _is_same_entry(table: Any, known: KnownDifference) -> bool:
    names = ("framework", "function", "kind", "cases", "reason")
    same = all(table[name] == getattr(known, name) for name in names)
    return same and all(table.get(name, "") == getattr(known, name) for name in ("versions", "not_finite", "cause"))


def _differences(report: ParityReport) -> dict[Place, NativeResult]:
    return {
        (framework, case.name): native
        for case in report.cases
        for framework, native in case.natives.items()
        if native.kind
    }


def _renew(
    table: Table, known: KnownDifference, covered: Mapping[Place, NativeResult], report: ParityReport
) -> list[Table]:
    """Update the size and cases of an entry.

    If its results have several values of `not_finite`, return a new entry for each value except the greatest.
    """
    groups: dict[NotFinite, dict[Place, NativeResult]] = {}
    for place, native in covered.items():
        groups.setdefault(native.not_finite, {})[place] = native
    tables = [table]
    for not_finite in sorted(groups, reverse=True):
        if not_finite != max(groups):
            tables.append(tomlkit.table())
            tables[-1].update(
                {key: value.unwrap() for key, value in table.items() if key not in ("size", "not_finite")}
            )
        _set(tables[-1], known.model_copy(update={"not_finite": not_finite, "size": 0.0}), groups[not_finite], report)
    for each in tables[1:]:
        each.add(tomlkit.nl())
    return tables[1:]


def _set(table: Table, known: KnownDifference, covered: Mapping[Place, NativeResult], report: ParityReport) -> None:
    """Set the cases, the size and `not_finite` of an entry from the results that it covers.

    If a pattern also matches a difference of another entry, use the names of the cases instead of the patterns.
    """
    names = sorted(case for _, case in covered)
    gone = known.unmatched_patterns(names)
    patterns = [pattern for pattern in known.cases if pattern not in gone]
    narrowed = known.model_copy(update={"cases": patterns})
    also = {place for place, native in _differences(report).items() if narrowed.covers(*place, native)}
    cases = patterns if also == covered.keys() else names
    if cases != table["cases"]:
        table["cases"] = cases
    if known.unreported(report.versions):
        del table["versions"]
    _set_numbers(table, covered.values(), known.within)
    if known.lacks_cause:
        table["cause"] = cause_value(covered.values())


def _set_numbers(table: Table, natives: Collection[NativeResult], within: float) -> None:
    numbers = {"size": _size(natives, within), "not_finite": next(iter(natives)).not_finite}
    for key, value in numbers.items():
        if value:
            table[key] = value
        elif key in table:
            del table[key]


def _size(natives: Collection[NativeResult], within: float) -> float:
    """Return the largest size of the results, rounded to three digits.

    If rounding would change the size too much, do not round.
    """
    greatest = max(difference.finite_size for difference in natives)
    size = float(f"{greatest:.3g}")
    return size if size / within <= greatest <= size * within else greatest


def _entry(framework: str, function: str, kind: str, natives: dict[str, NativeResult], old: list[Any]) -> Table:
    """Return an entry for differences. If an entry in `old` was for the same differences, copy its title and reason."""
    subject = {"framework": framework, "function": function, "kind": kind}
    same = [entry for entry in old if all(entry[name] == value for name, value in subject.items())]
    same = [entry for entry in same if any(is_match(case, entry["cases"]) for case in natives)]
    cause = recorded_cause(next(iter(natives.values())))
    same = [entry for entry in same if not entry.get("cause") or cause in (entry["cause"], *entry["cause"])]
    words = {name: same[0][name] for name in ("title", "reason") if same and name in same[0]}
    entry = tomlkit.table()
    entry.update(subject)
    _set_numbers(entry, natives.values(), WITHIN)
    if cause:
        entry["cause"] = cause
    entry["cases"] = sorted(natives)
    entry.update({"reason": _reason(kind, list(natives.values())), **words})
    return entry


def _reason(kind: str, natives: Sequence[NativeResult]) -> str:
    causes = list(dict.fromkeys(native.cause for native in natives if native.cause))
    if not causes:
        causes = [f"{KINDS[kind]}: {text}" for text in dict.fromkeys(native.detail for native in natives) if text]
    if not causes or kind in ("returns", "elements"):
        return f"{KINDS[kind]}{UNEXPLAINED}" if kind in SIZED else KINDS[kind]
    return causes[0] if len(causes) == 1 else f"{causes[0]} (in the first of {len(natives)} cases)"
