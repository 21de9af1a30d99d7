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
from ..settings import Settings, is_off

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

    vocabulary: ClassVar[Set[str]] = frozenset()
    """Further keys at the top of its files, which other trainers have too."""

    def places(self, document: Document) -> Sequence[tuple[Part, ...]]:
        """`clip_keys`, where they do not depend on the file."""
        return self.clip_keys

    @abstractmethod
    def recognises(self, document: Document) -> bool:
        """Whether a file looks like this format's: it has a key that only this format has."""

    @abstractmethod
    def read(self, document: Document, version: Version | None) -> Imported:
        """What a file says. Raises ConfigError where it says what cannot be imported, with the reason."""

    @abstractmethod
    def write(self, settings: Settings, version: Version) -> Any:
        """The same as data for `kinds[0]`. Raises NotRepresentableError where the format cannot say it."""

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
    title: str,
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
    why = _beyond(settings, rules, family, orders, nonfinite)
    if not why and zero != "zeros" and settings.threshold == 0:
        why = {
            "off": "0 switches clipping off there, and here it makes all gradients 0",
            "error": "training fails there with 0",
        }[zero]
    if why:
        raise NotRepresentableError(f"{title} cannot say it: {why}")
    return None if is_off(settings) else settings.threshold  # type: ignore[return-value]


def _beyond(
    settings: Settings, rules: Sequence[str], family: str | None, orders: bool, nonfinite: Sequence[str]
) -> str:
    """What a number in a trainer's configuration cannot say; '' if nothing."""
    if settings.groups:
        return "it has no groups of parameters with a rule of their own"
    if settings.uses_names:
        return "it cannot leave parameters out by name"
    if settings.nonfinite not in nonfinite:
        return f"it does not know nonfinite = {settings.nonfinite!r}"
    if is_off(settings):
        return ""
    if settings.rule not in rules:
        return f"it does not know the rule {settings.rule!r}, but {' and '.join(rules)}"
    if settings.min is not None:
        return "it has no bounds but -threshold and threshold"
    if not isinstance(settings.threshold, float):
        return "its threshold cannot change from step to step"
    if settings.rule == "value":
        return ""
    if not orders and settings.norm_type not in (None, 2.0):
        return f"it knows no norm but that of order 2, and norm_type is {settings.norm_type:g}"
    if family and (settings.family or "pytorch") != family:
        own = settings.family or "pytorch"
        return (
            f"its rule is that of the family {family!r}, and this one is {own!r}; say family = {family!r} to change it"
        )
    if settings.has_own_eps:
        return f"its eps cannot be chosen, and here it is {settings.eps:g}"
    return ""
