"""Sample files of trainers' formats, and the expected results in `tests/data/formats/<format>/expected.toml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomlkit
from packaging.version import Version

from unified_clip.config import documents
from unified_clip.config.documents import DOCUMENT_KINDS, Document
from unified_clip.config.formats import FORMATS, Format
from unified_clip.config.formats.python_source import PythonFormat

DATA = Path(__file__).parents[2] / "data" / "formats"


@dataclass(frozen=True)
class Sample:
    format: Format
    file: str
    version: str | None = None
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
