"""Describe a clip that was found in a file."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .._kit import atomic_files
from .._kit.atomic_files import FileError
from .._kit.parse import parse_expression
from .._kit.static_values import is_number
from ..config.clip_config import ClipConfig
from ..config.documents import Document, format_value

OWN = "unified_clip"
MAX_GRAD_NORM = "max_grad_norm"

THRESHOLD = "__threshold__"

TESTS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.NotEq: operator.ne,
}

ARGUMENT_FORMATS = {
    "deepspeed": "deepspeed", "keras": "keras", "tf_keras": "keras", "lightning": "lightning",
    "pytorch_lightning": "lightning", "timm": "timm", "transformers": "hf", "trl": "hf",
}  # fmt: skip
"""Maps a package to the trainer format whose keys are also Python arguments of the package."""

RUN_TIME_THRESHOLD = re.compile(r"The threshold, |\S+ sets \w+, so the threshold")
"""Matches the reason of a finding if only the threshold of the clip is unknown."""

LINE = re.compile(r"\b[Ll]ine (\d+)")
"""Matches the line in the reason why a file cannot be read."""


class NamedValue(NamedTuple):
    """A clip key and its value. A table or list becomes one `NamedValue` for each inner value."""

    name: str
    """The key. Inside a table, the key is dotted, such as "grad_clip.max_norm"."""

    value: Any


def inner_values(value: Any, name: str = "") -> Iterator[NamedValue]:
    """Yield the values in nested tables and lists.

    name: The name of `value`. The name of a value in a table has a dot, such as "grad_clip.max_norm".
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from inner_values(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from inner_values(inner, name)
    else:
        yield NamedValue(name, value)


def listed(values: Iterable[NamedValue]) -> str:
    return ", ".join(f"{each.name} = {format_value(each.value)}" for each in values)


@dataclass(frozen=True)
class ClipUse:
    """A clip in a file, or a trainer's file whose clip is set in another file.

    Exactly one of the fields `config`, `why_unknown` and `set_elsewhere` is set. A file of `check.each` that trains
    without a clip has the rule "none" and a reason.
    """

    path: Path
    line: int
    column: int
    clip: str
    """The clip in words: a function, an argument, or a trainer with its key."""

    config: ClipConfig | None = None
    """The clip configuration with the same effect as the clip. None if the effect is unknown, or if another file sets
    the clip."""

    why_unknown: str = ""
    rule: ClipConfig | None = None
    """The settings of a clip whose threshold is unknown, or comes from elsewhere. `rule.threshold` is a placeholder."""

    is_setting: bool = False
    """Whether this `ClipUse` is not a clip, but a setting that a clip in another place reads."""

    is_declared: bool = False
    """Whether an entry of `check.key` declares this setting."""

    is_part_of_code: bool = False
    """Whether this setting is a default or an argument in Python code, which other objects need not have."""

    option: str = ""
    attribute: str = ""
    """The attribute or key with the threshold, such as "grad_clip" for `config.grad_clip`, or '' for other code."""

    condition: str = ""
    """The condition under which the code clips, with THRESHOLD in place of the threshold, or ''."""

    origins: tuple[tuple[Path, int], ...] = ()
    """The places from which the threshold of a call comes, such as the definition of a command line option."""

    settled: tuple[tuple[Path, int, int], ...] = ()
    """The places (with columns) of settings that do not count: defaults that no call uses, and values that are compared
    here because calls pass them."""

    reader: Path | None = None
    """The file that reads the attribute, if it is not the file of the clip."""

    written_at: str = ""
    """The place of the number, if it is not in the call. Otherwise ''."""

    settings: tuple[tuple[Path, int], ...] = ()
    """The places of the settings that a clip reads, if they alone decide whether it is as in the configuration."""

    values: tuple[NamedValue, ...] = ()
    """The values of all clip keys in the file, if no known trainer reads these keys. Otherwise, the tuple is empty."""

    by_default: bool = False
    """Whether the clip is the trainer's default, because the file sets no clip key."""

    set_elsewhere: str = ""
    """A sentence about the place that sets the clip, if another file sets it."""

    format: str = ""
    document: Document | None = None
    """The parsed configuration of a trainer."""

    engine: str = ""
    engine_file: str = ""
    """The file with the settings of an engine, which decide whether the clip has an effect. Otherwise ''."""

    package: str = ""
    """The package of a clip in Python source: "torch" for torch.nn.utils.clip_grad_norm_."""

    users: tuple[Path, ...] = ()
    """The other checked files that import the clip's configuration."""

    code: str = ""
    """What `--accept` accepts, besides the name: the code of a call in Python, all settings of a file that might be
    clips, or the digest of a file that cannot be read. Otherwise ''."""

    call: str = ""
    """The code of a call that clips, with THRESHOLD in place of the threshold."""

    @property
    def read_in(self) -> Path:
        """The file whose settings count."""
        return self.reader or self.path

    @property
    def threshold(self) -> Any:
        return self.config and self.config.threshold

    @property
    def rule_of_any_threshold(self) -> ClipConfig | None:
        return self.rule if not self.values and RUN_TIME_THRESHOLD.match(self.why_unknown) else None

    def is_off_at(self, threshold: float) -> bool:
        """Return whether the code tests the threshold and does not clip with this one, as in `if clip > 0:`."""
        return self.condition != "" and _holds(parse_expression(self.condition), threshold) is False

    @property
    def is_own(self) -> bool:
        return self.format == OWN or self.clip.partition(".")[0] == OWN


def _holds(condition: ast.expr, threshold: float) -> bool | None:
    """Return whether a condition holds, or None if this does not only depend on the threshold."""
    match condition:
        case ast.Name(id=name) if name == THRESHOLD:
            return bool(threshold)
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[ast.Constant(value=limit)]) if (
            name == THRESHOLD and type(op) in TESTS and is_number(limit)
        ):
            return bool(TESTS[type(op)](threshold, limit))
        case ast.BoolOp(op=ast.And(), values=values) if any(_holds(each, threshold) is False for each in values):
            return False
    return None


@dataclass
class FoundClips:
    uses: list[ClipUse] = field(default_factory=list)
    trainers: int = 0
    sources: int = 0
    notes: list[str] = field(default_factory=list)
    elsewhere: list[Path] = field(default_factory=list)
    without_clip: dict[str, list[Path]] = field(default_factory=dict)
    """The trainers' files whose clip is set in another file, by the reason."""

    unread: int = 0


def shown(path: Path) -> str:
    """Return a path with "/" on all systems. If the file is below the working directory, the path is relative."""
    relative = os.path.relpath(path)
    return path.as_posix() if relative.startswith("..") else Path(relative).as_posix()


def of_unread_file(path: Path, clip: str, why: str, **fields: Any) -> ClipUse:
    """Return a clip of unknown effect for a file that cannot be read. `--accept` does not accept a changed file."""
    line, code = LINE.search(why), ""
    with contextlib.suppress(FileError):  # a file that cannot be opened
        code = f"sha256 {hashlib.sha256(atomic_files.read_bytes(path)).hexdigest()}"
    return ClipUse(path, int(line[1]) if line else 1, 1, clip, why_unknown=why, code=code, **fields)


def with_threshold(rule: ClipConfig, threshold: Any) -> ClipConfig:
    """Return the clip with another threshold, which replaces the bounds of a clip by value."""
    settings = {key: value for key, value in rule.data().items() if key not in ("min", "max")}
    return ClipConfig(**{**settings, "threshold": threshold})
