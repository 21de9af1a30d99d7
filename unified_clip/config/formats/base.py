"""The base of the formats: read a trainer's clip keys, and write them."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from packaging.version import InvalidVersion, Version

from ...errors import ConfigError, NotRepresentableError
from ..documents import Document, Key
from ..schedules import Constant
from ..schema import DEFAULT_FAMILY, Settings, is_off

Support = Literal["imported and exported", "imported", "rejected"]


class FormatKey(NamedTuple):
    """A row of the table in docs/formats.md."""

    key: str
    versions: str
    """Versions of the trainer. '' for all."""

    default: str
    meaning: str
    support: Support = "imported and exported"


@dataclass
class Imported:
    """The settings read from a trainer's configuration."""

    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    """Notes for the user: a default that applies, or a word with an unexpected meaning."""


class Format(ABC):
    """One trainer's format."""

    name: ClassVar[str]
    """The name on the command line."""

    title: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    """File kinds: toml, yaml, json, or one of `OwnFormat`. Exports use the first."""

    keys: ClassVar[Sequence[FormatKey]]
    source: ClassVar[str]
    """The files of the trainer's source that define the keys."""

    newest: ClassVar[str]
    """The release that the source was read from. The default for exports."""

    needs_version: ClassVar[str] = ""
    """Why the meaning depends on the trainer's version. '' if it does not."""

    clip_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """The paths where the trainer reads its clip keys. "*" is any key. Errors name the first one."""

    foreign_keys: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Paths of other clip keys, for which `read` has its own error or note."""

    mode_keys: ClassVar[Set[str]] = frozenset()
    """Last parts of `clip_keys` that choose a rule, not a threshold."""

    vocabulary: ClassVar[Set[str]] = frozenset()
    """More top-level keys of its files. Other trainers may have them too."""

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        """Return `clip_keys`, or the paths that apply to this file."""
        return self.clip_keys

    instead: ClassVar[str] = ""
    """The object of unified_clip that clips by a whole configuration in this trainer, for messages."""

    @abstractmethod
    def recognises(self, document: Document) -> bool:
        """Return whether a file has a key that only this format has."""

    @abstractmethod
    def read(self, document: Document, version: Version | None) -> Imported:
        """Return the settings in a file. Raise ConfigError if one cannot be imported."""

    @abstractmethod
    def write(self, settings: Settings, version: Version) -> Any:
        """Return settings as data for `kinds[0]`. Raise NotRepresentableError if the format does not support them."""

    def version(self, version: Version | None, document: Document) -> Version:
        """Return the version. Raise ConfigError if there is none, since the meaning depends on it."""
        if version is None:
            raise ConfigError(
                f"{document.name}: {self.needs_version}. Pass the version: --from {self.name}@{self.newest}"
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
"""Fields of TrainingArguments that Hugging Face and PaddleNLP share."""


class OwnFormat(Format):
    """A format with a file kind of its own, beside any of TOML, YAML and JSON."""

    @abstractmethod
    def parse(self, text: str, name: str) -> Document:
        """Read a text of that kind."""

    @abstractmethod
    def dump(self, data: Any) -> str:
        """Return the result of `write` as text of that kind."""


def parse_version(text: str | None) -> Version | None:
    if text is None:
        return None
    try:
        return Version(text)
    except InvalidVersion:
        raise ConfigError(f"{text!r} is not a version. Pass one such as 1.2.3.") from None


# -- reading

Zero = Literal["off", "zeros", "error"]
"""The trainer's meaning of 0: clipping is off, all gradients become 0, or training fails."""

Negative = Literal["off", "error"]
"""The same of a negative number. "error" also if it would change the sign of every gradient."""


def read_threshold(
    document: Document,
    keys: Sequence[str | int],
    default: Any,
    *,
    zero: Zero,
    negative: Negative = "error",
    null: Literal["off", "error"] = "off",
) -> float | None:
    """Return the threshold at a path of keys; None if it switches clipping off."""
    value = document.get(*keys, default=default)
    if value is None and null == "off":
        return None
    if isinstance(value, str) and value.lower() in ("inf", "infinity", ".inf"):
        value = math.inf
    check_size(document, keys, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise document.wrong(keys, f"{value!r:.60} is not a threshold. Set a number.")
    if value == 0 and zero != "zeros":
        if zero == "error":
            raise document.wrong(keys, "training fails with 0. Remove the key, or set a number above 0.")
        return None
    if value < 0:
        if negative == "error":
            raise document.wrong(keys, f"{value:g} fails in training or flips the sign of gradients. Set 0 or more.")
        return None
    return float(value)


def read_norm_type(document: Document, keys: Sequence[str]) -> float:
    """Return the norm type at a path of keys; 2 if the file does not set it."""
    value = document.get(*keys, default=2.0)
    if isinstance(value, str) and value.lower() == "inf":
        value = math.inf
    check_size(document, keys, value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise document.wrong(keys, f"{value!r:.60} is not a norm type. Set a number above 0, or inf.")
    return float(value)


def check_size(document: Document, keys: Sequence[str | int], value: Any) -> None:
    """Raise ConfigError if an integer is larger than any float."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise document.wrong(keys, "the number is too large for a float. Set a smaller one, or inf.")


def has_key(document: Document, *keys: str | int) -> bool:
    """Return whether a file has a path of keys."""
    table = document.data
    try:
        for key in keys:
            table = table[key]
    except (LookupError, TypeError):
        return False
    return True


def global_norm_settings(limit: float | None, family: str, norm_type: float | None = None) -> dict[str, Any]:
    """Return settings that clip by the total norm, or not at all."""
    if limit is None:
        return {"rule": "none"}
    norm_types = {} if norm_type in (None, 2.0) else {"norm_type": norm_type}
    return {"rule": "global_norm", "threshold": limit, "family": family, **norm_types}


def norm_settings(limit: float | None, family: str) -> dict[str, Any]:
    """Return settings that clip per tensor, or not at all."""
    return {"rule": "none"} if limit is None else {"rule": "norm", "threshold": limit, "family": family}


def value_settings(limit: float | None) -> dict[str, Any]:
    """Return settings that clip each element, or nothing."""
    return {"rule": "none"} if limit is None else {"rule": "value", "threshold": limit}


def require_finite(document: Document, keys: Sequence[str | int], limit: float | None) -> float | None:
    """Return a threshold. Raise ConfigError if it is infinite, for trainers where that makes gradients NaN."""
    if limit == math.inf:
        raise document.wrong(keys, "inf makes gradients NaN in training. Remove the key to clip nothing.")
    return limit


# -- writing


def with_plain_threshold(settings: Settings) -> Settings:
    """Replace a constant schedule by its number."""
    if isinstance(settings.threshold, Constant):
        return settings.model_copy(update={"threshold": settings.threshold.value})
    return settings


def exported_threshold(
    settings: Settings,
    trainer: Format,
    *,
    rules: Sequence[str],
    family: str | None,
    zero: Zero,
    norm_types: bool = False,
    nonfinite: Sequence[str] = ("family",),
) -> float | None:
    """Return the threshold to export; None if nothing is clipped. Raise NotRepresentableError for other settings.

    Args:
        rules: The rules of the format.
        family: The family of its norms.
        zero: Its meaning of 0.
        norm_types: Whether it supports norm types other than 2.
        nonfinite: The values of `nonfinite` that it supports.
    """
    settings = with_plain_threshold(settings)
    problem = _unsupported_keys(settings, trainer, nonfinite) or _unsupported_rule(settings, rules, family, norm_types)
    if not problem and zero != "zeros" and settings.threshold == 0:
        problem = {
            "off": "there, a threshold of 0 switches clipping off. In unified_clip it makes all gradients 0.",
            "error": "training fails there with a threshold of 0.",
        }[zero]
    if problem:
        raise NotRepresentableError(f"Cannot export to {trainer.title}: {problem}")
    return None if is_off(settings) else settings.threshold  # type: ignore[return-value]


def _unsupported_keys(settings: Settings, trainer: Format, nonfinite: Sequence[str]) -> str:
    """Return an error for keys that no trainer's number replaces; '' if there are none."""
    keys = [key for key in ("include", "exclude", "groups") if getattr(settings, key) not in ([], ["*"])]
    unsupported = [f"`{key}`" for key in keys]
    if settings.nonfinite not in nonfinite:
        unsupported.append(f'`nonfinite = "{settings.nonfinite}"`')
    if not unsupported:
        return ""
    instead = f", or use {trainer.instead}" if trainer.instead else ""
    pronoun = "it" if len(unsupported) == 1 else "them"
    return f"it does not support {' or '.join(unsupported)}. Remove {pronoun}{instead}."


def _unsupported_rule(settings: Settings, rules: Sequence[str], family: str | None, norm_types: bool) -> str:
    """Return an error for a rule or threshold that the format does not support; '' if it does."""
    if is_off(settings):
        return ""
    if settings.rule not in rules:
        return f"it does not support the rule {settings.rule!r}, only {' and '.join(rules)}."
    if settings.min is not None:
        return "it does not support `min` and `max`. Set `threshold`, for bounds of -threshold and threshold."
    if not isinstance(settings.threshold, float):
        return "it does not support a schedule. Set `threshold` to a number."
    if settings.rule == "value":
        return ""
    if not norm_types and settings.norm_type not in (None, 2.0):
        return f"it does not support `norm_type = {settings.norm_type:g}`, only 2."
    if family and (settings.family or DEFAULT_FAMILY) != family:
        default = "" if settings.family else ", the default"
        own = f"This configuration's family is {settings.family or DEFAULT_FAMILY!r}{default}"
        return f'its family is {family!r}. {own}. Set `family = "{family}"`.'
    if settings.has_own_eps:
        return f"it does not support `eps = {settings.eps:g}`. Remove `eps`."
    return ""
