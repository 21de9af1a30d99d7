"""Write the differences of a run into a suite's list of known differences, for `unified-clip parity --accept`."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from tomlkit.items import AoT, Table

from ..._kit import atomic_files
from ..results import NativeResult, ParityReport
from .entries import FACTOR, KINDS, ONE_SIZE, SIZED, KnownDifference, as_size, parts
from .match import Place


class Changes(NamedTuple):
    kept: int
    changed: int
    removed: int
    added: int


Differences = Mapping[Place, NativeResult]


def accept_differences(path: Path, known: Sequence[KnownDifference], report: ParityReport) -> Changes:
    """Update the list of known differences. Entries that are still right, and all comments, stay unchanged.

    known: The entries of the list.
    """
    document = tomlkit.parse(atomic_files.read_text(path)) if path.exists() else tomlkit.document()
    tables = _entry_tables(document)
    differences = _differences(report)
    judged = {entry.framework for entry in report.known}
    listed = {
        place
        for place, each in differences.items()
        if any(entry.is_for(*place, each) and entry.bounds(each) for entry in known)
    }
    places = set(listed)
    stale, changed = list[int](), 0
    for index, table in enumerate(tables):
        covered, frameworks = dict[Place, NativeResult](), []
        own = [entry for entry in known if entry.table == index]
        for entry in own:
            of_entry = {
                place: each
                for place, each in differences.items()
                if entry.is_for(*place, each) and entry.bounds(each, FACTOR if place in listed else FACTOR * ONE_SIZE)
            }
            covered |= of_entry
            frameworks += [entry.framework] if of_entry or entry.framework not in judged else []
        if not frameworks:
            stale.append(index)
        elif any(entry.framework in judged for entry in own):
            places |= covered.keys()
            changed += _update(table, own[0], covered, frameworks)
    kept = len(tables) - len(stale) - changed
    for index in reversed(stale):
        del tables[index]
    added = _new_entries({place: each for place, each in differences.items() if place not in places})
    for table in added:
        tables.append(table)
    if not tables:
        del document["known"]  # `known = []` would be in the way of later [[known]] tables
    atomic_files.write(path, re.sub(r"^([^#\n].*\n)(?=\[\[known\]\])", r"\1\n", tomlkit.dumps(document), flags=re.M))
    return Changes(kept, changed, len(stale), len(added))


def _differences(report: ParityReport) -> dict[Place, NativeResult]:
    return {
        (framework, case.name): native
        for case in report.cases
        for framework, native in case.natives.items()
        if native.kind
    }


def _update(table: Table, entry: KnownDifference, covered: Differences, frameworks: Sequence[str]) -> bool:
    """Set the size to the largest difference, and remove names of cases and frameworks without this difference."""
    gone = entry.unmatched_patterns([case for _, case in covered])
    has_other_size = not all(map(entry.bounds, covered.values()))
    remaining = entry.model_copy(update={"also": list(frameworks[1:])})
    has_other_size |= remaining.is_too_large(parts(each)[1] for each in covered.values())
    is_shorter = len(frameworks) <= len(entry.also)
    if has_other_size:
        table["size"] = _size(covered.values())
        # a comment beside a reason is the user's
        if table.get("reason") == "" and any(each.is_users for each in covered.values()):
            _comment(table["reason"], _reason(list(covered.values())))
    if gone:
        table["cases"] = _names([name for name in entry.cases if name not in gone])
    if is_shorter:
        table["framework"], table["also"] = frameworks[0], list(frameworks[1:])
    return bool(has_other_size or gone or is_shorter)


def _new_entries(differences: Differences) -> list[Table]:
    groups: dict[tuple[object, ...], dict[Place, NativeResult]] = {}
    for place, each in differences.items():
        what, number = parts(each)
        power = math.floor(math.log(number, ONE_SIZE)) if 0 < number < math.inf else number
        groups.setdefault((place[0], each.function, each.kind, what, each.cause_kind, power), {})[place] = each
    return [_entry(group) for group in groups.values()]


def _entry(group: Differences) -> Table:
    (framework, _), first = next(iter(group.items()))
    cases, function = sorted(case for _, case in group), first.function or ""
    entry = tomlkit.table()
    entry.update({"framework": framework, "function": function, "size": _size(group.values())})
    entry["cases"] = _names(cases)
    reason = _reason(list(group.values()))
    # whoever wrote a function decides whether its difference is intended
    entry["reason"] = "" if first.is_users else reason
    if first.is_users:
        _comment(entry["reason"], reason)
    return entry


def _comment(item: Any, cause: str) -> None:
    item.trivia.comment = item.trivia.comment_ws = ""
    if cause:
        item.comment(cause)


def _reason(natives: Sequence[NativeResult]) -> str:
    """Return the cause as the reason, or an empty text if the user has to write the reason."""
    kind = natives[0].kind
    causes = list(dict.fromkeys(native.cause for native in natives if native.cause))
    if not causes and any(native.finite_size or native.not_finite for native in natives):
        return ""
    causes = causes or [f"{KINDS[kind]}: {text}" for text in dict.fromkeys(each.detail for each in natives) if text]
    if not causes or kind in ("returns", "elements"):
        return "" if kind in SIZED else KINDS[kind]
    return causes[0] if len(causes) == 1 else f"{causes[0]} (in the first of {len(natives)} cases)"


def _size(natives: Collection[NativeResult]) -> float | str:
    return as_size(*max(map(parts, natives)))


def _names(cases: Sequence[str]) -> Any:
    names = tomlkit.array().multiline(len(cases) > 1)
    names.extend(cases)
    return names


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
