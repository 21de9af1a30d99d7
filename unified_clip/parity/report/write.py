"""Write the report of a run: a page for the browser, JSON, Markdown and JUnit XML.

Only the JUnit XML contains times. If the results of two runs are equal, all other files are equal, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..._command import unwritable
from ...recording.recorded_run import RecordedCall
from ..results import ParityReport
from . import junit, markdown, page

FILES = ("parity.json", "index.html", "parity.md", "parity.xml")


def remove(out: Path, keep: Path | None) -> None:
    """Remove the files of an earlier report, because they could be mistaken for the report of this run.

    keep: A file that is not removed, such as the baseline.
    """
    for path in (out / name for name in FILES):
        try:
            if not (keep and keep.exists() and path.exists() and path.samefile(keep)):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(out, error) from None


def write(report: ParityReport, out: Path, recorded: Sequence[RecordedCall] = (), ported: Any = None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    data = json.dumps(report.as_json(), indent=1, allow_nan=False) + "\n"
    (out / "parity.json").write_text(data, encoding="utf-8")
    (out / "index.html").write_text(page.render(report, recorded, ported), encoding="utf-8")
    (out / "parity.md").write_text(markdown.as_markdown(report), encoding="utf-8")
    (out / "parity.xml").write_bytes(junit.as_xml(report))
