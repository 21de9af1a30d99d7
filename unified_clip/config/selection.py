"""Which part of a configuration a gradient belongs to, by its name."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from .._core import checks
from .._core.containers import Leaf
from .._core.gradients import Gradients, wants_clipping
from ..recording.clip_event import make_namer
from .schema import Settings


class ParameterSelection:
    """Which part of a configuration a gradient belongs to, by its name."""

    def __init__(self, settings: Settings, names: Any, unmatched: str = "") -> None:
        self._uses_names = settings.uses_names
        self._name_of = make_namer(names)
        chosen = [*((group.include, group.exclude) for group in settings.groups), (settings.include, settings.exclude)]
        self._parts = [(_matcher(include), _matcher(exclude)) for include, exclude in chosen]
        self.patterns = [(tuple(include), tuple(exclude)) for include, exclude in chosen]
        self._known: dict[str, int | None] = {}
        self._checked, self._unmatched = False, unmatched

    def name(self, leaf: Leaf) -> str | None:
        name = self._name_of(leaf)
        return None if name is None else _dotted(name)

    def group_leaves(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """The leaves that take part, those of one part together."""
        wanted = [leaf for leaf in leaves if leaf.tensor is not None and wants_clipping(leaf.parameter)]
        parts = [self._part(leaf) for leaf in wanted]
        if self._uses_names and wanted and not self._checked:
            self._check_patterns([self.name(leaf) or "" for leaf in leaves])
        taken = [(part, leaf) for part, leaf in zip(parts, wanted, strict=True) if part is not None]
        return [leaf._replace(name=self.name(leaf)) for _, leaf in sorted(taken, key=lambda each: each[0])]

    def parameters(self, parameters: Any) -> list[list[Any]] | None:
        """The parameters of each part, and last those left out, where they come with their names: a dict, or pairs.

        One that comes twice belongs where its first name says.
        """
        pairs = list(parameters.items()) if type(parameters) is dict else parameters
        if type(pairs) is not list or not all(
            type(each) is tuple and len(each) == 2 and type(each[0]) is str for each in pairs
        ):
            return None
        first: dict[int, tuple[str, Any]] = {}
        for name, parameter in pairs:
            first.setdefault(id(parameter), (_dotted(name), parameter))
        found: list[list[Any]] = [[] for _ in (*self._parts, "left out")]
        for name, parameter in first.values():
            part = self._part_of(name)
            found[-1 if part is None else part].append(parameter)
        if first and not self._checked:
            self._check_patterns([_dotted(name) for name, _ in pairs])
        return found

    def group_ranges(self, gradients: Gradients) -> list[range]:
        """Where the parts are among arranged gradients."""
        if not self._uses_names:
            return [range(len(gradients.values))]
        members = Counter(self._part(leaf) for leaf in gradients.leaves)
        ends = list(itertools.accumulate(members[index] for index in range(len(self._parts))))
        return [range(end - members[index], end) for index, end in enumerate(ends)]

    def _part(self, leaf: Leaf) -> int | None:
        if not self._uses_names:
            return 0
        name = self.name(leaf)
        if name is None:
            raise TypeError(
                f"{leaf.place} has no name, and the configuration chooses parameters by name. Pass "
                "model.named_parameters(), a dict, (name, gradient) pairs, or names=."
            )
        return self._part_of(name)

    def _part_of(self, name: str) -> int | None:
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]

    def _find(self, name: str) -> int | None:
        for index, (include, exclude) in enumerate(self._parts):
            if include(name) and not exclude(name):
                return index
        return None

    def _check_patterns(self, names: Sequence[str]) -> None:
        for pattern in (pattern for lists in self.patterns for patterns in lists for pattern in patterns):
            if not any(map(_matcher([pattern]), names)):
                few = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
                message = f"The pattern {pattern!r} of the configuration matches none of the names {few}."
                if self._unmatched:
                    raise ValueError(f"{message} {self._unmatched}")
                checks.warn(message)
        self._checked = True


def _dotted(name: str) -> str:
    return name.replace("/", ".").removesuffix(":0")


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a test of names. A leading `*.` stands for any module or none: `*.bias` matches `bias`."""
    if not patterns:
        return lambda name: False
    without_module = [pattern.removeprefix("*.") for pattern in patterns if pattern.startswith("*.")]
    compiled = re.compile("|".join(map(fnmatch.translate, [*patterns, *without_module])))
    return lambda name: compiled.match(name) is not None
