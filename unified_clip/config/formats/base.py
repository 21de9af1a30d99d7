"""What the formats of trainers' configuration files share. `rows.py` reads and writes the files."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from packaging.version import InvalidVersion, Version

from ..._api.groups import Nonfinite
from ..._kit.static_values import is_number
from ...errors import ConfigError, NotRepresentableError
from ...facts.trainer_rows import Clip, Layout, RowRule, Trainer, Zero
from .. import documents
from ..documents import Document, Key, infinity
from ..schema import DEFAULT_FAMILY, FamilyName, Rule, Settings, is_off
from . import engines
from .conditions import ANY, TYPE, Context, tests_of

Path = tuple[Key, ...]


@dataclass
class Imported:
    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    not_finite: str = ""
    """A text about the trainer's action if a norm is not finite. '' means that the trainer applies its clip rule."""

    acts_as: Nonfinite = "family"
    """The value of `nonfinite` with the same action. If no value has this action, or if it is unknown: "family"."""

    by_default: bool = False
    """Whether the threshold is the trainer's default, because the file does not set the threshold."""


class OtherFamilyError(NotRepresentableError):
    """The only unsupported setting is the family or the eps."""

    def __init__(self, message: str, family: FamilyName) -> None:
        super().__init__(message)
        self.family = family


class SetElsewhereError(ConfigError):
    """The clip settings are in another file or in the training script."""

    def __init__(self, place: str, problem: str, advice: str) -> None:
        super().__init__(f"{place}: {problem} {advice}")
        self.problem = problem


class Format(ABC):
    """What all formats share. `row` has the facts about the trainer."""

    def __init__(self, row: Trainer) -> None:
        self.row = row
        self.name, self.title, self.kinds, self.newest = row.name, row.title, row.kinds, row.newest
        self.source, self.extends, self.instead = row.source, row.extends, row.instead
        self.family: FamilyName = row.family
        self.zero: Zero = row.zero
        self.not_finite, self.nonfinite = row.not_finite, row.nonfinite
        self.vocabulary, self.placeholder = row.vocabulary, row.placeholder
        self.option_keys, self.foreign_keys = row.option_keys, row.foreign_keys

    @cached_property
    def clip_keys(self) -> Sequence[tuple[str, ...]]:
        keys = [keys for layout in reversed(self.row.layout) for keys in self._keys(layout)]
        return self.row.clip_keys or tuple(dict.fromkeys(keys))

    @cached_property
    def mode_keys(self) -> frozenset[str]:
        """The names of the clip keys that set no threshold."""
        modes = [clip.by.key[-1] for clip in self.row.clip if clip.by]
        return frozenset([*modes, *(clip.norm_type_key[-1] for clip in self.row.clip if clip.norm_type_key)])

    @cached_property
    def rules(self) -> Sequence[Rule]:
        rules = [rule for clip in self.row.clip if clip.export and clip.key for rule in rules_of(clip) if rule != "agc"]
        return self.row.rules or tuple(dict.fromkeys(rules))

    def _keys(self, layout: Layout) -> list[tuple[str, ...]]:
        """Return the patterns of the clip keys in a layout."""
        patterns = []
        for clip in self.row.clip:
            keys = [*clip.key, *clip.also, *([clip.by.key] if clip.by else []), *filter(None, [clip.norm_type_key])]
            for section in layout.at if clip.layout in ("", layout.name) else ():
                patterns += [key[1:] if key[:1] == ("/",) else (*section, *key) for key in keys]
        return [tuple(ANY if key == TYPE else key for key in pattern) for pattern in patterns]

    def context(self, document: Document, version: Version | None = None, *, only_shows: bool = False) -> Context:
        return Context(document, version, vocabulary=sorted(self.vocabulary), only_shows=only_shows)

    def layout(self, document: Document) -> Layout:
        context = self.context(document, only_shows=True)
        return next((each for each in self.row.layout if context.holds(each.when)), self.row.layout[-1])

    def places(self, document: Document) -> Sequence[Path]:
        """Return the clip keys that the trainer reads in a file with this layout.

        A key in the table of another clip key counts only if the row lists it.
        """
        keys = dict.fromkeys(self._keys(self.layout(document)))
        listed = self.row.clip_keys
        places = [key for key in keys if key in listed or not any(key[:end] in keys for end in range(1, len(key)))]
        known = [*listed, *places]
        return sorted(places, key=known.index) or self.clip_keys

    def recognises(self, document: Document) -> bool:
        context = self.context(document, only_shows=True)
        return any(map(context.holds, self.row.recognise))

    @abstractmethod
    def read(self, document: Document, version: Version | None) -> Imported:
        """Return the clip settings in a file. Raise ConfigError if a setting cannot be imported."""

    @property
    def off(self) -> Any:
        """The value of the clip key that switches clipping off."""
        return {"null": None, "nothing": 0.0}.get(str(self.row.export.off), self.row.export.off)

    @cached_property
    def fp16(self) -> frozenset[str]:
        """The names of the keys that decide whether a loss scaler skips steps."""
        return frozenset(key[-1] for rule in self.row.not_finite_if for test in tests_of(rule) for key in test.key)

    def loss_scaling(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `Provenance` that follow from the values of the keys in `fp16`."""
        context = self.context(Document("", "", "python", values), only_shows=True)
        rules = [rule for rule in self.row.not_finite_if if rule.acts == "skip" and context.holds(rule.when)]
        return {"not_finite": rules[0].say or self.not_finite, "acts_as": "skip"} if rules else {}

    def engine(self, document: Document) -> str:
        """Return the engine that clips, such as DeepSpeed, or '' if PyTorch clips."""
        context = self.context(document, only_shows=True)
        for each in self.row.engine:
            if each.strategy:
                strategies = [context.value(path) for key in each.strategy for path in context.expand(key)]
                return next(filter(None, map(engines.of_strategy, strategies)), "")
            if context.holds(each.when):
                return each.name
        return ""

    def second_clip(self, document: Document) -> tuple[str, Any]:
        """Return the optimizer, and the threshold of its own clip by the global norm in each step.

        The threshold is None if the optimizer does not clip.
        """
        second, context = self.row.second_clip, self.context(document, only_shows=True)
        if second is None:
            return "", None
        optimizer, threshold = (
            context.value(key) if context.has(key) else None for key in (second.optimizer, second.key)
        )
        if not context.has(second.key):
            threshold = second.default
        elif not optimizer:
            optimizer = second.named
        names = map(str, optimizer if isinstance(optimizer, list) else [optimizer])  # one for each command of a script
        name = next((name for name in names if second.named in name.lower()), "")
        return name, None if not name or threshold in (None, "None") else threshold

    @abstractmethod
    def write(self, settings: Settings, version: Version) -> Any:
        """Return the data to write. Raise NotRepresentableError if a setting is not supported."""

    def dump(self, data: Any, kind: str | None = None) -> str:
        return documents.dump(data, kind or self.kinds[0])

    def require_version(self, version: Version | None, document: Document, unset: str = "") -> Version:
        """Raise ConfigError if `version` is None. `unset` is a key that would make the version unnecessary."""
        if version is None:
            way = name_format(f"{self.name}@{self.newest}")
            advice = f"If you use {self.title} {self.newest}, {way}"
            if unset:
                advice = f"Set {unset}. Or, if you use {self.title} {self.newest}, {way}"
            raise ConfigError(f"{document.name}: {self.row.needs_version}. {advice}", "UC103")
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
        negative: Literal["off", "error", "magnitude"] | None = None,
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
        if self.row.is_yaml_11 and isinstance(value, documents.Yaml12Number):
            number = documents.dump(float(value), "yaml").split()[0]
            raise document.wrong(
                keys, f"PyYAML reads {value.text} as text, which trainers may not convert to a number. Write {number}."
            )
        if not is_number(value) or math.isnan(value):
            raise document.wrong(keys, f"{value!r:.60} is not a threshold. Set a number.")
        if value == 0 and zero == "error":
            raise document.wrong(keys, f"training fails with 0. Set a number above 0. {CLIP_NOTHING}")
        if value < 0 and negative == "magnitude":
            return -float(value)
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
        norm_types: bool = False,
    ) -> float | None:
        """Return the threshold to export, or None for settings that clip nothing or have `min` and `max`."""
        rules, zero = rules or self.rules, zero or self.zero
        problem = self.unsupported_keys(settings) or self._unsupported_rule(settings, rules, norm_types)
        if not problem and zero != "zeros" and settings.threshold == 0:
            problem = f"in {self.title}, {ZERO[zero]}. In unified_clip, 0 makes all gradients 0. "
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
        except_under = engines.except_under(self.name)
        text = f" Or clip in Python{except_under}. Write `clip = ClipConfig.load(FILE)`, then {self.instead}."
        return text if self.instead else ""

    def _unsupported_rule(self, settings: Settings, rules: Sequence[Rule], norm_types: bool) -> str:
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
            return "" if self.row.has_bounds else f"it does not support `min` and `max`. {advice}{self.in_python}"
        if not isinstance(settings.threshold, float):
            return "it does not support a schedule. Set `threshold` to a number." + self.in_python
        if settings.rule != "value" and not norm_types and settings.norm_type not in (None, 2.0):
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


def rules_of(clip: Clip) -> Sequence[RowRule]:
    return tuple(clip.by.rules.values()) if clip.by else (clip.rule,)


ZERO = {
    "off": "a threshold of 0 switches clipping off",
    "error": "a threshold of 0 makes training fail",
    "varies": "the effect of a threshold of 0 varies",
}

CLIP_NOTHING = "To clip nothing, set a large number such as 1.0e+20."
"""The number is not written as 1e20, because PyYAML reads 1e20 as a string."""

SEVERAL_OPTIMIZERS = "each optimizer has its own clip keys. Write a clip configuration for each optimizer."


def parse_version(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise ConfigError(f"{text!r} is not a version of a trainer. Pass a version such as 1.2.3.", "UC103") from None


def read_norm_type(document: Document, keys: Sequence[Key]) -> float:
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


_advice: ContextVar[str] = ContextVar("_advice", default="pass from_='{}'")


@contextmanager
def naming_advice(advice: str) -> Iterator[None]:
    """In the `with` block, `name_format(name)` puts the name into `advice`, such as "pass --from-b {}"."""
    token = _advice.set(advice)
    try:
        yield
    finally:
        _advice.reset(token)


def name_format(name: str) -> str:
    return _advice.get().replace("{}", name)
