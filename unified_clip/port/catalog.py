"""Read `catalog.toml` and `trainer_arguments.toml`. The comments in these files explain the fields."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import unified_clip

from .._dispatch import ADAPTERS
from .._kit import atomic_files
from .._kit.parse import tomllib
from ..source.frameworks import FRAMEWORKS as FRAMEWORKS

Kind = Literal["", "in place", "functional", "any tensor", "class", "program", "unknown"]

Off = Literal["None", "None or 0", "None, 0 or less", "0 or less"]
"""The thresholds that switch a trainer's clipping off."""

MODULE_ALIASES = (
    (re.compile(r"tensorflow\.compat\.v[12]\.|tensorflow\.python\.ops\.clip_ops\.|tensorflow\."), "tf."),
    (
        re.compile(r"optax\.(transforms(\._clipping)?|_src\.(clipping|transform)|(_src\.)?contrib\._?\w+|contrib)\."),
        "optax.",
    ),
)
KERAS_OPTIMIZER = re.compile(r"(tensorflow\.(compat\.v[12]\.|python\.)?)?(tf_)?keras\.(\w+\.)*optimizers\.")

CLIP_NAME = re.compile(r"(?i)clip_?(by_)?(the_)?(grad|global_?norm)|grad(ient)?s?_?clip")
THRESHOLD_NAME = re.compile(
    rf"{CLIP_NAME.pattern}|max_?((grads?|gradients?|global|total|allowed)_?)*norm|clip(ping)?_?(norm|thresh)|norm_?clip"
)
GRADIENT_NAME = re.compile(r"_?(gvs?|(\w+_)?(grads?|gradients?|gvs|grads_and_vars|grad_and_vars)(_\w+)?)s?\Z")
SHORT_NAME = re.compile(r"_?d?gs?\Z")
"""Matches names that stand for a gradient where a function, such as `tf.clip_by_norm`, hardly clips anything else."""

SWITCH_NAMES = {"stop_gradient", "no_grad", "enable_grad", "requires_grad", "requires_grad_", "set_grad_enabled"}
"""Names that match GRADIENT_NAME, but do not stand for gradients."""

NORM_NAME = re.compile(r"(?i)(?<!de)norm(?!al)|\Atotal\Z")

CLAMP_NAMES = {"clip", "clip_", "clamp", "clamp_"}

HOOK = "register_hook"

ENGINE_METHODS = (
    "clip_grad_norm_", "clip_grad_value_", "clip_gradients", "clip_grad_norm", "clip_grad_by_norm", "clip_master_grads",
)  # fmt: skip

ENGINE_PACKAGES = {"torch", "apex", "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "fairscale"}

KERAS_RULES = {"clipnorm": "norm", "clipvalue": "value", "global_clipnorm": "global_norm"}


@dataclass(frozen=True, eq=False)
class ClipFunction:
    framework: str
    name: str
    kind: Kind
    aliases: Sequence[str] = ()
    parameters: Sequence[str] = ()
    replacement: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    rule: str = ""
    family: str = ""
    limits: Sequence[str] = ()
    needs: str = ""
    quiet: bool = False
    why_not: str = ""
    lines: Sequence[str] = ()
    tensor: str = ""

    def __post_init__(self) -> None:
        namespaces = sorted(set(ADAPTERS.values()))
        if self.replacement and self.framework not in namespaces:
            raise ValueError(
                f"port/catalog.toml: {self.name} has framework = {self.framework!r}, but there is no namespace "
                f"unified_clip.{self.framework}. Set framework to the namespace of the replacement, one of "
                f"{', '.join(namespaces)}."
            )

    @property
    def clipped(self) -> str:
        """The name of the argument with the tensors to clip."""
        return self.tensor or self.parameters[0]

    @property
    def new_names(self) -> list[str]:
        return [self.renamed.get(name, name) for name in self.parameters]

    @property
    def same_positions(self) -> int:
        """The number of leading parameters that have the same position in the replacement."""
        pairs = zip(self.new_names, positional_parameters(self.replacement), strict=False)
        return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))

    @property
    def takes_other_arguments(self) -> bool:
        return bool(self.renamed) or self.same_positions < len(self.parameters)


@functools.cache
def positional_parameters(replacement: str) -> tuple[str, ...]:
    parameters = inspect.signature(getattr(unified_clip, replacement)).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)


NO_FUNCTION = ClipFunction("", "", "")


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class TrainerSetting:
    """An argument that switches a trainer's clipping on, such as `max_grad_norm=`."""

    keyword: str
    why_not: str
    packages: Sequence[str] = ()
    classes: Sequence[str] = ()
    elsewhere: Sequence[str] = ()
    factories: Sequence[str] = ()
    bases: str = ""
    default: str = ""
    off: Off = "None or 0"
    none: str = ""
    in_dict: bool = False
    rule: str = ""
    family: str = ""
    rule_keyword: str = ""
    rules: Mapping[str, str] = field(default_factory=dict)
    lines: Sequence[str] = ()


@functools.cache
def _tables(file: str = "catalog.toml") -> dict[str, Any]:
    return tomllib.loads(atomic_files.read_text(Path(__file__).with_name(file)))


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """Return a list from the table `names` in `catalog.toml`."""
    return tuple(_tables()["names"][kind])


@functools.cache
def clip_functions() -> dict[str, ClipFunction]:
    functions = [ClipFunction(**table) for table in _tables()["function"]]
    return {name: function for function in functions for name in (function.name, *function.aliases)}


@functools.cache
def class_checks() -> tuple[ClassCheck, ...]:
    return tuple(ClassCheck(**table) for table in _tables()["class_check"])


def clip_function(full_name: str) -> ClipFunction | None:
    """Find a function, also by an old name such as `tensorflow.compat.v1.clip_by_norm`."""
    for pattern, short in MODULE_ALIASES:
        if match := pattern.match(full_name):
            full_name = short + full_name[match.end() :]
            break
    return clip_functions().get(full_name)


@functools.cache
def settings() -> tuple[TrainerSetting, ...]:
    return tuple(TrainerSetting(**table) for table in _tables("trainer_arguments.toml")["setting"])


@functools.cache
def trainer_packages() -> frozenset[str]:
    names = (name for setting in settings() for name in (*setting.classes, *setting.elsewhere, *setting.factories))
    return frozenset(name.partition(".")[0] for name in names)


def setting_of(full_name: str) -> TrainerSetting | None:
    return next((setting for setting in settings() if full_name in (*setting.classes, *setting.elsewhere)), None)


def setting_of_base(full_name: str) -> TrainerSetting | None:
    package, last = full_name.partition(".")[0], full_name.rpartition(".")[2]
    known = (setting for setting in settings() if setting.bases and package in setting.packages)
    return next((setting for setting in known if re.fullmatch(setting.bases, last)), None)


@functools.cache
def last_names() -> frozenset[str]:
    return frozenset(name.rpartition(".")[2] for name in clip_functions())


@functools.cache
def clip_packages() -> frozenset[str]:
    functions = clip_functions().items()
    return frozenset(name.partition(".")[0] for name, each in functions if name.endswith(".clip") and not each.quiet)


@functools.cache
def _clues() -> frozenset[str]:
    """Return names of possible clips. CLAMP_NAMES are missing, because most clamped tensors are not gradients."""
    keywords = [setting.keyword for setting in settings()]
    return frozenset({*last_names(), *KERAS_RULES, *ENGINE_METHODS, *keywords, "need_clip"} - CLAMP_NAMES)


@functools.cache
def clip_pattern() -> re.Pattern[bytes]:
    """Return a pattern that matches every file with a clip. It also matches some files without a clip."""
    names = _clues() | {name for _, name in _owners()}
    rest = sorted(name for name in names if not re.search("(?i)clip|clamp", name))
    packages = "|".join(sorted(FRAMEWORKS))
    in_file = rf"(?s:\A(?=.*\b(?:{packages})\b).*?getattr\(\s*\w[\w.]*\s*,\s*(?![\"'][^\"']*[\"']\s*[,)]))"
    by_hand = r"(?i:max_?[a-z_]*norm)|/.{0,60}(?i:norm)"
    return re.compile("|".join(["[cC][lL][iI][pP]", "clamp", by_hand, *rest, in_file]).encode())


@functools.cache
def _owners() -> frozenset[tuple[str, str]]:
    names = [name for setting in settings() for name in (*setting.classes, *setting.elsewhere, *setting.factories)]
    return frozenset((name.partition(".")[0], name.rpartition(".")[2]) for name in names)


def may_clip(identifiers: set[str]) -> bool:
    if identifiers & _clues() or any(map(THRESHOLD_NAME.search, identifiers)):
        return True
    if any(package in identifiers and name in identifiers for package, name in _owners()):
        return True
    bounds_or_gradients = identifiers & {"max", "maximum", "min", "minimum"} or any(map(is_like_gradient, identifiers))
    if bounds_or_gradients and any(map(NORM_NAME.search, identifiers)):
        return True
    if identifiers & CLAMP_NAMES and (HOOK in identifiers or any(map(is_like_gradient, identifiers))):
        return True
    if "clip" in identifiers and identifiers & clip_packages():
        return True
    return "getattr" in identifiers and bool(identifiers & FRAMEWORKS.keys())


def is_like_gradient(name: str) -> bool:
    return GRADIENT_NAME.match(name) is not None and name not in SWITCH_NAMES
