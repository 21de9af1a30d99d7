"""Read trainers' configurations and clip configurations in TOML, YAML, JSON and Python."""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from .._kit import atomic_files
from .._kit.static_values import is_number
from ..config import documents
from ..config.check_rules import CheckRules
from ..config.clip_config import ClipConfig
from ..config.documents import DOCUMENT_KINDS, Document, Key, dotted
from ..config.formats import convert, placement
from ..config.formats.base import SetElsewhereError, naming_advice
from ..config.formats.convert import Candidate
from ..config.formats.python_source import PythonFormat
from ..config.schema import is_off
from ..errors import ConfigError
from ..port.catalog import clip_function
from . import command_lines
from .clip_use import LINE, ClipUse, NamedValue, inner_values, listed, of_unread_file
from .command_lines import CLIP_NAMES, text_names_clip
from .python.notebooks import NOTEBOOK, all_code

PYTHON = ".py"
SOURCES = (PYTHON, NOTEBOOK)

PYTHON_CONFIGURATION = re.compile(r"^(optim\w*|_base_)\s*=|read_base", re.MULTILINE)

CLIP_WORD = re.compile(r"(?i)clip|max[-_]?(grad|norm)|global[-_]?norm")

MISPLACED = "UC105"

CALLBACK = "ClipCallback"

JSON_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
TRAILING_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')

GLOB = "**/{file}"
"""In a text, the place of a pattern for check.formats. `read` puts the name of the file there."""

TARGET = (
    "The file names code that clips, such as a ClipCallback, and the check does not read its arguments. Create the "
    "clip in Python, or add the clip to check.ignore with a reason."
)
CREATES = ("_target_", "class_path")
"""The keys by which Hydra and LightningCLI name a class or function."""

NO_TRAINER = ("checkpointing_steps", "with_tracking")
"""Scripts with these arguments call Accelerate instead of Trainer."""

TRAINING_ARGUMENTS = ("output_dir", "num_train_epochs")
"""A file with both keys probably sets TrainingArguments."""

BY_DEFAULT = (
    "The file has output_dir and num_train_epochs, like TrainingArguments of Hugging Face and PaddleNLP. Both trainers "
    f'clip at 1.0 by default. Set "{GLOB}" in check.formats to "hf" or to "paddlenlp". Or add the file to '
    "check.ignore with a reason."
)


def read(path: Path, format_: str = "") -> list[ClipUse]:
    """Return the clips that a configuration file sets. Only a shell script can have several clips.

    If the file mentions a clip and cannot be read, return one clip of unknown effect.

    format_: The format as "name" or "name@version", or '' to infer the format.
    """
    glob = GLOB.format(file=path.name)
    return [replace(use, why_unknown=use.why_unknown.replace(GLOB, glob)) for use in _read(path, format_)]


def _read(path: Path, format_: str) -> list[ClipUse]:
    with naming_advice(f'set "{GLOB}" to "{{}}" in check.formats'):
        try:
            name, version = convert.parse_name(format_) if format_ else ("", None)
            candidates = [convert.named(path, name)] if name else _candidates(path)
        except ConfigError as error:
            is_readable = not format_ and _is_commented_json(path)
            is_unread = not is_readable and (format_ or _has_clip_word(path))
            uses = [of_unread_file(path, "configuration", str(error))] if is_unread else []
            return _unrecognised(path) if is_readable else uses
        uses = [_use(path, candidate, version) for candidate in candidates]
    if command_lines.is_shell(path):
        return _of_commands(path, candidates, uses)
    return _chosen(path, uses) if uses else _unrecognised(path)


def _chosen(path: Path, uses: list[ClipUse]) -> list[ClipUse]:
    """Return the clip of a file, in a list. If the file fits several formats, and their clips differ, the effect
    is unknown."""
    known = [use for use in uses if use.config is not None]
    meanings = [use.config.meaning for use in known if use.config is not None]
    if len(uses) > 1 and (len(known) < len(uses) or any(meaning != meanings[0] for meaning in meanings)):
        names = [use.format for use in uses]
        advice = f'In check.formats, set "{GLOB}" to the right format, such as "{names[0]}".'
        why = f"The format of the file is unclear: {' or '.join(names)}. {advice}"
        return [ClipUse(path, 1, 1, "configuration", why_unknown=why, code=uses[0].code)]
    (document, config), clips = (uses[0].document, uses[0].config), uses[:1]
    if document is None or (config is not None and is_off(config)):
        return clips
    return [*clips, *_targets(path, document)]


def check_rules(clip: Path, rules: CheckRules) -> None:
    for glob, name in rules.formats.items():
        try:
            convert.parse_name(name)
        except ConfigError as error:
            raise convert.named(clip, convert.UNIFIED_CLIP)[1].wrong(("check", "formats", glob), str(error)) from None


def _candidates(path: Path) -> list[Candidate]:
    if path.suffix.lower() in DOCUMENT_KINDS:
        return [(trainer, each) for trainer, each in convert.recognising(path) if trainer or _is_own(each)]
    is_script = command_lines.is_shell(path)
    kind = "args" if is_script else "python"
    return [
        (trainer, document)
        for trainer, document in convert.recognising(path)
        if trainer and kind in trainer.kinds and not isinstance(trainer, PythonFormat)
    ]


def _of_commands(path: Path, candidates: Sequence[Candidate], uses: list[ClipUse]) -> list[ClipUse]:
    read = {placement.first_read(document, trainer) for trainer, document in candidates if trainer}
    is_each_set = () not in read and len(read) == len(uses)
    return uses if is_each_set or not uses else _chosen(path, uses)


def _is_own(document: Document) -> bool:
    # a tokenizer's vocabulary can map the words "rule" and "threshold" to numbers
    rule = document.get("rule")
    return rule in ("none", "value", "norm", "global_norm") or (document.has("threshold") and not is_number(rule))


def _use(path: Path, candidate: Candidate, version: Version | None) -> ClipUse:
    trainer, document = candidate
    place = placement.first_read(document, trainer) if trainer else ("rule",)
    unset = placement.unset(document, trainer) if trainer else ""
    title = trainer.title if trainer else "ClipConfig"
    if unset or (trainer and place):
        is_default = unset and not unset.endswith("is null")
        key = unset or dotted(place)
        key = key.replace("_", "-") if document.kind == "args" and len(place) < 2 else key
        title += f" by default: {key}" if is_default else f": {key}"
    name = trainer.name if trainer else convert.UNIFIED_CLIP
    engine = trainer.engine(document) if trainer else ""
    file = document.get(trainer.row.engine_file) if trainer and trainer.row.engine_file else ""
    use = ClipUse(
        path, document.line(place) or 1, 1, title, format=name, document=document, engine=engine,
        attribute=str(place[-1]) if place else "", code=listed(_values(document)),
        engine_file=file if isinstance(file, str) else "",
    )  # fmt: skip
    try:
        config = ClipConfig(**convert.settings(candidate, version))
    except SetElsewhereError as error:
        return replace(use, line=1, set_elsewhere=error.problem)
    except ConfigError as error:
        values = _values(document) if error.code == MISPLACED else ()
        why = str(error).removeprefix(f"{path.name}: ")
        why = why.replace(f" {placement.BY_CODE}", "")  # the edit of the finding already has this advice
        line = LINE.search(why)
        place_of_error = int(line[1]) if line else 1
        return replace(use, line=place_of_error, why_unknown=why, values=values, engine="")
    is_default = bool(unset) or not place
    return replace(use, config=config, by_default=is_default)


def _unrecognised(path: Path) -> list[ClipUse]:
    """Return one clip of unknown effect if the file mentions a clip. Otherwise, return []."""
    suffix = path.suffix.lower()
    if suffix not in DOCUMENT_KINDS:
        files = f"files that end in {suffix!r}" if suffix else "files without a suffix"
        why = (
            f"The file mentions a clip, but unified-clip does not read {files}. Compare the clip with the clip "
            f"configuration by hand, and add the file to check.ignore with a reason."
        )
        return [of_unread_file(path, "file", why)] if suffix != PYTHON and names_clip(path) else []
    may_clip = all(key in _text(path) for key in TRAINING_ARGUMENTS)
    if not (_has_clip_word(path) or may_clip):
        return []
    document = parsed(path)
    clip_keys = placement.clip_keys(document)
    may_clip = may_clip and all(map(document.shows, TRAINING_ARGUMENTS)) and not any(map(document.shows, NO_TRAINER))
    if may_clip and not clip_keys:
        return [ClipUse(path, 1, 1, "TrainingArguments", why_unknown=BY_DEFAULT)]
    return _targets(path, document)


def parsed(path: Path) -> Document:
    """Return the document in a file. JSON can have comments and commas before a closing bracket."""
    kind, text = DOCUMENT_KINDS[path.suffix.lower()], documents.read_text(path)
    try:
        return documents.parse(text, kind, path.name)
    except ConfigError:
        if kind != "json":
            raise
        without = JSON_COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n"), text)
        return documents.parse(TRAILING_COMMA.sub(lambda match: match[1] or "", without), kind, path.name)


def _is_commented_json(path: Path) -> bool:
    with contextlib.suppress(ConfigError):
        return path.suffix.lower() == ".json" and bool(parsed(path))
    return False


def _values(document: Document) -> tuple[NamedValue, ...]:
    return tuple(each for keys, table in placement.clip_keys(document) for each in inner_values(table, str(keys[-1])))


def _targets(path: Path, document: Document) -> list[ClipUse]:
    return [
        ClipUse(path, document.line(keys) or 1, 1, text, why_unknown=TARGET)
        for keys, text in placement.entries(document.data)
        if keys[-1] in CREATES
        and isinstance(text, str)
        and (clip_function(text) is not None or text.endswith(CALLBACK))
    ]


def has_number(value: object) -> bool:
    """Return whether a value is a number, or a table or list with a number."""
    return any(is_number(each.value) for each in inner_values(value))


def names_clip(path: Path) -> bool:
    """Return whether a file contains a name such as `max_grad_norm`. For an unreadable file, return True."""
    try:
        if path.suffix.lower() == NOTEBOOK:
            return text_names_clip(all_code(path))
        with atomic_files.reading(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(pattern.search(content) for pattern in CLIP_NAMES)
    except OSError:
        return True
    except ValueError:  # the file is empty
        return False


def may_name_clip(path: Path) -> bool:
    return names_clip(path) or (may_be_configuration(path) and _has_clip_word(path))


def _has_clip_word(path: Path) -> bool:
    return CLIP_WORD.search(_text(path)) is not None


def may_be_configuration(path: Path) -> bool:
    """Return whether a file can be a trainer's configuration.

    Python source has to contain a line such as `optimizer = ...` or `_base_ = ...`. A notebook cannot be a
    configuration.
    """
    if path.suffix.lower() != PYTHON:
        return path.suffix.lower() != NOTEBOOK
    return PYTHON_CONFIGURATION.search(_text(path)) is not None


def _text(path: Path) -> str:
    text = atomic_files.read_text(path, errors="replace")
    return text.replace("\0", "")  # UTF-16 is not supported, but its words stay readable


def line(path: Path, keys: Sequence[Key]) -> int:
    return convert.named(path, convert.UNIFIED_CLIP)[1].line(keys) or 1
