"""The registry of rewriting rules. Each module of this package registers the rules for one kind of clip.

To add a rule, add a module here, and nothing else:

    @register(Stage.CALLS, matches=lambda clip: clip.kind == "program", target="torch")
    def flag(file: FileRewrite, clip: FoundClip) -> None:
        file.flag(clip, "It belongs to a static program of Paddle, ...")

Then add a source with such a clip to tests/data/port. A test fails for a rule that no source needs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, wraps

from ..clip_call import FoundClip
from ..clip_site import Target
from ..file_rewrite import FileRewrite


class Stage(IntEnum):
    """The order of rules. Rules of one stage match different clips, so that their order does not matter."""

    OFF = 0
    """Leave trainer settings that switch clipping off."""

    JUDGE = 1
    """Leave or flag a clip by its own arguments."""

    STEPS = 2
    """Rewrite clips together with the training steps that they belong to."""

    CALLS = 3
    """Rewrite or flag each remaining clip by itself."""


Matches = Callable[[FoundClip], bool]
Apply = Callable[[FileRewrite, FoundClip], None]
ApplyToAll = Callable[[FileRewrite, Sequence[FoundClip]], None]


@dataclass(frozen=True)
class Rule:
    """A function that decides about the undecided clips of a file that it matches."""

    stage: Stage
    matches: Matches
    apply: ApplyToAll
    target: Target | None
    native: bool | None

    @property
    def name(self) -> str:
        return f"{self.apply.__module__.rpartition('.')[2]}.{self.apply.__name__}"


_rules: list[Rule] = []


def register(
    stage: Stage, *, matches: Matches, target: Target | None = None, native: bool | None = None
) -> Callable[[Apply], Apply]:
    """Register a rule for one clip. `target` and `native`: the only options that it applies to; None for all."""

    def decorate(apply: Apply) -> Apply:
        @wraps(apply)
        def apply_to_all(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
            for clip in clips:
                apply(file, clip)

        _rules.append(Rule(stage, matches, apply_to_all, target, native))
        return apply

    return decorate


def register_steps(*, matches: Matches) -> Callable[[ApplyToAll], ApplyToAll]:
    """Register a rule for all clips of a file together, and the training steps that they belong to."""

    def decorate(apply: ApplyToAll) -> ApplyToAll:
        _rules.append(Rule(Stage.STEPS, matches, apply, "torch", None))
        return apply

    return decorate


@cache
def rules() -> Sequence[Rule]:
    """Import all modules of this package, and return their rules by stage."""
    package = __name__.rpartition(".")[0]
    for module in sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)):
        importlib.import_module(f"{package}.{module}")
    return sorted(_rules, key=lambda rule: rule.stage)


def apply(file: FileRewrite, *stages: Stage) -> None:
    """Apply the rules of some stages to a file."""
    for rule in rules():
        is_for = rule.target in (None, file.target) and rule.native in (None, file.native)
        if rule.stage in stages and is_for and (clips := list(filter(rule.matches, file.with_verdict(None)))):
            file.rule = rule.name
            rule.apply(file, clips)
