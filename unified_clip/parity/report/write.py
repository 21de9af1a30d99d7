"""Write the report of a run: an HTML page, JSON, Markdown and JUnit XML, from the templates in the folder `web`.

Only the JUnit XML contains durations. All other files of two runs are equal if the results are equal.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from ..._kit import atomic_files, markdown
from ..._kit.display import safe
from ..._page.templates import environment
from ..results import FrameworkResult, ParityReport
from . import build, junit, page, view

FILES = ("parity.json", "index.html", "parity.md", "parity.xml")

MAX_BYTES = 1_000_000
"""GitHub rejects a job summary above 1024 KiB."""

MOST_LINES = (1_000_000, 3000, 1000, 300, 100, 30)
"""How many lines each section of parity.md has. The first number with which the file is small enough is used."""


def remove(out: Path) -> None:
    """Remove the files of an earlier report: a user could take them for files of this run."""
    for path in (out / name for name in FILES):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise atomic_files.unwritable(path, error) from None


def write(report: ParityReport, out: Path) -> None:
    """Write all files of a report, or none of them if an error occurs."""
    atomic_files.make_directory(out)
    data = json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n"
    contents = (data, page.render(report), as_markdown(report), as_xml(report))
    atomic_files.write_all({out / name: content for name, content in zip(FILES, contents, strict=True)})


def as_markdown(report: ParityReport) -> str:
    report = report.safe()
    natives = view.natives_title(report)
    results = [
        (case.name, [case.frameworks.get(name, FrameworkResult()) for name in report.frameworks])
        for case in view.ordered_cases(report)
    ]
    values = {
        "report": report,
        "steps": build.next_steps(report),
        "problems": [f"{'  ' * line.startswith(' ')}{markdown.inline(line)}" for line in view.problem_lines(report)],
        "glance": [f"- {markdown.inline(line)}" for line in view.glance(report)],
        "known": list(map(view.known_row, report.known)),
        "known_header": view.KNOWN_HEADER,
        "versions": [f"- {name} {version}" for name, version in report.versions.items()],
        "header": ["case", *report.frameworks],
        "own": [[name, *map(view.unified_clip, each)] for name, each in results],
        "natives": [[name, *map(view.native, each)] for name, each in results if any(one.native for one in each)],
        "whose": natives,
        "table": markdown.rows,
    }
    template = environment(__package__).overlay(autoescape=False).get_template("parity.md")
    texts = (template.render(values, most=most).rstrip("\n") + "\n" for most in MOST_LINES)
    return next((text for text in texts if len(text.encode()) <= MAX_BYTES), "")


def as_xml(report: ParityReport) -> str:
    suites = junit.test_suites(report)
    total = Counter[str]()
    for suite in suites:
        total += Counter(suite.counts)
    template = environment(__package__).overlay()
    template.filters["printable"] = safe
    started = report.started.strftime("%Y-%m-%dT%H:%M:%S")
    counts = {name: total[name] for name in ("tests", "failures", "errors")}  # xunit2 has no total of skipped tests
    told = [report.verdict, *build.next_steps(report), *report.notes]
    return template.get_template("parity.xml").render(suites=suites, told=told, total=counts, started=started) + "\n"
