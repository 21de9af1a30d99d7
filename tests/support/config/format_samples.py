"""Sample files of trainers' formats, and the expected results in `tests/data/formats/<format>/expected.toml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tomlkit
from packaging.version import Version

from unified_clip.config import documents
from unified_clip.config.documents import DOCUMENT_KINDS, Document
from unified_clip.config.formats import FORMATS, Format
from unified_clip.config.formats.python_source import PythonFormat

DATA = Path(__file__).parents[2] / "data" / "formats"
PAGE = Path(__file__).parents[3] / "docs" / "formats.md"


class FormatKey(NamedTuple):
    format: str
    key: str
    meaning: str
    default: str
    special_values: str
    support: str
    versions: str


def _keys() -> list[FormatKey]:
    table = PAGE.read_text(encoding="utf-8").partition("\n## Every key\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return [FormatKey(*(cell.strip(" `") for cell in row)) for row in rows]


KEYS = _keys()


@dataclass(frozen=True)
class Sample:
    format: Format
    file: str
    version: str | None = None
    rows: list[str] = field(default_factory=list)
    """The rows of the table in docs/formats.md that it shows."""

    settings: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    shows: str = ""
    """"misplaced" means that the trainer does not read the clip key at its place, "absent" means no clip key, and
    "unrelated" means no key of the trainer."""

    recognised: bool = True

    @property
    def path(self) -> Path:
        return DATA / self.format.name / self.file

    @property
    def from_(self) -> str:
        return self.format.name + (f"@{self.version}" if self.version else "")

    def __str__(self) -> str:
        return f"{self.from_}-{self.file}"


def row(key: FormatKey) -> str:
    """Return the name of a row in `expected.toml`: the key, and the versions if the row is about certain versions."""
    return f"{key.key} ({key.versions})" if key.versions else key.key


def keys_of(trainer: Format) -> list[FormatKey]:
    return [key for key in KEYS if key.format == trainer.name]


def samples(trainer: Format) -> list[Sample]:
    expected = tomlkit.parse((DATA / trainer.name / "expected.toml").read_text()).unwrap()
    return [Sample(trainer, **sample) for sample in expected["sample"]]


READ = {name: trainer for name, trainer in FORMATS.items() if not isinstance(trainer, PythonFormat)}
"""The formats whose files are imported."""

SAMPLES = [sample for trainer in READ.values() for sample in samples(trainer)]

VERSIONS = sorted(
    {(entry.format.name, entry.version or entry.format.newest) for entry in SAMPLES if not entry.error}
    | {(name, trainer.newest) for name, trainer in FORMATS.items()}
)


def document(trainer: Format, text: str) -> Document:
    """Parse a text that was written as a format's first kind."""
    kind = trainer.kinds[0]
    return documents.parse(text, kind, "text") if kind in DOCUMENT_KINDS.values() else trainer.parse(text, "text")


def text(trainer: Format, settings: Any, version: str) -> str:
    data, kind = trainer.write(settings, Version(version)), trainer.kinds[0]
    return documents.dump(data, kind) if kind in DOCUMENT_KINDS.values() else trainer.dump(data)
