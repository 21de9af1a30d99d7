"""Update the stale and incomplete entries in a list of known differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tomlkit
from tomlkit.items import AoT, Table

from ..results import NativeResult, ParityReport
from .entries import KnownDifference, NotFinite, cause_value
from .match import Place
from .new_entries import set_cases


class Updates(NamedTuple):
    changed: int
    stale: list[int]
    more: list[tuple[int, Table]]
    """(index, new entry). The new entry is inserted directly after the entry with this index."""

    unlisted: dict[Place, NativeResult]


def differences_of(report: ParityReport) -> dict[Place, NativeResult]:
    return {
        (framework, case.name): native
        for case in report.cases
        for framework, native in case.natives.items()
        if native.kind
    }


def update_entries(
    tables: AoT, correct: Sequence[KnownDifference], stale_entries: Sequence[KnownDifference], report: ParityReport
) -> Updates:
    differences = differences_of(report)
    unlisted = {
        place: native
        for place, native in differences.items()
        if not any(each.covers(*place, native) for each in correct)
    }
    changed, stale, more = 0, list[int](), list[tuple[int, Table]]()
    for index, table in enumerate(tables):
        if known := next((known for known in stale_entries if _is_same_entry(table, known)), None):
            covered = {place: native for place, native in unlisted.items() if known.covers(*place, native)}
            if covered:
                more += [(index, each) for each in _update(table, known, covered, report)]
                changed += 1
            else:
                stale.append(index)
            unlisted = {place: native for place, native in unlisted.items() if place not in covered}
        elif known := next((known for known in correct if known.lacks_cause and _is_same_entry(table, known)), None):
            covering = [native for place, native in differences.items() if known.covers(*place, native)]
            table["cause"] = cause_value(covering)
            changed += 1
    return Updates(changed, stale, more, unlisted)


def _is_same_entry(table: Any, known: KnownDifference) -> bool:
    names = ("framework", "function", "kind", "cases", "reason")
    same = all(table[name] == getattr(known, name) for name in names)
    return same and all(table.get(name, "") == getattr(known, name) for name in ("versions", "not_finite", "cause"))


def _update(
    table: Table, known: KnownDifference, covered: Mapping[Place, NativeResult], report: ParityReport
) -> list[Table]:
    """Update an entry from its results, and return a new entry for each additional value of `not_finite`."""
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
    return tables[1:]


def _set(table: Table, known: KnownDifference, covered: Mapping[Place, NativeResult], report: ParityReport) -> None:
    """Set the cases, the size and `not_finite` of an entry from the results in `covered`.

    If a pattern in `cases` also matches a difference outside `covered`, the names of the cases in `covered` replace
    the patterns.
    """
    natives = {case: native for (_, case), native in covered.items()}
    names = sorted(natives)
    gone = known.unmatched_patterns(names)
    patterns = [pattern for pattern in known.cases if pattern not in gone]
    narrowed = known.model_copy(update={"cases": patterns})
    also = {place for place, native in differences_of(report).items() if narrowed.covers(*place, native)}
    cases = patterns if also == covered.keys() else names
    set_cases(table, cases, natives, known.within, has_sizes=isinstance(known.cases, dict))
    if known.unreported(report.versions):
        del table["versions"]
    if known.lacks_cause:
        table["cause"] = cause_value(covered.values())
