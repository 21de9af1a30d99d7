"""Write the differences of a run into a suite's list of known differences, for `unified-clip parity --accept`.

updated_entries.py changes existing entries, and new_entries.py writes entries for new differences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import tomlkit
from tomlkit.items import AoT

from ..._kit import atomic_files
from ..results import NativeResult, ParityReport
from .entries import KnownDifference
from .match import Place
from .new_entries import new_entries
from .updated_entries import differences_of, update_entries


class Changes(NamedTuple):
    kept: int
    changed: int
    removed: int
    added: int


def accept_differences(path: Path, report: ParityReport) -> Changes:
    """Update the list of known differences. Correct entries and all comments stay unchanged.

    If only the size or the cases of an entry are stale, update the entry instead of removing it.
    """
    document = tomlkit.parse(atomic_files.read_text(path)) if path.exists() else tomlkit.document()
    tables = _entry_tables(document)
    old = [table.unwrap() for table in tables]
    updates = update_entries(tables, *_correct_and_stale(report, differences_of(report)), report)
    added = new_entries(updates.unlisted, old)
    kept = len(tables) - len(updates.stale) - updates.changed
    for index in reversed(range(len(tables))):
        for table in reversed([each for place, each in updates.more if place == index]):
            tables.insert(index + 1, table)
        if index in updates.stale:
            del tables[index]
    for table in added:
        tables.append(table)
    if not tables:
        del document["known"]  # `known = []` would be in the way of later [[known]] tables
    atomic_files.write(path, _with_blank_lines(tomlkit.dumps(document)))
    return Changes(kept, updates.changed, len(updates.stale), len(updates.more) + len(added))


def _correct_and_stale(
    report: ParityReport, differences: Mapping[Place, NativeResult]
) -> tuple[list[KnownDifference], list[KnownDifference]]:
    correct, stale = list[KnownDifference](), list[KnownDifference]()
    for result in report.known:
        if result.entry:
            natives = (native for place, native in differences.items() if result.entry.covers(*place, native))
            is_correct = not (result.problem or result.is_outdated or any(native.problem for native in natives))
            (correct if is_correct else stale).append(result.entry)
    return correct, stale


def _with_blank_lines(text: str) -> str:
    return re.sub(r"^([^#\n].*\n)(?=\[\[known\]\])", r"\1\n", text, flags=re.MULTILINE)


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
