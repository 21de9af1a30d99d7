"""Write the report of a check as text, JSON, SARIF, GitHub annotations and GitLab's Code Quality."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from .. import __version__
from .._kit.display import annotation, counted, safe
from ..config.explain.compare import RESULT
from .model import TITLES, CheckReport, Clip, Finding

STYLES = {"drift": "bold red", "missing": "bold red", "unknown": "bold yellow", "unused": "bold yellow"}
ERRORS = ("drift", "missing")
"""The kinds of findings that are errors in SARIF, on GitHub and on GitLab. All other kinds are warnings."""

MAX_LINES = 20
MAX_PLACES = 5

CODE = ("edit",)
"""The fields of the report that contain code. Line breaks in code are kept."""


def _escaped(report: CheckReport) -> CheckReport:
    return CheckReport.model_validate(safe(report.model_dump(), code=CODE))


def as_text(report: CheckReport, *, printed: bool = False) -> str:
    """Return a report as text. Equal findings are printed once, with all their places. Each ignored finding has one
    line.

    printed: Whether the text is for standard output. On a terminal, the text has colours.
    """
    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    is_terminal = printed and sys.stdout is not None and sys.stdout.isatty()
    console = Console(file=file, highlight=False, force_terminal=is_terminal, no_color=None if is_terminal else True)
    report = _escaped(report)
    said: dict[str, str] = {}
    for finding, *equal in _grouped(report.findings):
        title = Text.assemble((finding.place, "bold"), " ", (finding.kind, STYLES[finding.kind]), f" {finding.clip}")
        console.print(title, soft_wrap=True)
        for name, text in [*_fields(finding), *_also_at(equal)]:
            if name == RESULT and (first := said.setdefault(text, finding.place)) != finding.place:
                text = f"as in {first}"
            lines = f"{name}:\n{textwrap.indent(text, '  ')}" if "\n" in text else f"{name}: {text}"
            console.print(Text(textwrap.indent(lines, "  ")), soft_wrap=True)
    for line in [*_clip_lines(report), *_ignored_lines(report)]:
        console.print(Text(line), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    console.print(Text(report.headline, "bold"), soft_wrap=True)
    return file.getvalue()


def _grouped(findings: Sequence[Finding]) -> Iterable[list[Finding]]:
    """Group findings that differ only in the name of their file."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        own_file = re.compile(rf'("[^"\n]*|\S*){re.escape(PurePath(finding.path).name)}')
        fields = [(name, own_file.sub("", text)) for name, text in _fields(finding)]
        groups.setdefault((finding.kind, finding.clip, *fields), []).append(finding)
    return groups.values()


def _also_at(equal: Sequence[Finding]) -> list[tuple[str, str]]:
    places = [finding.place for finding in equal]
    more = len(places) - MAX_PLACES
    if more > 1:
        files = counted(len({finding.path for finding in equal[MAX_PLACES:]}), "file")
        places[MAX_PLACES:] = [f"and {more} more places in {files}. To list all places, add --format json"]
    return [("also at", ", ".join(places))] if places else []


def _clip_lines(report: CheckReport) -> list[str]:
    if report.findings:
        return []
    clips = [clip for clip in report.clips if clip.result != "ignored"]  # their lines have the reason
    if len(report.clips) <= MAX_LINES:
        return [f"{clip.path}:{clip.line} {_kind(clip)}" for clip in clips]
    kinds: dict[str, list[str]] = {}
    for clip in clips:
        kinds.setdefault(_kind(clip), []).append(clip.path)
    return [f"{len(paths)} x {kind}, files: {len({*paths})}" for kind, paths in kinds.items()]


def _ignored_lines(report: CheckReport) -> list[str]:
    reasons: dict[tuple[str, str], list[Finding]] = {}
    for finding in report.ignored:
        reasons.setdefault((finding.clip, finding.ignored or ""), []).append(finding)
    return [
        f"{first.path}:{first.line}{f' (and {len(others)} more)' * bool(others)} ignored {clip}: {reason}"
        for (clip, reason), [first, *others] in reasons.items()
    ]


def _kind(clip: Clip) -> str:
    return f"{clip.result} {clip.clip}{f' ({clip.family})' if clip.family else ''}"


def _fields(finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.kind != "drift":
        yield "why", finding.does
    has_rule = any(difference.about == "rule" for difference in finding.differences)
    also = []
    for difference in finding.differences:
        if not has_rule or difference.about in ("rule", "threshold"):
            yield difference.about, f"{difference.found.removesuffix('.')}; wanted: {difference.wanted}"
        else:
            also.append(difference.about)
    if also:
        yield "also different", ", ".join(also)
    if finding.effect:
        yield "effect", finding.effect
    yield "edit", finding.edit


def as_json(report: CheckReport) -> str:
    return json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n"


def as_sarif(report: CheckReport) -> str:
    """Return a report as SARIF 2.1.0, for GitHub code scanning. An ignored finding becomes a result with a
    suppression."""
    rules = [{"id": f"clip-{kind}", "shortDescription": {"text": title}} for kind, title in TITLES.items()]
    driver: dict[str, Any] = {"name": "unified-clip", "rules": rules, "version": __version__}
    report = _escaped(report)
    results = [_sarif(finding) for finding in [*report.findings, *report.ignored]]
    notes = [{"level": "note", "message": {"text": note}} for note in report.notes]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1) + "\n"


def _sarif(finding: Finding) -> dict[str, Any]:
    path = PurePath(finding.path).as_posix()
    uri = f"file://{quote(path)}" if path.startswith("/") else quote(path)
    region = {"startLine": finding.line, "startColumn": finding.column}
    location = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
    result: dict[str, Any] = {
        "ruleId": f"clip-{finding.kind}",
        "level": "error" if finding.kind in ERRORS else "warning",
        "message": {"text": _message(finding)},
        "locations": [location],
    }
    if finding.ignored is not None:
        result["suppressions"] = [{"kind": "external", "justification": finding.ignored}]
    return result


def _message(finding: Finding) -> str:
    lines = [finding.clip, *(f"{name}: {text}" for name, text in _fields(finding))]
    return "\n".join(lines)


def as_github(report: CheckReport) -> str:
    report = _escaped(report)
    lines = [_annotation(finding) for finding in report.findings]
    lines += [annotation("notice", note) for note in report.notes]
    return "\n".join([*lines, *_clip_lines(report), *_ignored_lines(report), report.headline]) + "\n"


def _annotation(finding: Finding) -> str:
    level = "error" if finding.kind in ERRORS else "warning"
    place = {"file": finding.path, "line": finding.line, "col": finding.column}
    return annotation(level, _message(finding), **place, title=TITLES[finding.kind])


def as_gitlab(report: CheckReport) -> str:
    """Return a report in the format of GitLab's Code Quality, without ignored findings. GitLab shows each finding in
    the merge request.

    The fingerprint does not contain the line, so that GitLab recognizes a finding that moves to another line.
    """
    issues: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    for finding in _escaped(report).findings:
        key = "\0".join((finding.kind, finding.path, finding.clip, finding.does))
        counts[key] += 1
        issue = {
            "description": _message(finding),
            "check_name": f"clip-{finding.kind}",
            "fingerprint": hashlib.sha256(f"{key}\0{counts[key]}".encode()).hexdigest(),
            "severity": "major" if finding.kind in ERRORS else "minor",
            "location": {"path": finding.path, "lines": {"begin": finding.line}},
        }
        issues.append(issue)
    return json.dumps(issues, indent=1) + "\n"


WRITERS: Mapping[str, Callable[[CheckReport], str]] = {
    "text": as_text,
    "json": as_json,
    "sarif": as_sarif,
    "github": as_github,
    "gitlab": as_gitlab,
}
