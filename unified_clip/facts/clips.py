"""Who clips in Python code: the functions in `functions.toml`, and the arguments in `arguments.toml` and `trainers/`.

The comments at the top of these files explain the keys. A row with an unknown key or a wrong value raises RowError.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from .._kit import atomic_files
from .._kit.parse import tomllib
from .trainer_rows import Clip, RowError, Trainer, trainers

Kind = Literal["", "in place", "functional", "any tensor", "class", "program", "unknown"]

Off = Literal["", "None", "None or 0", "None, 0 or less", "0 or less"]
"""The thresholds that switch a trainer's clipping off."""

MODULE_ALIASES = (
    (re.compile(r"tensorflow\.compat\.v[12]\.|tensorflow\.python\.ops\.clip_ops\.|tensorflow\."), "tf."),
    (
        re.compile(r"optax\.(transforms(\._clipping)?|_src\.(clipping|transform)|(_src\.)?contrib\._?\w+|contrib)\."),
        "optax.",
    ),
)

FAMILIES = {"torch": "pytorch", "tensorflow": "tensorflow", "paddle": "paddle", "jax": "paddle", "optax": "paddle"}

ROW = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, eq=False, config=ROW)
class ClipFunction:
    framework: str
    name: str
    kind: Kind
    aliases: Sequence[str] = ()
    parameters: Sequence[str] = ()
    replacement: str = ""
    renamed: Mapping[str, str] = Field(default_factory=dict)
    rule: str = ""
    family: str = ""
    limits: Sequence[str] = ()
    needs: str = ""
    quiet: bool = False
    why_not: str = ""
    lines: Sequence[str] = ()
    tensor: str = ""

    @property
    def has_lines_for_all(self) -> bool:
        return any("{namespace}" in line for line in self.lines)

    @property
    def clipped(self) -> str:
        """The name of the argument with the tensors to clip."""
        return self.tensor or self.parameters[0]

    @property
    def new_names(self) -> list[str]:
        return [self.renamed.get(name, name) for name in self.parameters]


NO_FUNCTION = ClipFunction("", "", "")


@dataclass(frozen=True, eq=False, config=ROW)
class ClassCheck:
    """An engine or optimizer that accepts only Paddle's own clip classes."""

    names: Sequence[str]
    why_not: str
    argument: str = ""
    method: str = ""
    position: int = 0
    harmless: Sequence[str] = ()

    def has(self, full_name: str) -> bool:
        return any(full_name == name or full_name.startswith(f"{name}.") for name in self.names)


@dataclass(frozen=True, eq=False, config=ROW)
class EngineMethod:
    """A method of a training engine that clips by PyTorch's rules, such as Accelerate's `clip_grad_norm_`."""

    name: str
    package: str
    parameters: Sequence[str]
    limits: Mapping[str, str]
    classes: Sequence[str] = ()
    variable: str = ""
    inside: str = ""
    mode: str = ""
    raises: bool = False


@dataclass(frozen=True, eq=False, config=ROW)
class TrainerSetting:
    """An argument that switches a trainer's clipping on, such as `max_grad_norm=`."""

    keyword: str
    why_not: str
    packages: Sequence[str] = ()
    classes: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    factories: Sequence[str] = ()
    default: str = ""
    off: Off = "None or 0"
    none: str = ""
    in_dict: bool = False
    rule: str = ""
    family: str = ""
    rule_keyword: str = ""
    rules: Mapping[str, str] = Field(default_factory=dict)
    lines: Sequence[str] = ()

    @property
    def owners(self) -> Sequence[str]:
        return (*self.classes, *self.elsewhere, *self.factories)


Row = TypeVar("Row")


def _rows(file: str, table: str, row: type[Row], values: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    named = {value.get("name"): value for value in values}
    for number, value in enumerate(values):
        if (like := value.get("like")) is not None:
            if "like" in named.get(like, {"like": ""}):
                raise RowError(f"{file}, {table}.{number}: like = {like!r}, but no row without `like` has this name.")
            value = {**named[like], "aliases": [], **value}
            del value["like"]
        try:
            yield row(**value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (table, number, *first["loc"])))
            raise RowError(f"{file}, {place}: {first['msg']}") from None


@functools.cache
def _tables(file: str) -> dict[str, Any]:
    return tomllib.loads(atomic_files.read_text(Path(__file__).with_name(file)))


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """Return a list from the table `names` in `functions.toml`."""
    return tuple(_tables("functions.toml")["names"][kind])


@functools.cache
def clip_functions() -> dict[str, ClipFunction]:
    rows = map(_complete, _tables("functions.toml")["function"])
    functions = _rows("functions.toml", "function", ClipFunction, list(rows))
    return {name: function for function in functions for name in (function.name, *function.aliases)}


def _complete(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add what follows from the name of a function: its framework, with the family of its rule, and its replacement."""
    if "like" in row:
        return row
    package, last = row["name"].partition(".")[0], row["name"].rpartition(".")[2]
    framework = row.get("framework", {"tf": "tensorflow"}.get(package, package))
    family = FAMILIES.get(framework, "") if "rule" in row else ""
    replacement = "" if "why_not" in row else last
    return {"framework": framework, "family": family, "replacement": replacement, **row}


@functools.cache
def class_checks() -> tuple[ClassCheck, ...]:
    file = "functions.toml"
    return tuple(_rows(file, "class_check", ClassCheck, _tables(file)["class_check"]))


@functools.cache
def engine_methods() -> tuple[EngineMethod, ...]:
    file = "functions.toml"
    return tuple(_rows(file, "method", EngineMethod, _tables(file)["method"]))


def clip_function(full_name: str) -> ClipFunction | None:
    """Find a function, also by an old name such as `tensorflow.compat.v1.clip_by_norm`."""
    for pattern, short in MODULE_ALIASES:
        if match := pattern.match(full_name):
            full_name = short + full_name[match.end() :]
            break
    return clip_functions().get(full_name)


@functools.cache
def settings() -> tuple[TrainerSetting, ...]:
    tables = {f"trainers/{name}.toml": _arguments_of(trainer) for name, trainer in trainers().items()}
    tables["arguments.toml"] = _tables("arguments.toml")["argument"]
    return tuple(row for file in tables for row in _rows(file, "argument", TrainerSetting, tables[file]))


def _arguments_of(trainer: Trainer) -> list[dict[str, Any]]:
    """Complete the arguments of a trainer by what its configuration files mean."""
    return [_meaning_in_files(trainer, argument) | argument for argument in trainer.argument]


def _meaning_in_files(trainer: Trainer, argument: Mapping[str, Any]) -> dict[str, Any]:
    keys = [argument.get("keyword"), argument.get("keyword", "").replace("_", "-")]
    clip = next((clip for clip in trainer.clip if any(key[-1] in keys for key in clip.key)), None)
    if clip is None:
        return {}
    default = clip.default
    return {
        "rule": clip.rule,
        "family": trainer.family,
        "default": str(default) if isinstance(default, int | float) else "",
        "rule_keyword": clip.by.key[-1] if clip.by is not None else "",
        "off": _off(trainer, clip, fails_with_none="none" in argument),
    }


def _off(trainer: Trainer, clip: Clip, *, fails_with_none: bool) -> Off:
    is_zero_off = (clip.zero or trainer.zero) == "off"
    if fails_with_none:
        return "0 or less" if is_zero_off else ""
    return "None, 0 or less" if is_zero_off else "None"


@functools.cache
def trainer_packages() -> frozenset[str]:
    return frozenset(name.partition(".")[0] for setting in settings() for name in setting.owners)


def setting_of(full_name: str) -> TrainerSetting | None:
    return next((setting for setting in settings() if full_name in (*setting.classes, *setting.elsewhere)), None)


@functools.cache
def last_names() -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in clip_functions())


@functools.cache
def clip_packages() -> frozenset[str]:
    functions = clip_functions().items()
    return frozenset(name.partition(".")[0] for name, each in functions if name.endswith(".clip") and not each.quiet)
