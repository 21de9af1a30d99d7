"""Build the report of ported code, write it as JSON, text or HTML, and read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from ..._kit import atomic_files
from ..._kit.atomic_files import LARGEST_REPORT
from ..._kit.coded_error import CodedError
from ..._kit.display import counted
from ...config.explain import compare, describe
from ..ported_clip import UNUSED, Meaning, PortedClip, PortedFile, Target, UnreadableFile, Verdict
from . import differences, model, terminal
from .model import Report


class ReportError(CodedError, code="UC404"):
    """A report cannot be written or read."""


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
        version=2,
        target=target,
        written=written,
        headline=_headline(counts),
        next=_next(counts, written, option),
        by_hand=[f"{file.path.as_posix()}: {line}" for file in ported for line in file.by_hand],
        rounding=differences.rounding(),
        summary=counts,
        files=files,
        unread=[model.UnreadFile(path=file.path.as_posix(), reason=file.reason) for file in unreadable],
        meanings=list(tables.meanings.values()),
        comparisons=list(tables.comparisons.values()),
        known=list(tables.known.values()),
    )


def writer(path: Path) -> Callable[[Report], str]:
    """Return the function that formats a report. The suffix of the file defines the format."""
    if path.suffix.lower() not in WRITERS:
        suffixes = " or ".join(WRITERS)
        raise ReportError(f"{path}: the name of a report must end in {suffixes}. Pass such a name.", "UC203")
    atomic_files.check_writable(path)
    return WRITERS[path.suffix.lower()]


def write(path: Path, report: Report) -> None:
    text = writer(path)(report)
    atomic_files.write(path, text)


def read(path: Path) -> Report:
    try:
        return Report.model_validate_json(atomic_files.read_bytes(path, LARGEST_REPORT))
    except ValidationError as error:
        first = error.errors()[0]
        keys = ".".join(map(str, first["loc"]))
        problem = f"is not a report of `unified-clip port`{f'. At {keys}' if keys else ''}: {first['msg']}"
    raise ReportError(f"{path} {problem}. Pass a file that `unified-clip port PATH --report port.json` wrote.")


def as_json(report: Report) -> str:
    return json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n"


def _as_html(report: Report) -> str:
    from ...parity.report import page

    return page.render_ported(report)


WRITERS: Mapping[str, Callable[[Report], str]] = {".txt": terminal.as_text, ".json": as_json, ".html": _as_html}


class _Tables:
    def __init__(self) -> None:
        self.meanings: dict[Hashable, model.ClipMeaning] = {}
        self.comparisons: dict[Hashable, model.MeaningComparison] = {}
        self.known: dict[Hashable, model.KnownDifferenceSummary] = {}
        self._suggested: dict[Hashable, str] = {}

    def clip(self, site: PortedClip, path: Path) -> model.ReportedClip:
        place = f"{path.as_posix()}:{site.line}:{site.column}"
        first = self._suggested.setdefault(tuple(site.suggestion), place) if site.suggestion else place
        before, after = site.meaning, site.becomes_meaning
        is_old_keras = site.name.endswith("(clipnorm=)") and (before is None or before.config.rule != "norm")
        measured = (
            "" if site.verdict == "left" or site.rule == UNUSED or is_old_keras else differences.measured_as(site.name)
        )
        same = comparison = None
        difference = ""
        if before is not None and after is not None:
            same = before.config.meaning == after.config.meaning and before.threshold == after.threshold
            difference = "Both clips have the same rule. The results differ by rounding only."
            if not same:
                comparison, difference = self._comparison(before, after)
        return model.ReportedClip.model_validate(
            vars(site)
            | {"meaning": self._meaning(before), "becomes_meaning": self._meaning(after), "same": same}
            | {"suggested_at": "" if first == place else first}
            | {"difference": difference, "comparison": comparison, "measured_as": measured}
            | {"known": self._known(measured), "becomes_known": self._known(differences.measured_as(site.becomes))}
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

    def _comparison(self, before: Meaning, after: Meaning) -> tuple[int, str]:
        key = (self._meaning(before), self._meaning(after))
        if key not in self.comparisons:
            data = compare.as_data(compare.compare(before.config, after.config, ("before", "after")))
            data["differences"] = [{"before": each["a"], "after": each["b"], **each} for each in data["differences"]]
            numbers = {"number": len(self.comparisons) + 1, "before": key[0], "after": key[1]}
            self.comparisons[key] = model.MeaningComparison.model_validate(data | numbers)
        comparison = self.comparisons[key]
        if before.threshold == after.threshold:
            return comparison.number, comparison.summary
        limits = [meaning.threshold or describe.limits(meaning.config) for meaning in (before, after)]
        return comparison.number, f"The threshold changes from {limits[0]} to {limits[1]}. {comparison.summary}"

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
        todo.append("make the checks in the report and run the tests")
    return f"Next: {'. Then '.join(todo)}." if todo else "There is nothing to do."
