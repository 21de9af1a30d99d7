"""Base classes of the formats."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from packaging.version import InvalidVersion, Version

from ..._api.groups import Nonfinite
from ..._kit.static_values import is_number
from ...errors import ConfigError, NotRepresentableError
from .. import documents
from ..documents import Document, Key, infinity
from ..documents.inheritance.base_class import Inheritance, OneFile
from ..schema import DEFAULT_FAMILY, FamilyName, Rule, Settings, is_off
from .engines import except_under
from .naming import name_format

Zero = Literal["off", "zeros", "error"]
"""The effect of a threshold of 0: clipping is off, all gradients become 0, or training fails."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def paths(text: str) -> tuple[tuple[str, ...], ...]:
    """Split a text into paths of keys. For example, "fit.trainer lr" becomes (("fit", "trainer"), ("lr",))."""
    return tuple(tuple(path.split(".")) for path in text.split())


@dataclass
class Imported:
    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    not_finite: str = ""
    """A text about the trainer's action if a norm is not finite. '' means that the trainer applies its clip rule."""

    acts_as: Nonfinite = "family"
    """The value of `nonfinite` with the same action. If no value has this action, or if it is unknown: "family"."""


class OtherFamilyError(NotRepresentableError):
    """The only unsupported setting is the family or the eps."""

    def __init__(self, message: str, family: FamilyName) -> None:
        super().__init__(message)
        self.family = family


class SetElsewhereError(ConfigError):
    """The clip settings are in another file or in the training script."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem} {advice}")
        self.problem = problem


class Format(ABC):
    name: ClassVar[str]
    title: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    """The file kinds of the format, such as "yaml". By default, an exported file has the first kind."""

    source: ClassVar[str]
    """The trainer's source files that define the clip keys."""

    newest: ClassVar[str]
    """By default, exports are for this version of the trainer."""

    needs_version: ClassVar[str] = ""
    """Why the trainer's version must be known, or '' if the version has no effect."""

    extends: ClassVar[str] = ""
    """The name of a format that this format extends. This class reads the files that both formats recognise."""

    instead: ClassVar[str] = ""
    """How to clip by a `ClipConfig` named `clip` in this trainer, or '' if this is not possible."""

    own_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """A file with any of these keys is in this format."""

    clip_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """"*" matches any key."""
    placeholder: ClassVar[str] = "NAME"

    written_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """`write` sets these keys to the threshold. Default: the first path of `clip_keys`."""

    option_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Clip keys that only this trainer has. The trainer also reads these keys from its command line."""

    foreign_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Clip keys that are not supported. `read` raises an error or returns a note for these keys."""

    mode_keys: ClassVar[Set[str]] = frozenset()
    """The names of the keys in `clip_keys` that set a rule instead of a threshold."""

    is_yaml_11: ClassVar[bool] = False
    """Whether the trainer may read YAML with PyYAML, and fail because PyYAML reads a number such as 1e-3 as text."""

    inheritance: ClassVar[Inheritance] = OneFile()
    vocabulary: ClassVar[Set[str]] = frozenset()
    """Top-level keys of this trainer. Other trainers can have the same keys."""

    rules: ClassVar[Sequence[Rule]] = ("global_norm",)
    family: ClassVar[FamilyName] = "pytorch"
    zero: ClassVar[Zero] = "off"
    off: ClassVar[Any] = 0.0
    """To switch clipping off, `write` sets the clip key to this value."""

    norm_types: ClassVar[bool] = False
    """Whether the trainer supports norm types other than 2."""

    norm_type_key: ClassVar[tuple[str, ...]] = ()
    has_bounds: ClassVar[bool] = False
    nonfinite: ClassVar[Sequence[str]] = ("family",)
    not_finite: ClassVar[str] = ""
    """As in `Imported`."""

    fp16: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Keys beside the clip key, and the values with which the trainer trains in fp16 with a loss scaler."""

    def loss_scaling(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `Provenance` that follow from a loss scaler. `values` has the values of `fp16`."""
        is_scaled = any(values.get(key) in known for key, known in self.fp16.items())
        return {"not_finite": FP16, "acts_as": "skip"} if is_scaled else {}

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return self.clip_keys

    def recognises(self, document: Document) -> bool:
        return any(document.shows(*path) for path in self.own_keys)

    @abstractmethod
    def read(self, document: Document, version: Version | None) -> Imported:
        """Return the clip settings in a file. Raise ConfigError if a setting cannot be imported."""

    def second_clip(self, document: Document) -> tuple[str, Any]:
        """Return the optimizer, and the threshold of its own clip by the global norm in each step.

        The threshold is None if the optimizer does not clip.
        """
        return "", None

    def write(self, settings: Settings, version: Version) -> Any:
        """Return the data to write. Raise NotRepresentableError if a setting is not supported."""
        threshold = self.export_threshold(settings)
        value = self.off if threshold is None else threshold
        values = dict.fromkeys(self.written_keys or self.clip_keys[:1], value)
        if self.norm_type_key and not is_off(settings) and settings.norm_type not in (None, 2.0):
            values[self.norm_type_key] = settings.norm_type
        data: dict[str, Any] = {}
        for (*outer, key), value in values.items():
            table = data
            for name in outer:
                table = table.setdefault(name, {})
            table[key] = value
        return data

    def require_version(self, version: Version | None, document: Document, unset: str = "") -> Version:
        """Raise ConfigError if `version` is None. `unset` is a key that would make the version unnecessary."""
        if version is None:
            way = name_format(f"{self.name}@{self.newest}")
            advice = f"If you use {self.title} {self.newest}, {way}"
            if unset:
                advice = f"Set {unset}. Or, if you use {self.title} {self.newest}, {way}"
            raise ConfigError(f"{document.name}: {self.needs_version}. {advice}", "UC103")
        return version

    def settings(
        self, rule: Rule, threshold: float | None, norm_type: float = 2.0, family: FamilyName | None = None
    ) -> dict[str, Any]:
        """Return clip settings as a dict. A threshold of None switches clipping off."""
        if threshold is None:
            return {"rule": "none"}
        norm = {} if rule == "value" else {"family": family or self.family}
        return {"rule": rule, "threshold": threshold, **norm, **({} if norm_type == 2 else {"norm_type": norm_type})}

    # -- reading

    def read_threshold(
        self,
        document: Document,
        keys: Sequence[Key],
        default: Any = None,
        *,
        zero: Zero | None = None,
        negative: Literal["off", "error"] | None = None,
        null: Literal["off", "error"] = "off",
        infinite: Literal["off", "error"] = "off",
    ) -> float | None:
        """Return the threshold at a path of keys, or None if the value switches clipping off.

        The keyword arguments are the effects of a threshold of 0, a negative number, null and infinity in the trainer.
        If `negative` is None, negative numbers switch clipping off if `zero` is "off". Otherwise, they are an error.
        """
        value, zero = document.get(*keys, default=default), zero or self.zero
        if isinstance(value, list) and document.kind == "args":
            raise document.wrong(
                keys, f"the script sets this option to several values: {', '.join(map(str, value))}. Keep one."
            )
        if value is None and null == "off":
            return None
        if isinstance(value, str) and value.lower() in ("inf", "infinity", ".inf"):
            value = math.inf
        if value is None:
            problems = {"args": "training fails without a value.", "python": "training fails with None."}
            problem = problems.get(document.kind, "training fails with null.")
            if not document.has(*keys):
                problem = "training fails without this key."
            raise document.wrong(keys, f"{problem} Set a number.")
        check_size(document, keys, value)
        if self.is_yaml_11 and isinstance(value, documents.Yaml12Number):
            number = documents.dump(float(value), "yaml").split()[0]
            raise document.wrong(
                keys, f"PyYAML reads {value.text} as text, which trainers may not convert to a number. Write {number}."
            )
        if not is_number(value) or math.isnan(value):
            raise document.wrong(keys, f"{value!r:.60} is not a threshold. Set a number.")
        if value == 0 and zero == "error":
            raise document.wrong(keys, f"training fails with 0. Set a number above 0. {CLIP_NOTHING}")
        if value < 0 and (negative or zero) != "off":
            least = "0 or more" if zero == "off" else "a number above 0"
            raise document.wrong(keys, f"{value:g} makes training fail, or changes the sign of gradients. Set {least}.")
        if value < 0 or (value == 0 and zero == "off"):
            return None
        if value == math.inf and infinite == "error":
            raise document.wrong(keys, f"inf makes gradients NaN in training. {CLIP_NOTHING}")
        return float(value)

    def export_threshold(
        self,
        settings: Settings,
        *,
        rules: Sequence[Rule] = (),
        family: FamilyName | None = None,
        zero: Zero | None = None,
    ) -> float | None:
        """Return the threshold to export, or None for settings that clip nothing or have `min` and `max`."""
        rules, zero = rules or self.rules, zero or self.zero
        problem = self.unsupported_keys(settings) or self._unsupported_rule(settings, rules)
        if not problem and zero != "zeros" and settings.threshold == 0:
            effect = "switches clipping off" if zero == "off" else "makes training fail"
            problem = f"in {self.title}, a threshold of 0 {effect}. In unified_clip, 0 makes all gradients 0. "
            problem += "Set a threshold above 0."
        if problem:
            raise self.not_exported(problem)
        if is_off(settings):
            return None
        self._check_family(settings, family or self.family)
        return settings.threshold  # type: ignore[return-value]

    def not_exported(self, problem: str) -> NotRepresentableError:
        return NotRepresentableError(f"Cannot export to {self.title}: {problem}")

    def unsupported_keys(self, settings: Settings) -> str:
        """Return an error message about unsupported keys, or ''."""
        keys = [key for key in ("include", "exclude", "groups") if getattr(settings, key) not in ([], ["*"])]
        unsupported = [f"`{key}`" for key in keys]
        if settings.nonfinite not in self.nonfinite:
            unsupported.append(f'`nonfinite = "{settings.nonfinite}"`')
        if not unsupported:
            return ""
        pronoun = "it" if len(unsupported) == 1 else "them"
        names = " or ".join(unsupported)
        return f"it does not support {names}. Remove {pronoun}. This changes the clip.{self.in_python}"

    @property
    def in_python(self) -> str:
        text = (
            f" Or clip in Python{except_under(self.name)}. Write `clip = ClipConfig.load(FILE)`, then {self.instead}."
        )
        return text if self.instead else ""

    def _unsupported_rule(self, settings: Settings, rules: Sequence[Rule]) -> str:
        if is_off(settings):
            return ""
        if settings.rule not in rules:
            names = " or ".join(f'"{rule}"' for rule in rules)
            advice = f"Set `rule` to {names}, or export to another format."
            return f"it does not support the rule {settings.rule!r}. {advice}{self.in_python}"
        if settings.adaptive is not None:
            return "it does not support `adaptive`. Remove `adaptive`, and set `threshold`." + self.in_python
        if settings.bounds:
            advice = "If `min` is -c and `max` is c, set `threshold` to c instead. Or export to another format."
            return "" if self.has_bounds else f"it does not support `min` and `max`. {advice}{self.in_python}"
        if not isinstance(settings.threshold, float):
            return "it does not support a schedule. Set `threshold` to a number." + self.in_python
        if settings.rule != "value" and not self.norm_types and settings.norm_type not in (None, 2.0):
            advice = "Set `norm_type` to 2, or export to another format."
            return f"it does not support `norm_type = {settings.norm_type:g}`. {advice}{self.in_python}"
        return ""

    def _check_family(self, settings: Settings, family: FamilyName) -> None:
        if settings.rule == "value":
            return
        problem = f"it does not support `eps = {settings.eps:g}`. Remove `eps`." if settings.has_own_eps else ""
        if (settings.family or DEFAULT_FAMILY) != family:
            own = f"This configuration's family is {settings.family!r}."
            if settings.family is None:
                own = f"This configuration's family is {DEFAULT_FAMILY!r}, the default."
            problem = f"it needs the family {family!r}. {own} Set `family` to {family!r}."
        if problem:
            raise OtherFamilyError(str(self.not_exported(problem)), family)


class OwnFormat(Format):
    """A format with its own parser, for files such as Python source."""

    @abstractmethod
    def parse(self, text: str, name: str) -> Document: ...

    def dump(self, data: Any) -> str:
        return documents.dump(data, self.kinds[0])


FP16 = "With fp16, the loss scaler skips a step if a gradient is not finite."

CLIP_NOTHING = "To clip nothing, set a large number such as 1.0e+20."
"""The number is not written as 1e20, because PyYAML reads 1e20 as a string."""

ATTACH = "call `clip.attach_to(optimizer, model)` in the training script, and switch the trainer's own clipping off"
AS_PADDLE = "pass `grad_clip=clip.as_paddle(model)` to the optimizer, and switch the trainer's own clipping off"

SEVERAL_OPTIMIZERS = "each optimizer has its own clip keys. Write a clip configuration for each optimizer."


def parse_version(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise ConfigError(f"{text!r} is not a version of a trainer. Pass a version such as 1.2.3.", "UC103") from None


def default_note(document: Document, keys: Sequence[Key], effect: str) -> list[str]:
    """Return a note about the trainer's default, or [] if the file sets the key."""
    return [] if document.has(*keys) else [f"The file does not set {keys[-1]}. By default, {effect}."]


def read_norm_type(document: Document, keys: Sequence[str]) -> float:
    value = document.get(*keys, default=2.0)
    if isinstance(value, str) and value.lower() == "inf":
        value = math.inf
    check_size(document, keys, value)
    if not is_number(value) or not value > 0:
        remedy = f"Set a number above 0, or {infinity(document.kind)}."
        raise document.wrong(keys, f"{value!r:.60} is not a norm type. {remedy}")
    return float(value)


def check_size(document: Document, keys: Sequence[Key], value: Any) -> None:
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise document.wrong(keys, "the number is too large for a float. Set a smaller number.")
