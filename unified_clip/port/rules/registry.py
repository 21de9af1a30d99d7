"""The registry of rewriting rules. Each module of this package registers the rules for one kind of clip.

To add a rule:

1. Add the clip function to `facts/functions.toml`. Choose a new kind: the rules of existing kinds would match the
   function. Add the kind to `Kind` in `facts/clips.py`, and explain it in the comment on `kind` in `functions.toml`.
   If the clip is an argument of an optimizer, skip step 1, and use `clip.is_optimizer_argument` in `matches`.
2. Add a module here with a function that calls `file.rewrite` to rewrite a clip. If the clip cannot be rewritten, call
   `file.flag` with the reason:

       @register(RuleOrder.CALLS, matches=lambda clip: clip.kind == "program", target="torch")
       def flag(file: FileRewrite, clip: FoundClip) -> None:
           file.flag(clip, "This call belongs to a static program of Paddle, ...")

   For each clip, exactly one rule with RuleOrder.CALLS must match with the target `drop-in`, and with `torch`.
3. Add a file with a clip of the new kind to `tests/data/port/sources/`. A test checks that these files use every rule.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from ..file_rewrite import FileRewrite
from ..found_clip import FoundClip
from ..ported_clip import Target


class RuleOrder(IntEnum):
    """The order in which rules are applied. A clip matches at most one rule of each `RuleOrder`."""

    OFF = 0
    """Leave a trainer's setting unchanged if it switches clipping off. Flag a clip whose result no code uses."""

    JUDGE = 1
    """Flag the clip or leave it unchanged, depending on its arguments."""

    STEPS = 2
    """Rewrite clips together with training steps. A rule is applied once per file, to all clips that match the rule."""

    CALLS = 3
    """Rewrite or flag the remaining clips one by one."""


Matches = Callable[[FoundClip], bool]
Apply = Callable[[FileRewrite, Any], None]
"""The second argument is a clip, or a list of clips for RuleOrder.STEPS."""


@dataclass(frozen=True)
class RewritingRule:
    order: RuleOrder
    matches: Matches
    apply: Apply
    target: Target | None

    @property
    def name(self) -> str:
        return f"{self.apply.__module__.rpartition('.')[2]}.{self.apply.__name__}"


_rules: list[RewritingRule] = []


def register(order: RuleOrder, *, matches: Matches, target: Target | None = None) -> Callable[[Apply], Apply]:
    """Register a rule for one value of --to (`target`). None means all values."""

    def decorate(apply: Apply) -> Apply:
        _rules.append(RewritingRule(order, matches, apply, target))
        return apply

    return decorate


@cache
def rules() -> Sequence[RewritingRule]:
    package = __name__.rpartition(".")[0]
    for module in sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)):
        importlib.import_module(f"{package}.{module}")
    return sorted(_rules, key=lambda rule: rule.order)


def apply(file: FileRewrite, *orders: RuleOrder) -> None:
    for rule in rules():
        is_for = rule.order in orders and rule.target in (None, file.target)
        clips = list(filter(rule.matches, file.with_verdict(None))) if is_for else []
        file.rule = rule.name
        for argument in [clips] * bool(clips) if rule.order is RuleOrder.STEPS else clips:
            rule.apply(file, argument)
