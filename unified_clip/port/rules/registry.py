"""The registry of rewriting rules. Each module of this package registers the rules for one kind of clip.

To add a rule:

0. For an argument of an optimizer, skip step 1, and match `clip.is_optimizer_argument`.
1. Add the function to `port/catalog.toml`, with a kind of its own, because the rules for another kind match all of its
   clips. Add the kind to `Kind` in `port/catalog.py`, and explain it in the comment on `kind` in `catalog.toml`.
2. Add a module here with a function that calls `file.rewrite` to rewrite a clip, or `file.flag` to give a reason:

       @register(RuleOrder.CALLS, matches=lambda clip: clip.kind == "program", target="torch")
       def flag(file: FileRewrite, clip: FoundClip) -> None:
           file.flag(clip, "This call belongs to a static program of Paddle, ...")

   Exactly one rule with the order CALLS has to match a clip, for each target (`torch` and `drop-in`), with --native and
   without.
3. Add a source with such a clip to `tests/data/port/sources/`. A test fails for a rule that no source needs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from ..clip_call import FoundClip
from ..clip_site import Target
from ..file_rewrite import FileRewrite


class RuleOrder(IntEnum):
    """The order in which rules are applied. Two rules of the same order never match the same clip."""

    OFF = 0
    """Leave trainer settings unchanged that switch clipping off."""

    JUDGE = 1
    """Leave a clip unchanged, or flag it, because of its own arguments."""

    STEPS = 2
    """Rewrite clips together with their training steps. Such a rule gets all its clips of a file in one call."""

    CALLS = 3
    """Rewrite or flag each remaining clip by itself."""


Matches = Callable[[FoundClip], bool]
Apply = Callable[[FileRewrite, Any], None]
"""The function of a rule. Its arguments are the file and one clip. With RuleOrder.STEPS, it gets a list of clips."""


@dataclass(frozen=True)
class Rule:
    """A rule: the test for the clips that it applies to, and the function that decides about such a clip."""

    order: RuleOrder
    matches: Matches
    apply: Apply
    target: Target | None
    native: bool | None

    @property
    def name(self) -> str:
        return f"{self.apply.__module__.rpartition('.')[2]}.{self.apply.__name__}"


_rules: list[Rule] = []


def register(
    order: RuleOrder, *, matches: Matches, target: Target | None = None, native: bool | None = None
) -> Callable[[Apply], Apply]:
    """Return a decorator that registers a function as a rule.

    matches: A function that returns whether the rule applies to a clip.
    target, native: The values of --to and --native for which the rule is used. None stands for all values.
    """

    def decorate(apply: Apply) -> Apply:
        _rules.append(Rule(order, matches, apply, target, native))
        return apply

    return decorate


@cache
def rules() -> Sequence[Rule]:
    """Import all modules of this package, and return the registered rules in order."""
    package = __name__.rpartition(".")[0]
    for module in sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)):
        importlib.import_module(f"{package}.{module}")
    return sorted(_rules, key=lambda rule: rule.order)


def apply(file: FileRewrite, *orders: RuleOrder) -> None:
    """Apply the rules of these orders to each clip of a file that has no verdict yet."""
    for rule in rules():
        is_for = rule.target in (None, file.target) and rule.native in (None, file.native)
        clips = list(filter(rule.matches, file.with_verdict(None))) if rule.order in orders and is_for else []
        file.rule = rule.name
        for argument in [clips] * bool(clips) if rule.order is RuleOrder.STEPS else clips:
            rule.apply(file, argument)
