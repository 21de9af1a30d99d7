"""The functions and classes that clip, by their full names: `natives.toml`."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

Kind = Literal["in place", "functional", "any tensor", "class", "program", "unknown"]

MODULES = (
    (re.compile(r"tensorflow\.compat\.v[12]\.|tensorflow\.python\.ops\.clip_ops\.|tensorflow\."), "tf."),
    (
        re.compile(r"optax\.(transforms(\._clipping)?|_src\.(clipping|transform)|(_src\.)?contrib\._?\w+|contrib)\."),
        "optax.",
    ),
)
"""Other names for whole modules."""

KERAS = re.compile(r"(tensorflow\.(compat\.v[12]\.|python\.)?)?(tf_)?keras\.(\w+\.)*optimizers\.")
"""Where optimizers of Keras come from."""

METHODS = ("clip_grad_norm_", "clip_grad_value_", "clip_gradients", "clip_grad_norm", "clip_grad_by_norm")
"""Of engines, which clip what they hold."""

KERAS_RULES = {"clipnorm": "norm", "clipvalue": "value", "global_clipnorm": "global_norm"}


@dataclass(frozen=True, eq=False)
class Native:
    """A function or a class that clips; `natives.toml` says what its fields mean."""

    framework: str
    name: str
    kind: Kind
    spelled: Sequence[str] = ()
    parameters: Sequence[str] = ()
    ours: str = ""
    renamed: Mapping[str, str] = field(default_factory=dict)
    rule: str = ""
    family: str = ""
    limits: Sequence[str] = ()
    needs: str = ""
    """It clips only where it is given this argument."""

    why_not: str = ""


@dataclass(frozen=True, eq=False)
class Engine:
    """An optimizer or engine that tests for Paddle's own clip classes; `natives.toml` explains the fields."""

    names: Sequence[str]
    why_not: str
    argument: str = ""
    method: str = ""
    """The method that takes `argument`."""

    position: int = 0
    """Where `argument` is among the positional arguments of `method`."""

    harmless: Sequence[str] = ()

    def has(self, full_name: str) -> bool:
        """Return whether a full name is one of the engine, or below it."""
        return any(full_name == name or full_name.startswith(f"{name}.") for name in self.names)


@functools.cache
def _tables() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(resources.files(__package__).joinpath("natives.toml").read_text(encoding="utf-8"))


@functools.cache
def natives() -> dict[str, Native]:
    """By every full name."""
    found = [Native(**table) for table in _tables()["native"]]
    return {name: native for native in found for name in (native.name, *native.spelled)}


@functools.cache
def engines() -> tuple[Engine, ...]:
    """Return what tests for Paddle's own clip classes."""
    return tuple(Engine(**table) for table in _tables()["engine"])


def native(full_name: str) -> Native | None:
    """What a full name stands for, if it clips."""
    for pattern, short in MODULES:
        if match := pattern.match(full_name):
            full_name = short + full_name[match.end() :]
            break
    return natives().get(full_name)


@functools.cache
def last_names() -> frozenset[str]:
    """The last parts of all full names."""
    return frozenset(name.rpartition(".")[2] for name in natives())


@functools.cache
def words() -> re.Pattern[bytes]:
    """A file in which this is not found holds no clip."""
    names = sorted({*last_names(), *KERAS_RULES, *METHODS, "need_clip", "clip_grad", "ClipGrad", "ClipBy"} - {"clip"})
    clip = r"(?:optax|paddle|layers|transforms|_?clipping)\.clip\b|import[^\n]*\bclip\b|^\s+clip\b,"
    return re.compile(f"{'|'.join(names)}|{clip}".encode(), re.MULTILINE)


@functools.cache
def _telling() -> frozenset[str]:
    return frozenset((last_names() | {*KERAS_RULES, *METHODS, "need_clip", "getattr"}) - {"clip"})


def may_clip(identifiers: set[str]) -> bool:
    """Whether code in which these are named may hold a clip."""
    return bool(identifiers & _telling()) or ("clip" in identifiers and bool(identifiers & {"paddle", "optax"}))


def is_keras_optimizer(full_name: str) -> bool:
    return KERAS.match(full_name) is not None
