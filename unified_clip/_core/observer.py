"""The interface of an observer, which is called for every clip, for example to record it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from .path import Path
from .types import Scalar

P = ParamSpec("P")
R = TypeVar("R")

Rule = Literal["global", "each", "slices", "value"]
""""global" clips by the total norm, "each" by the norm of each gradient, and "slices" by the norm of each slice."""


class Clip(NamedTuple):
    """The data about one clip, passed to the observer before the gradients change."""

    rule: Rule
    gradients: Any
    """A `GradientList`, without a type hint because of a circular import."""

    group: range
    path: Path
    threshold: Scalar | tuple[Any, Any]
    """The threshold of the norm, or (low, high) for the rule "value"."""

    n: Scalar | None = None
    coef: Scalar | None = None
    """None if the rule is "value" or the threshold is inf."""

    p: float | None = None
    eps: float | None = None
    measured: bool = True
    """False if the caller passed the norm."""


class Observer(Protocol):
    norms: bool
    """Whether the observer measures each gradient."""

    def run(self, body: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    def on_clip(self, clip: Clip) -> None: ...

    def on_unrecordable_graph(self, framework: str) -> None: ...

    def on_warning(self, message: str) -> None: ...


active: Observer | None = None
"""All threads of this process share this observer."""


def emit(*fields: Any, **more: Any) -> None:
    """Pass a clip to the observer. `torch.compile` leaves this call out of its graphs."""
    if active is not None:
        active.on_clip(Clip(*fields, **more))
