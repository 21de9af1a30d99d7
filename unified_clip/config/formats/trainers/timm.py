"""The formats of timm's train.py, with `clip_grad` and `clip_mode` in YAML, or as options in a shell script."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from packaging.version import Version

from ...._kit import atomic_files
from ...documents import Document, Key, script_options
from ...schema import Settings
from ..base import Imported
from ..rows import ScriptFormat

LAST_TWO_UNCLIPPED = (
    "with `clip_mode: agc`, timm never clips the last two parameters of the model. Set `rule` to "
    '"global_norm" or "value", and set `threshold` instead of `adaptive`.'
)


MOST_FOLDERS = 8
"""The number of folders in which train.py can be: the folder of the script, and its parents."""

LAMB = re.compile(r"--opt-kwargs[\s\\=]+(?:[\"']?\w+=\S+[\s\\]+)*?[\"']?max_grad_norm=([^\s\"']+)")
STARTED = re.compile(r"(?<![^\s\"'])((?:[\w.-]+/)*)(?:train\.py|distributed_train\.sh)(?![\w.])")
"""Matches timm's train.py, or its launcher beside train.py. The group is the folder."""

PROCESSES = re.compile(r"(distributed_train\.sh\s+)\S+")
PASSED_ON = re.compile(r"(?<!\S)(--?[\w-]+\s+)?\"?\$(?:[@*]|\{?[A-Za-z_]\w*(?:\[@\])?\}?)\"?(?!\S)")
"""Matches a word such as "$@", which might pass a clip option. An option before the word is part of the match."""


class Timm(ScriptFormat):
    def recognises(self, document: Document) -> bool:
        if document.kind != "args":
            return super().recognises(document)
        return document.shows("clip_mode") or _starts_train(document)

    def parse(self, text: str, name: str) -> Document:
        document = script_options.parse(text, name)
        data = {str(key).replace("-", "_"): value for key, value in document.data.items()}
        places = {keys: line for name, line in document.places.items() if (keys := _with_underscores(name))}
        return replace(document, data=data, places=places)

    def read(self, document: Document, version: Version | None) -> Imported:
        imported = super().read(document, version)
        return replace(imported, notes=[*self._notes_on_second_clip(document), *imported.notes])

    def second_clip(self, document: Document) -> tuple[str, Any]:
        keys = document.data if isinstance(document.data, dict) else {}
        kwargs = keys.get("opt_kwargs")
        passed = LAMB.search(script_options.without_comments(document.text)) if document.kind == "args" else None
        own = script_options.option_value(passed[1], {}) if passed else 1.0
        has_argument = passed is not None or document.shows(
            "opt_kwargs", "max_grad_norm"
        )  # only Lamb has this argument
        value = keys.get("opt") or ("lamb" if has_argument else "sgd")
        names = map(str, value if isinstance(value, list) else [value])  # a list has a name for each command
        optimizer = next((name for name in names if "lamb" in name.lower()), "")
        threshold = kwargs.get("max_grad_norm", own) if isinstance(kwargs, dict) else own
        return optimizer, None if threshold in (None, "None") or not optimizer else threshold

    def _notes_on_second_clip(self, document: Document) -> list[str]:
        optimizer, threshold = self.second_clip(document)
        if threshold is None:
            return []
        return [
            f"{optimizer} clips the global norm at {threshold} again inside step(). This clip is not imported. "
            "To switch this clip off, set `opt_kwargs: {max_grad_norm: null}`."
        ]

    def write(self, settings: Settings, version: Version) -> Any:
        if settings.adaptive is not None and settings.adaptive.rule == "agc":
            raise self.not_exported(LAST_TWO_UNCLIPPED + self.in_python)
        return super().write(settings, version)


def _with_underscores(keys: tuple[Key, ...]) -> tuple[Key, ...]:
    return tuple(str(key).replace("-", "_") for key in keys)


def _starts_train(document: Document) -> bool:
    """Return whether a script starts the train.py of timm, which has the option --clip-mode.

    A script that only passes its own arguments to train.py does not count.
    """
    code = script_options.without_comments(document.text)
    is_complete = document.shows("clip_grad") or all(PASSED_ON.findall(PROCESSES.sub(r"\1", code)))
    if document.path is None or not is_complete:
        return False
    folder = document.path.resolve().parent
    folders = [folder, *folder.parents][:MOST_FOLDERS]
    files = (each / path / "train.py" for path in dict.fromkeys(STARTED.findall(code)) for each in folders)
    return any("--clip-mode" in atomic_files.read_text(file, errors="replace") for file in files if file.is_file())
