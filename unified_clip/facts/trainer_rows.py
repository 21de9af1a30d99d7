"""The rows in `trainers/`: how each trainer's configuration files clip. One file per trainer, named after its format.

A path of keys is written with dots. "*" matches any key or index, and "<type>" matches the value of the key `type`. In
`clip`, `refuse` and `note`, a path is relative to the section. "/" at its start means the top level of the file, "@"
means the clip key, and "." means the section. `ways` has keys of all tables in `clip` that have a `key`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .._kit import atomic_files
from .._kit.parse import tomllib

FOLDER = Path(__file__).with_name("trainers")

Keys = tuple[str, ...]
Rule = Literal["none", "value", "norm", "global_norm"]
RowRule = Literal["value", "norm", "global_norm", "agc"]
Family = Literal["pytorch", "tensorflow", "paddle"]
Kind = Literal["yaml", "json", "toml", "args", "python"]
On = Literal["any", "clip", "off"]
Default = int | float | Literal["off", "error"]

Zero = Literal["off", "zeros", "error", "varies"]
"""The effect of a threshold of 0: clipping is off, all gradients become 0, training fails, or it depends on more."""


def split(text: Any) -> Any:
    """Split a text into paths of keys. For example, "fit.trainer /lr" becomes (("fit", "trainer"), ("/", "lr"))."""
    return tuple(map(_keys, text.split())) if isinstance(text, str) else text


def _keys(text: str) -> Keys:
    root, rest = (text[:1], text[1:]) if text[:1] in ("/", "@") else ("", text)
    return (*filter(None, [root]), *filter(None, rest.split(".")))


def _without_star(paths: tuple[Keys, ...]) -> tuple[Keys, ...]:
    if any("*" in path for path in paths):
        raise ValueError('`key` is relative to a section: write "*" into `at` of a layout')
    return paths


Paths = Annotated[tuple[Keys, ...], BeforeValidator(split)]
Path1 = Annotated[Keys, BeforeValidator(lambda text: _keys(text) if isinstance(text, str) else text)]
Words = Annotated[
    frozenset[str], BeforeValidator(lambda text: frozenset(text.split()) if isinstance(text, str) else text)
]


T = TypeVar("T")
Listed = Annotated[tuple[T, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]


def _test(value: Any) -> Any:
    """A text lists keys of which the file has one. With "!" before them, the file has none of them."""
    if isinstance(value, str):
        return {"key": value.removeprefix("!"), "not": value.startswith("!")}
    return tuple(map(_test, value)) if isinstance(value, list) else value


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Test(Table):
    """A condition on a file."""

    key: Paths = ()
    state: Literal["present", "set", "null", "on", "list", "table"] = "present"
    """The state of the first of these keys that the file has. "set" means not null, and "on" means true in Python."""

    among: Listed[Any] | None = Field(default=None, alias="is")
    like: str = ""
    """A regular expression that matches the whole value."""

    differs: Path1 = ()
    """The value differs from the value at this path."""

    otherwise: Any = None
    """The value at `differs` if the file does not have that key."""

    only: Words = frozenset()
    """The value is a table with other keys than these."""

    kind: Kind | None = None
    file: Words = frozenset()
    """The name of the file, without its suffix and in lower case."""

    text: str = ""
    """A regular expression that matches a part of the text of the file."""

    since: str = ""
    before: str = ""
    version: Literal["unknown"] | None = None
    engine: str = ""
    """The value is a strategy with this engine."""

    negate: bool = Field(default=False, alias="not")

    @property
    def is_plain(self) -> bool:
        """Whether the condition is only about the presence of keys."""
        return self.among is None and not (self.like or self.differs or self.only or self.engine)


When = Listed[Annotated[Test | tuple[Test, ...], BeforeValidator(_test)]]
"""All these conditions hold. Of the conditions in an inner list, at least one holds."""


class Note(Table):
    say: str
    when: When = ()
    on: On = "any"


class Refusal(Table):
    say: str
    """An error. "{value}" is the value of the first key in `when`, and "{as NAME}" is the advice to pass a format."""

    when: When = ()
    at: Path1 | None = None
    """The key in the error. Default: the first key of `when` that the file has."""

    on: On = "any"
    elsewhere: str = ""
    """The clip settings are in another file or in the training script. This is the advice."""

    code: str = ""
    needs_version: bool = False
    """The error is that the trainer's version must be known."""


class NotFinite(Table):
    when: When = ()
    say: str = ""
    """Default: `not_finite` of the trainer. '' with `acts = "family"` means that the trainer applies its clip rule."""

    acts: Literal["family", "skip", ""] = ""
    of: str = ""
    """The format whose conditions apply, to the table at the path `at`."""

    at: Path1 = ()


class Mode(Table):
    """A key that selects the rule."""

    key: Path1
    rules: dict[str, RowRule]
    default: str = ""
    null_is_default: bool = False
    wrong: str = "{value} is not supported. Set {names}."
    ignores_case: bool = False


class DefaultOf(Table):
    before: str = ""
    value: Default


class Clip(Table):
    """A way to clip. The first way whose conditions hold applies."""

    applies: str = ""
    """When this way applies, in words. Default: in all other cases."""

    layout: str = ""
    when: When = ()
    key: Annotated[Paths, AfterValidator(_without_star)] = ()
    """The first of these keys that the file has is the threshold. Without `key`, this way clips nothing."""

    also: Paths = ()
    """Other clip keys of this way, such as the table around `key`."""

    rule: RowRule = "global_norm"
    by: Mode | None = None
    norm_type: float = 2.0
    norm_type_key: Path1 = ()
    raises: Path1 = ()
    """If this key is true, training stops with an error if the norm is not finite."""

    default: Default | Listed[DefaultOf] = "off"
    unset: str = ""
    """A note, or the error for the default "error", if the file does not set the threshold."""

    as_unset: Listed[Any] = ()
    """Values with the effect of an unset key."""

    null: Literal["off", "error", "unset"] = "off"
    zero: Zero | None = None
    negative: Literal["off", "error", "magnitude"] | None = None
    """Default: "off" if `zero` is "off", and otherwise "error"."""

    infinite: Literal["off", "error"] = "off"
    note: Listed[Note] = ()
    refuse: Listed[Refusal] = ()
    export: bool = True


class Layout(Table):
    """Where the clip keys are in a file. The first layout whose conditions hold applies."""

    name: str = ""
    when: When = ()
    at: Paths = ((),)
    """The sections. Each section that the file has is read."""

    unless: When = ()
    """A section does not count if these conditions hold."""

    differ: str = ""
    """The error if two sections have different settings."""

    single: str = ""
    """The error if the file has several sections."""

    empty: str = ""
    """The error if the file has no section."""


class Export(Table):
    at: Path1 | None = None
    """The section. Default: the first section of the last layout."""

    everywhere: bool = False
    """Whether the threshold is written to each section."""

    off: float | Literal["null", "nothing"] = 0.0
    nulls: bool = False
    """Whether the keys of the other ways are written as null. A base file could set them."""

    constants: dict[str, Any] = {}
    constants_off: dict[str, Any] = {}
    """Other keys to write, for a clip and for clipping that is off."""

    none_since: str = ""
    none: str = ""
    """Since this version, there is no export for this reason."""

    no_agc: str = ""
    """Why adaptive gradient clipping is not exported, although it is read."""


class Engine(Table):
    """An engine that clips, such as DeepSpeed."""

    name: str = ""
    when: When = ()
    strategy: Paths = ()
    """The first of these keys that the file has is a strategy. It decides which engine clips."""


class SecondClip(Table):
    """An optimizer that clips by the global norm again, in its own step."""

    optimizer: Path1
    """The key with the name of the optimizer."""

    named: str
    """A part of the name, in lower case. An optimizer without a name has this name if the file sets `key`."""

    key: Path1
    """The threshold of this clip. null switches the clip off."""

    default: float
    note: str


class Trainer(Table):
    name: str
    title: str
    program: str = ""
    """The name in notes about defaults. Default: the title."""

    kinds: Listed[Kind]
    """The file kinds of the format. By default, an exported file has the first kind."""

    source: str
    """The trainer's source files that define the clip keys."""

    newest: str
    """By default, exports are for this version of the trainer."""

    needs_version: str = ""
    """Why the trainer's version must be known, or '' if the version has no effect."""

    extends: str = ""
    """The name of a format that this format extends. This format reads the files that both formats recognise."""

    instead: str = ""
    """How to clip by a `ClipConfig` named `clip` in this trainer, or '' if this is not possible."""

    instead_fails_under: str = ""
    """The engines under which `instead` does not work."""

    second_clip: SecondClip | None = None
    has_underscores: bool = False
    """Whether the options in scripts are written with underscores here, as the keys in files are."""

    engine: Listed[Engine] = ()
    engine_file: str = ""
    """The key that names a file with the settings of an engine, which decide whether the clip has an effect."""

    recognise: Listed[When] = ()
    """A file is in this format if all conditions of one list hold. "vocabulary" stands for the keys in `vocabulary`."""

    recognise_last: When = ()
    """A file that no format recognises is in this format if these conditions hold."""

    vocabulary: Words = frozenset()
    """Top-level keys of this trainer. Other trainers can have the same keys."""

    is_yaml_11: bool = False
    """Whether the trainer may read YAML with PyYAML, and fail because PyYAML reads a number such as 1e-3 as text."""

    layout: Listed[Layout] = (Layout(),)
    clip: Listed[Clip] = ()
    refuse: Listed[Refusal] = ()
    note: Listed[Note] = ()
    clip_keys: Paths = ()
    """Default: the keys in `clip`, in every layout."""

    option_keys: Paths = ()
    """Clip keys that only this trainer has. The trainer also reads these keys from its command line."""

    foreign_keys: Paths = ()
    """Clip keys that are not supported. Reading raises an error or returns a note for these keys."""

    placeholder: str = "NAME"
    """What "*" in a clip key stands for."""

    rules: Listed[Rule] = ()
    """The rules that are exported. Default: the rules in `clip`."""

    family: Family = "pytorch"
    zero: Zero = "off"
    has_bounds: bool = False
    nonfinite: Listed[str] = ("family",)
    agc: Literal["", "timm", "optax", "composer"] = ""
    """The convention of adaptive gradient clipping."""

    export: Export = Export()
    not_finite: str = ""
    """A text about the trainer's action if a norm is not finite. '' means that the trainer applies its clip rule."""

    not_finite_if: Listed[NotFinite] = ()

    argument: Listed[dict[str, Any]] = ()
    """The arguments of the trainer's classes in Python, as in `arguments.toml`. `clips.py` reads them."""


class RowError(Exception):
    """A row has an unknown key or a value of a wrong type."""


@functools.cache
def trainers() -> dict[str, Trainer]:
    return read({path.stem: atomic_files.read_text(path) for path in sorted(FOLDER.glob("*.toml"))})


def read(texts: dict[str, str]) -> dict[str, Trainer]:
    """Read rows. The keys are the names of the formats."""
    tables = {name: tomllib.loads(text) for name, text in texts.items()}
    return {name: _row(name, _complete(name, tables)) for name in tables}


def _complete(name: str, tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Add the keys of `ways`, and those of the row that `like` names. Lists of tables and `vocabulary` are joined, the
    own entries first."""
    own = dict(tables[name])
    if ways := own.pop("ways", None):
        own["clip"] = [{**ways, **clip} if "key" in clip else clip for clip in own["clip"]]
    if (like := own.pop("like", None)) is None:
        return own
    if like not in tables:
        raise RowError(f"{name}.toml: like = {like!r}, but there is no {like}.toml.")
    other = _complete(like, tables)
    other.pop("argument", None)  # the classes of the other trainer
    for key in own.keys() & other.keys():
        if key == "vocabulary":
            own[key] = f"{own[key]} {other[key]}"
        elif key in ("clip", "refuse", "note", "layout", "not_finite_if", "engine"):
            own[key] = own[key] + other[key]
    return {**other, **own}


def _row(name: str, table: dict[str, Any]) -> Trainer:
    try:
        return Trainer.model_validate({"name": name, **table})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(key) for key in first["loc"])
        raise RowError(f"{name}.toml, {place}: {first['msg']}") from None
