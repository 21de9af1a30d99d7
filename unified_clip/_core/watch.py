"""Who watches the calls: a recording, or nobody. The rule tells it what it found, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from .ops import Path, Scalar

if TYPE_CHECKING:
    from .gradients import Gradients

Rule = Literal["global", "each", "slices", "value"]
"""One norm over all gradients, one for each, one for each slice of the only one; or no norm, but bounds."""


class Clip(NamedTuple):
    """A group of gradients that is about to be clipped, and by what."""

    rule: Rule
    gradients: Gradients
    group: range
    path: Path
    threshold: Scalar | tuple[Any, Any]
    """The limit of a norm, or two bounds."""

    n: Scalar | None = None
    coef: Scalar | None = None
    """None where the limit is inf, and nothing is scaled; and where there is no norm."""

    p: float | None = None
    eps: float | None = None
    measured: bool = True
    """Whether n is the norm of these gradients: the caller may have given another."""


class Watcher(Protocol):
    in_detail: bool
    """Whether gradients have to be known one by one, and what they are called."""

    norms: bool
    """Whether the norm of each is wanted."""

    def run(self, body: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a call."""

    def see(self, clip: Clip) -> None:
        """Called by the rule."""

    def miss(self, framework: str) -> None:
        """Called where a graph is made that cannot tell what it clips."""


watcher: Watcher | None = None
"""Of the process, and all its threads."""


def tell(*found: Any, **more: Any) -> None:
    """What `Clip` holds; only called where somebody watches. PyTorch's compiler leaves it out of its graphs."""
    if watcher is not None:
        watcher.see(Clip(*found, **more))


def in_detail() -> bool:
    """Whether somebody wants to know gradients one by one; not in a graph of PyTorch's compiler."""
    return watcher is not None and watcher.in_detail
