"""The clips of unknown effect that a team accepts as they are, in a file beside the clip configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..._kit import atomic_files
from ...config import documents
from ...errors import ConfigError
from .. import trainer_files
from ..clip_use import ClipUse
from ..judge import make_finding
from ..model import Finding
from . import patterns

HEAD = "# Clips of unknown effect, written by `unified-clip config check --accept`. All others are findings.\n\n"
STALE = "The checked files have {count} fewer of this clip than the entry accepts."
REMOVE = "Type the command with --accept, which writes the file again."

Key = tuple[str, str, str]
"""(path, clip, code)"""


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    path: str
    clip: str
    code: str = ""
    """The code of the call, so that the entry does not accept another threshold."""

    count: int = Field(default=1, ge=1)


class AcceptedFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    accepted: list[Entry]


class Accepted:
    """Counts the accepted clips that a check has not found yet."""

    def __init__(self, file: Path, left: Counter[Key]) -> None:
        self.file, self.listed, self._left = file, Counter(left), left

    def takes(self, finding: Finding) -> bool:
        """Return whether the file lists this finding. Each entry accepts as many clips as its count."""
        key = _key(finding, self.file)
        is_listed = finding.kind == "unknown" and self._left[key] > 0
        self._left[key] -= is_listed
        return is_listed

    def stale(self, files: Sequence[Path]) -> Iterator[Finding]:
        """Yield a finding for each entry whose clip is gone, among the checked files."""
        root = self.file.resolve().parent
        checked = {patterns.relative(file, root) for file in files}
        for index, ((path, clip, _), count) in enumerate(self._left.items()):
            if count > 0 and (path in checked or not (root / path).exists()):
                line = trainer_files.line(self.file, ("accepted", index))
                entry = ClipUse(self.file, line, 1, f"{path} {clip}")
                yield make_finding(entry, "unused", STALE.format(count=count), REMOVE)


def file_of(clip: Path) -> Path:
    """Return the file of accepted clips, such as clip.accepted.toml for clip.toml."""
    return clip.with_name(f"{clip.stem}.accepted.toml")


def read(clip: Path) -> Accepted:
    file = file_of(clip)
    if not file.exists():
        return Accepted(file, Counter())
    data = documents.parse(documents.read_text(file), "toml", file.name).data
    try:
        entries = AcceptedFile.model_validate(data).accepted
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        problem = f"{file}: {place}: {error.errors()[0]['msg']}. Write the file by unified-clip config check --accept."
        raise ConfigError(problem) from None
    return Accepted(file, Counter({(each.path, each.clip, each.code): each.count for each in entries}))


def write(clip: Path, findings: Sequence[Finding], files: Sequence[Path]) -> Path:
    """Write all findings of unknown effect to the file of accepted clips. Entries of files not in `files` stay."""
    file = file_of(clip)
    root = file.resolve().parent
    checked = {patterns.relative(each, root) for each in files}
    counts = Counter(_key(finding, file) for finding in findings if finding.kind == "unknown")
    counts |= {
        key: count for key, count in read(clip).listed.items() if key[0] not in checked and (root / key[0]).exists()
    }
    entries = [
        {"path": path, "clip": text, **({"code": code} if code else {}), "count": count}
        for (path, text, code), count in sorted(counts.items())
    ]
    atomic_files.write(file, HEAD + documents.dump({"accepted": entries}, "toml"))
    return file


def _key(finding: Finding, file: Path) -> Key:
    return patterns.relative(Path(finding.path), file.resolve().parent), finding.clip, finding.code
