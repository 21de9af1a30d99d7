"""Write the report of a run: an HTML page, JSON, Markdown and JUnit XML.

Only the JUnit XML contains durations. All other files of two runs are equal if the results are equal.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..._kit import atomic_files
from ..results import ParityReport
from . import junit, markdown, page

FILES = ("parity.json", "index.html", "parity.md", "parity.xml")


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
    contents: tuple[str | bytes, ...] = (
        data, page.render(report), markdown.as_markdown(report), junit.as_xml(report),
    )  # fmt: skip
    atomic_files.write_all({out / name: content for name, content in zip(FILES, contents, strict=True)})
