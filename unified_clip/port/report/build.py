"""Build the report of ported code."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import get_args

from ..._kit.display import counted
from ...config.explain import describe
from ..ported_clip import UNUSED, Meaning, PortedClip, PortedFile, Target, UnreadableFile, Verdict
from . import differences, model
from .model import Report


def build_report(
    ported: Sequence[PortedFile],
    unreadable: Sequence[UnreadableFile],
    target: Target,
    *,
    written: bool = False,
) -> Report:
    tables = _Tables()
    files = [
        model.ReportedFile(
            path=file.path.as_posix(),
            changed=file.is_changed,
            clips=[tables.clip(site, file.path) for site in file.sites],
        )
        for file in ported
        if file.sites
    ]
    verdicts = [site.verdict for file in ported for site in file.sites]
    counts = model.Counts(
        files=len(ported),
        changed=sum(file.is_changed for file in ported),
        clips=len(verdicts),
        **{verdict: verdicts.count(verdict) for verdict in get_args(Verdict)},
        unread=len(unreadable),
    )
    option = " --to drop-in" if target == "drop-in" else ""
    return Report(
        version=3,
        target=target,
        written=written,
        headline=_headline(counts),
        next=_next(counts, written, option),
        rounding=differences.rounding(),
        summary=counts,
        files=files,
        unread=[model.UnreadFile(path=file.path.as_posix(), reason=file.reason) for file in unreadable],
        meanings=list(tables.meanings.values()),
        known=list(tables.known.values()),
    )


def as_json(report: Report) -> str:
    return json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n"


class _Tables:
    def __init__(self) -> None:
        self.meanings: dict[Hashable, model.ClipMeaning] = {}
        self.known: dict[Hashable, model.KnownDifferenceSummary] = {}
        self._suggested: dict[Hashable, str] = {}

    def clip(self, site: PortedClip, path: Path) -> model.ReportedClip:
        place = f"{path.as_posix()}:{site.line}:{site.column}"
        first = self._suggested.setdefault(tuple(site.suggestion), place) if site.suggestion else place
        is_old_keras = site.name.endswith("(clipnorm=)") and (
            site.meaning is None or site.meaning.config.rule != "norm"
        )
        measured = (
            "" if site.verdict == "left" or site.rule == UNUSED or is_old_keras else differences.measured_as(site.name)
        )
        return model.ReportedClip.model_validate(
            vars(site)
            | {"meaning": self._meaning(site.meaning), "suggested_at": "" if first == place else first}
            | {"measured_as": measured, "known": self._known(measured)}
        )

    def _meaning(self, meaning: Meaning | None) -> int | None:
        if meaning is None:
            return None
        config = meaning.config.dumps("json")
        key = (config, meaning.threshold)
        if key not in self.meanings:
            self.meanings[key] = model.ClipMeaning(
                number=len(self.meanings) + 1,
                sentences=describe.sentences(meaning.config, meaning.threshold),
                threshold=meaning.threshold,
                config=json.loads(config),
            )
        return self.meanings[key].number

    def _known(self, function: str) -> list[int]:
        numbers = []
        for entry in differences.known_differences(function) if function else ():
            if entry.number not in self.known:
                self.known[entry.number] = entry.model_copy(update={"number": len(self.known) + 1})
            numbers.append(self.known[entry.number].number)
        return numbers


def _headline(counts: model.Counts) -> str:
    headline = f"{counted(counts.files, 'file')} read, {counted(counts.clips, 'clip')} found"
    if counts.clips:
        headline = f"{headline}: {counts.rewritten} rewritten, {counts.flagged} flagged, {counts.left} left"
    if not counts.unread:
        return f"{headline}."
    return f"{headline}. {counted(counts.unread, 'file')} {'were' if counts.unread > 1 else 'was'} not read."


def _next(counts: model.Counts, written: bool, option: str) -> str:
    todo = []
    if counts.unread:
        todo.append("fix or pass the files that were not read")
    if counts.changed and not written:
        todo.append(f"review the changes with{option} --format diff and write them with{option} --write")
    if counts.flagged:
        todo.append("rewrite the flagged clips by hand")
    if counts.changed and written:
        todo.append("run the tests")
    return f"Next: {'. Then '.join(todo)}." if todo else "There is nothing to do."
