"""What a trainer's own format is: which of its keys say how gradients are clipped, and what they mean."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from packaging.version import InvalidVersion, Version

from ...errors import ConfigError, NotRepresentableError
from ..documents import Document
from ..documents import Key as Part
from ..schedules import Constant
from ..schema import DEFAULT_FAMILY, Settings, is_off

Fate = Literal["imported and exported", "imported", "refused"]


class Key(NamedTuple):
    """A row of the table in the documentation."""

    key: str
    versions: str
    """Of the trainer; '' for all that are known."""

    default: str
    meaning: str
    fate: Fate = "imported and exported"


@dataclass
class Imported:
    """A configuration that was read from a trainer's own."""

    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """What has to be said aloud: where a word means something else than one may think, or a default was filled in."""


class Format(ABC):
    """One trainer's format."""

    name: ClassVar[str]
    """As it is named on the command line."""

    title: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    """What its files are: toml, yaml, json, or a kind of its own (`OwnFormat`); the first is what is written."""

    keys: ClassVar[Sequence[Key]]
    source: ClassVar[str]
    """Where the trainer says so: a file of its source, or a page of its documentation."""

    newest: ClassVar[str]
    """The release that was read; what is exported is for it, unless a version is given."""

    needs_version: ClassVar[str] = ""
    """Why the meaning cannot be known without the trainer's version, where that is so."""

    clip_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Where the trainer reads its clip keys: paths, in which "*" is any key; the first is where one belongs."""

    foreign_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Places of clip keys that belong elsewhere, and about which `read` has an error or a note of its own."""

    mode_keys: ClassVar[Set[str]] = frozenset()
    """Last parts of `clip_keys` that choose a rule, and set no limit."""

    vocabulary: ClassVar[Set[str]] = frozenset()
    """Further keys at the top of its files, which other trainers have too."""

    def places(self, document: Document) -> Sequence[tuple[Part, ...]]:
        """`clip_keys`, where they do not depend on the file."""
        return self.clip_keys

    instead: ClassVar[str] = ""
    """What clips as a whole configuration in this trainer, for messages."""

    @abstractmethod
    def recognises(self, document: Document) -> bool:
        """Whether a file looks like this format's: it has a key that only this format has."""

    @abstractmethod
    def read(self, document: Document, version: Version | None) -> Imported:
        """What a file says. Raises ConfigError where it says what cannot be imported, with the reason."""

    @abstractmethod
    def write(self, settings: Settings, version: Version) -> Any:
        """The same as data for `kinds[0]`. Raises NotRepresentableError where the format does not support it."""

    def version(self, version: Version | None, document: Document) -> Version:
        """The version, where the meaning depends on it."""
        if version is None:
            raise ConfigError(
                f"{document.name}: {self.needs_version}; say which version it is for: --from {self.name}@{self.newest}"
            )
        return version


TRAINING_ARGUMENTS = frozenset(
    {
        "output_dir",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "lr_scheduler_type",
        "warmup_ratio",
        "warmup_steps",
        "logging_steps",
        "logging_dir",
        "save_steps",
        "save_strategy",
        "save_total_limit",
        "evaluation_strategy",
        "eval_steps",
        "weight_decay",
        "adam_beta1",
        "adam_epsilon",
        "report_to",
        "optim",
        "do_train",
        "do_eval",
        "remove_unused_columns",
        "fp16",
        "bf16",
    }
)
"""Fields of TrainingArguments, which Hugging Face and PaddleNLP have both."""


class OwnFormat(Format):
    """A format whose files are of a kind of its own, those of other kinds beside them."""

    @abstractmethod
    def parse(self, text: str, name: str) -> Document:
        """A file of that kind."""

    @abstractmethod
    def dump(self, data: Any) -> str:
        """What `write` returned, as text of that kind."""


def parsed_version(text: str | None) -> Version | None:
    if text is None:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        raise ConfigError(f"{text!r} is no version; give one such as 1.2.3") from None


# -- reading a number that is a threshold

Zero = Literal["off", "zeros", "error"]
"""What the trainer does with 0: it switches clipping off, makes all gradients 0, or fails."""

Negative = Literal["off", "error"]
"""With a negative number: "error" also where it would change the sign of every gradient."""


def threshold(
    document: Document,
    keys: Sequence[str | int],
    default: Any,
    *,
    zero: Zero,
    negative: Negative = "error",
    null: Literal["off", "error"] = "off",
) -> float | None:
    """The threshold at a path of keys; None where it switches clipping off."""
    value = document.get(*keys, default=default)
    if value is None and null == "off":
        return None
    if isinstance(value, str) and value.lower() in ("inf", "infinity", ".inf"):
        value = math.inf
    check_size(document, keys, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise document.wrong(keys, f"it is {value!r:.60}, which is no threshold; give a number")
    if value == 0 and zero != "zeros":
        if zero == "error":
            raise document.wrong(keys, "it is 0, with which training fails there; remove it, or give a number above 0")
        return None
    if value < 0:
        if negative == "error":
            raise document.wrong(
                keys, f"it is {value:g}, which is an error there, or changes the sign of gradients; give 0 or more"
            )
        return None
    return float(value)


def order(document: Document, keys: Sequence[str]) -> float:
    """The order of a norm at a path of keys, 2 where it is not there."""
    value = document.get(*keys, default=2.0)
    if isinstance(value, str) and value.lower() == "inf":
        value = math.inf
    check_size(document, keys, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise document.wrong(keys, f"it is {value!r:.60}, which is no order of a norm; give a number above 0, or inf")
    return float(value)


def check_size(document: Document, keys: Sequence[str | int], value: Any) -> None:
    """Files have integers of any size. Raises ConfigError where one is beyond all floats."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise document.wrong(keys, "it is a number that is too large; give one that a float can hold, or inf")


def holds(document: Document, *keys: str | int) -> bool:
    """Whether a path of keys is there, whatever else a file is."""
    found = document.data
    try:
        for key in keys:
            found = found[key]
    except (LookupError, TypeError):
        return False
    return True


def global_norm(limit: float | None, family: str, norm_type: float | None = None) -> dict[str, Any]:
    """Settings of one norm over all gradients, or of none."""
    if limit is None:
        return {"rule": "none"}
    order = {} if norm_type in (None, 2.0) else {"norm_type": norm_type}
    return {"rule": "global_norm", "threshold": limit, "family": family, **order}


def norm(limit: float | None, family: str) -> dict[str, Any]:
    """Settings of a norm for each tensor, or of none."""
    return {"rule": "none"} if limit is None else {"rule": "norm", "threshold": limit, "family": family}


def value(limit: float | None) -> dict[str, Any]:
    """Settings of a bound for each element, or of none."""
    return {"rule": "none"} if limit is None else {"rule": "value", "threshold": limit}


def finite(document: Document, keys: Sequence[str | int], limit: float | None) -> float | None:
    """A threshold for a trainer where an infinite one makes gradients NaN."""
    if limit == math.inf:
        raise document.wrong(keys, "it is inf, which makes gradients NaN there; remove it to clip nothing")
    return limit


# -- writing


def plain(settings: Settings) -> Settings:
    """The same with a number where the schedule is constant."""
    if isinstance(settings.threshold, Constant):
        return settings.model_copy(update={"threshold": settings.threshold.value})
    return settings


def plain_threshold(
    settings: Settings,
    trainer: Format,
    *,
    rules: Sequence[str],
    family: str | None,
    zero: Zero,
    orders: bool = False,
    nonfinite: Sequence[str] = ("family",),
) -> float | None:
    """The threshold of settings that are a rule and a number, and nothing else; None where nothing is clipped.

    `rules`: those that the format has. `family`: whose rule its norms are. `zero`: what 0 means there. `orders`:
    whether it has other norms than that of order 2. `nonfinite`: what it can do when the norm is not finite.
    """
    settings = plain(settings)
    why = _by_key(settings, trainer, nonfinite) or _beyond(settings, rules, family, orders)
    if not why and zero != "zeros" and settings.threshold == 0:
        why = {
            "off": "a threshold of 0 switches clipping off there, and here it makes all gradients 0.",
            "error": "training fails there with a threshold of 0.",
        }[zero]
    if why:
        raise NotRepresentableError(f"Cannot export to {trainer.title}: {why}")
    return None if is_off(settings) else settings.threshold  # type: ignore[return-value]


def _by_key(settings: Settings, trainer: Format, nonfinite: Sequence[str]) -> str:
    """Which keys of a configuration no number in a trainer's can replace, and what to do; '' if none is there."""
    keys = [key for key in ("include", "exclude", "groups") if getattr(settings, key) not in ([], ["*"])]
    unsupported = [f"`{key}`" for key in keys]
    if settings.nonfinite not in nonfinite:
        unsupported.append(f'`nonfinite = "{settings.nonfinite}"`')
    if not unsupported:
        return ""
    what = " or ".join(unsupported)
    instead = f", or use {trainer.instead}" if trainer.instead else ""
    return f"it does not support {what}. Remove {'it' if len(unsupported) == 1 else 'them'}{instead}."


def _beyond(settings: Settings, rules: Sequence[str], family: str | None, orders: bool) -> str:
    """Why a number in a trainer's configuration cannot replace this one, and what to do; '' if it can."""
    if is_off(settings):
        return ""
    if settings.rule not in rules:
        return f"it does not support the rule {settings.rule!r}, but {' and '.join(rules)}."
    if settings.min is not None:
        return "it does not support `min` and `max`. Give a threshold, for bounds of -threshold and threshold."
    if not isinstance(settings.threshold, float):
        return "it does not support a threshold with a schedule. Give a number."
    if settings.rule == "value":
        return ""
    if not orders and settings.norm_type not in (None, 2.0):
        return f"it does not support `norm_type = {settings.norm_type:g}`, but only 2."
    if family and (settings.family or DEFAULT_FAMILY) != family:
        own = f"this configuration is {settings.family!r}"
        if settings.family is None:
            own = f"this configuration sets no family, so that the default applies, {DEFAULT_FAMILY!r}"
        return f'its rule is that of the family {family!r}, and {own}. Set `family = "{family}"`.'
    if settings.has_own_eps:
        return f"it does not support `eps = {settings.eps:g}`. Remove `eps`."
    return ""
