"""What an optimizer that exists clips: `ClipConfig.of`. Imports no framework."""

from __future__ import annotations

import sys
from typing import Any

from packaging.version import Version

from ...errors import ConfigError
from ..documents import Document
from .base import Imported
from .keras import NAMES, Keras
from .paddle import ARGUMENTS, PER_GROUP, bounds, settings_of


def data(optimizer: Any) -> dict[str, Any]:
    """The settings of an optimizer's own clipping, as data; `ClipConfig.of` says what it raises."""
    modules = [base.__module__ for base in type(optimizer).__mro__]
    packages = {module.partition(".")[0] for module in modules}
    for package, read in (("keras", _keras), ("tf_keras", _keras), ("paddle", _paddle)):
        if package in packages:
            found = read(optimizer, sys.modules[package].__version__)
            source = {"format": "keras" if read is _keras else "paddle", "version": sys.modules[package].__version__}
            return {**found.settings, "provenance": {**source, "notes": found.notes}}
    raise TypeError(f"a {type(optimizer).__module__}.{type(optimizer).__qualname__} {_why_not(packages)}")


def _why_not(packages: set[str]) -> str:
    if "torch" in packages:
        return "does not clip by itself: PyTorch's training loops do; import the trainer's configuration"
    if "optax" in packages:
        return "keeps what it clips to itself; import the source that builds it: --from optax"
    return "is no optimizer of Keras or Paddle, which hold what they clip"


def _keras(optimizer: Any, version: str) -> Imported:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    config = {name: getattr(optimizer, name, None) for name in NAMES}
    legacy = {"is_legacy_optimizer": True} if ".legacy." in type(optimizer).__module__ else {}
    return Keras().read(Document(type(optimizer).__name__, "", "python", config | legacy), Version(version))


def _paddle(optimizer: Any, _: str) -> Imported:
    if not hasattr(optimizer, "_grad_clip"):
        raise TypeError(f"a {type(optimizer).__name__} is no optimizer of Paddle, which holds a grad_clip")
    clip = optimizer._grad_clip
    groups = [group for group in optimizer._param_groups or [] if isinstance(group, dict)]
    if any(group.get("grad_clip", clip) is not clip for group in groups):
        raise ConfigError(f"{type(optimizer).__name__}: its groups of parameters have a grad_clip each; say those here")
    if clip is None:
        return Imported({"rule": "none"})
    notes = [PER_GROUP] if len(groups) > 1 else []
    parameters = [each for group in groups for each in group["params"]] or optimizer._parameter_list or []
    if left_out := sum(not getattr(each, "need_clip", True) for each in parameters):
        notes.append(f"Paddle leaves out {left_out} of the parameters, whose need_clip is False; name them in exclude")
    return Imported(_settings(clip, type(optimizer).__name__), notes)


def _settings(clip: Any, owner: str) -> dict[str, Any]:
    """What a clip of Paddle's does, or one of `unified_clip.paddle`."""
    kind = type(clip)
    package = kind.__module__.partition(".")[0]
    if package not in ("paddle", "unified_clip") or kind.__name__ not in ARGUMENTS:
        raise ConfigError(
            f"{owner}: its grad_clip is a {kind.__module__}.{kind.__qualname__}, whose rule is not known; say it here"
        )
    if getattr(clip, "need_clip", None) is not None:
        raise ConfigError(f"{owner}: need_clip of its grad_clip is a function, which cannot be read; name parameters")
    name, given = kind.__name__, {key: getattr(clip, key) for key in ARGUMENTS[kind.__name__] if hasattr(clip, key)}
    arguments = Document(f"{owner}, {name}", "", "python", given)
    if package == "paddle":
        return settings_of(name, arguments)
    if name.endswith("Value"):
        return bounds(arguments, "max", "min")
    rule = "global_norm" if name.endswith("GlobalNorm") else "norm"
    return {"rule": rule, "threshold": clip.clip_norm, "family": "paddle"}
