"""The names in source code that may be clips, and how unified_clip's functions replace the functions in `facts`."""

from __future__ import annotations

import functools
import inspect
import itertools
import re

import unified_clip

from ..facts.clips import (
    NO_FUNCTION,
    ClassCheck,
    ClipFunction,
    TrainerSetting,
    class_checks,
    clip_function,
    clip_functions,
    clip_packages,
    last_names,
    names,
    setting_of,
    settings,
    trainer_packages,
)
from ..source.frameworks import FRAMEWORKS

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


@functools.cache
def positional_parameters(replacement: str) -> tuple[str, ...]:
    parameters = inspect.signature(getattr(unified_clip, replacement)).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)


def same_positions(function: ClipFunction) -> int:
    """Return the number of leading parameters that have the same position in the replacement."""
    pairs = zip(function.new_names, positional_parameters(function.replacement), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def takes_other_arguments(function: ClipFunction) -> bool:
    return bool(function.renamed) or same_positions(function) < len(function.parameters)


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
    names = (name for setting in settings() for name in setting.owners)
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


__all__ = [
    "FRAMEWORKS",
    "NO_FUNCTION",
    "ClassCheck",
    "ClipFunction",
    "TrainerSetting",
    "class_checks",
    "clip_function",
    "clip_functions",
    "clip_packages",
    "last_names",
    "names",
    "setting_of",
    "settings",
    "trainer_packages",
]
