"""The observer of clip calls, such as a recording. The rule reports to it before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from .path import Path
from .types import Scalar

P = ParamSpec("P")
R = TypeVar("R")

Rule = Literal["global", "each", "slices", "value"]
"""One norm over all gradients, per tensor, or per slice of the only tensor; or bounds for every element."""


class Clip(NamedTuple):
    """The clip of a group of gradients, before anything is written."""

    rule: Rule
    gradients: Any
    """A `GradientList`, whose module imports this one."""

    group: range
    path: Path
    threshold: Scalar | tuple[Any, Any]
    """The threshold of a norm, or two bounds."""

    n: Scalar | None = None
    coef: Scalar | None = None
    """None without a norm, and for a threshold of inf."""

    p: float | None = None
    eps: float | None = None
    measured: bool = True
    """True if n was measured, False if the caller passed it."""


class Observer(Protocol):
    needs_leaves: bool
    """True if it needs the gradients one by one, with their names."""

    norms: bool
    """True if it needs the norm of each gradient."""

    def run(self, body: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call."""

    def on_clip(self, clip: Clip) -> None:
        """Receive a clip from the rule."""

    def on_unrecordable_graph(self, framework: str) -> None:
        """Receive the framework of a compiled graph that cannot report its clips."""


active: Observer | None = None
"""The observer of the process and all its threads."""


def emit(*fields: Any, **more: Any) -> None:
    """Pass the fields of a `Clip` to the observer. PyTorch's compiler omits this call from its graphs."""
    if active is not None:
        active.on_clip(Clip(*fields, **more))


def needs_leaves() -> bool:
    """Return whether the observer needs the gradients one by one. False in a graph of PyTorch's compiler."""
    return active is not None and active.needs_leaves
