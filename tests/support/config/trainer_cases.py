"""The short files in `tests/data/trainer_cases.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unified_clip import ClipConfig, ConfigError

FILE = Path(__file__).parents[2] / "data" / "trainer_cases.toml"


@dataclass(frozen=True)
class Case:
    from_: str
    """The format, or '' if the import infers the format."""

    file: str
    text: str
    shows: str
    """"misplaced": the trainer does not read the clip key at its place. "absent": the file has no clip key."""

    expected: dict[str, Any]


def _case(table: dict[str, Any]) -> Case:
    expected = {key: value for key, value in table.items() if key in ("settings", "notes", "error")}
    return Case(table.get("from", ""), table["file"], table["text"], table.get("shows", ""), expected)


CASES = [_case(table) for table in tomllib.loads(FILE.read_text(encoding="utf-8"))["case"]]


def result(case: Case, folder: Path) -> dict[str, Any]:
    """Return the settings and notes, or the error, of an import of a case."""
    path = folder / case.file
    path.write_text(case.text, encoding="utf-8")
    try:
        config = ClipConfig.import_from(path, case.from_ or None)
    except ConfigError as error:
        return {"error": str(error)}
    settings = config.data()
    notes = settings.pop("provenance").get("notes")
    return {"settings": settings, "notes": notes} if notes else {"settings": settings}
