"""The observer of clip calls, such as a recording. The rule reports to it before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from .path import Path
from .types import Scalar

P = ParamSpec("P")
R = TypeVar("R")

Rule = Literal["global", "each", "slices", "value"]
"""How a call clips. "global": by one norm over all gradients. "each": by a norm for each gradient. "slices": by a norm
for each slice of the only gradient. "value": by bounds for every element.
"""


class Clip(NamedTuple):
    """The clip of a group of gradients, before anything is written."""

    rule: Rule
    gradients: Any
    """A `GradientList`. The annotation is Any, because the module of `GradientList` imports this module."""

    group: range
    path: Path
    threshold: Scalar | tuple[Any, Any]
    """The threshold of the norm, or the two bounds for the rule "value"."""

    n: Scalar | None = None
    coef: Scalar | None = None
    """The clip coefficient. None for the rule "value", and for a threshold of inf."""

    p: float | None = None
    eps: float | None = None
    measured: bool = True
    """Whether the norm `n` was measured. False: the caller passed it."""


class Observer(Protocol):
    needs_leaves: bool
    """Whether the observer needs the gradients one by one, with their names."""

    norms: bool
    """Whether the observer needs the norm of each gradient."""

    def run(self, body: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body of a public function with these arguments, and return its result."""

    def on_clip(self, clip: Clip) -> None:
        """Record a clip. The rule calls this before anything is written."""

    def on_unrecordable_graph(self, framework: str) -> None:
        """Warn that a compiled graph of this framework cannot report its clips."""

    def on_warning(self, message: str) -> None:
        """Record the text of a ClipWarning. `validation.warn_at_call` calls this before it issues the warning."""


active: Observer | None = None
"""The observer of this process and all its threads, or None if there is none."""


def emit(*fields: Any, **more: Any) -> None:
    """Pass the fields of a `Clip` to the observer. PyTorch's compiler omits this call from its graphs."""
    if active is not None:
        active.on_clip(Clip(*fields, **more))


def needs_leaves() -> bool:
    """Return whether the observer needs the gradients one by one. False in a graph of PyTorch's compiler."""
    return active is not None and active.needs_leaves
