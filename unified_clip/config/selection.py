"""Select the group of each gradient by the name of its parameter."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .._core import validation
from .._core.collect import wants_clipping
from .._core.gradients import GradientList
from .._core.names import make_namer, matcher, names_in
from .._core.types import Leaf
from ..recorder.lines import canonical
from .schema import Settings


class ParameterSelection:
    """Assigns gradients to `Settings.parts`."""

    def __init__(self, settings: Settings, names: Any, unmatched: str = "") -> None:
        self._uses_names, self._names = settings.uses_names, names
        self._groups = [group.name for group in settings.groups]
        self._name_of = make_namer(names)
        self.patterns = [(tuple(include), tuple(exclude)) for include, exclude in settings.patterns]
        self._parts = [(matcher(include), matcher(exclude)) for include, exclude in self.patterns]
        self._part_by_name: dict[str, int | None] = {}
        self._checked, self._unmatched = False, unmatched
        self._all_names = names_in(names)
        self._seen: dict[str, None] = {}

    def declare(self, names: Sequence[str]) -> None:
        self._all_names = [*self._all_names, *names]

    def name(self, leaf: Leaf) -> str | None:
        name = self._name_of(leaf)
        has_parameter = leaf.parameter is not None and leaf.parameter is not leaf.tensor
        # in a list of lists, indices such as "0.1" are the name of a gradient
        return leaf.path if name is None and not has_parameter and "." in (leaf.path or "") else name

    def group_leaves(self, leaves: Sequence[Leaf]) -> list[Leaf]:
        """Return the `Leaf` of each gradient to clip, in the order of `Settings.parts`."""
        # A gradient without its parameter is its own. In Paddle's graphs, `need_clip` of each such value is False.
        kept = [leaf for leaf in leaves if leaf.tensor is not None]
        gradients = [leaf for leaf in kept if leaf.parameter is leaf.tensor or wants_clipping(leaf.parameter)]
        parts = [self._part(leaf) for leaf in gradients]
        if self._uses_names and gradients and not self._checked:
            self._check([self.name(leaf) or "" for leaf in leaves])
        included = [(part, leaf) for part, leaf in zip(parts, gradients, strict=True) if part is not None]
        return [leaf._replace(name=self.name(leaf)) for _, leaf in sorted(included, key=lambda item: item[0])]

    def parameters(self, parameters: Any) -> list[list[Any]] | None:
        """Return the parameters for each entry of `Settings.parts`, and then the excluded parameters.

        Return None for parameters without names.
        """
        named = list(parameters.items()) if type(parameters) is dict else parameters
        if type(named) is not list or not all(
            type(item) is tuple and len(item) == 2 and type(item[0]) is str for item in named
        ):
            return None
        first: dict[int, tuple[str, Any]] = {}
        for name, parameter in named:
            first.setdefault(id(parameter), (name, parameter))
        parts: list[list[Any]] = [[] for _ in (*self._parts, "excluded")]
        for name, parameter in first.values():
            part = self._part_of(name)
            parts[-1 if part is None else part].append(parameter)
        if first and not self._checked:
            self._check([name for name, _ in named])
        return parts

    def group_ranges(self, gradients: GradientList) -> list[range]:
        """`gradients` must be sorted as `group_leaves` sorts them."""
        if not self._uses_names:
            return [range(len(gradients.values))]
        counts = Counter(self._part(leaf) for leaf in gradients.leaves)
        return consecutive_ranges([counts[index] for index in range(len(self._parts))])

    def _part(self, leaf: Leaf) -> int | None:
        if not self._uses_names:
            return 0
        name = self.name(leaf)
        if name is None:
            raise TypeError(f"The configuration selects parameters by name. {self._unnamed(leaf)}")
        return self._part_of(name)

    def _unnamed(self, leaf: Leaf) -> str:
        if isinstance(self._names, list | tuple):
            count = len(self._names)
            return f"But `names` has only {count} entries, and no name for {leaf.place}. Pass a name for each gradient."
        is_alone = leaf.parameter is None or leaf.parameter is leaf.tensor  # a gradient without its parameter
        if self._names is not None and is_alone:
            return (
                f"But `names` gives names to parameters, and {leaf.place} is a gradient without its parameter. Pass "
                "gradients as a dict or (name, gradient) tuples."
            )
        if self._names is not None:
            return (
                f"But `names` does not contain {leaf.place}. Pass the model, or all parameters with their names, as "
                "`names`."
            )
        if not is_alone:
            advice = "Clip with clip.clipper(model), or pass model.named_parameters() to clip_."
            return f"But {leaf.place} has no name. {advice}"
        return (
            f"But {leaf.place} has no name. Pass gradients as a dict or (name, gradient) tuples. Or clip with "
            "clip.clipper(names), where names lists the parameter names in the order of the gradients."
        )

    def _part_of(self, name: str) -> int | None:
        if name not in self._part_by_name:
            *groups, (included, excluded) = self._parts
            parts = (index for index, (include, exclude) in enumerate(groups) if include(name) and not exclude(name))
            is_clipped = included(name) and not excluded(name)
            self._part_by_name[name] = next(parts, len(groups)) if is_clipped else None
        return self._part_by_name[name]

    def _check(self, names: Sequence[str]) -> None:
        """Warn once about patterns and groups that match nothing."""
        new = [name for name in names if name not in self._seen]
        self._seen.update(dict.fromkeys(new))
        if not (new and self._unmatched):  # later calls can have more parameters
            self.check_now()

    def check_now(self) -> None:
        names = list(dict.fromkeys([*self._all_names, *self._seen]))
        if self._checked or not names:
            return
        for include, exclude in self.patterns:
            for pattern in (*include, *exclude):
                if not any(map(matcher([pattern]), names)):
                    validation.warn(self._unmatched_pattern(pattern, names, is_only=include == (pattern,)))
        filled = set(map(self._part_of, names))
        for index, (group, (matches, _)) in enumerate(zip(self._groups, self._parts, strict=False)):
            if index not in filled and any(map(matches, names)):
                validation.warn(
                    f"The group {group!r} of the configuration has no parameters: its patterns match only names that "
                    "are excluded or belong to an earlier group. Correct the patterns, or change the order of the "
                    "groups. If the group is for another model or optimizer, change nothing."
                )
        self._checked = True

    def _unmatched_pattern(self, pattern: str, names: Sequence[str], *, is_only: bool) -> str:
        few = ", ".join(repr(canonical(name)) for name in names[:3]) + (", ..." if len(names) > 3 else "")
        if self._unmatched:
            problem = f"So far, the pattern {pattern!r} of the configuration matches none of the names {few}."
            return f"{problem} {self._unmatched}"
        sentences = [
            f"The pattern {pattern!r} of the configuration matches none of the names {few}.",
            "Correct the pattern. If the pattern is for another model or optimizer, change nothing.",
        ]
        if not is_only:  # without its only pattern, `include` would select every parameter
            sentences.append("If no parameter should match the pattern, remove the pattern.")
        return " ".join(sentences)


def copied_names(names: Any, memo: Mapping[int, Any]) -> Any:
    if isinstance(names, Mapping):
        return {name: memo.get(id(parameter), parameter) for name, parameter in names.items()}
    return memo.get(id(names), names)


def consecutive_ranges(lengths: Sequence[int]) -> list[range]:
    ends = itertools.accumulate(lengths)
    return [range(end - length, end) for end, length in zip(ends, lengths, strict=True)]
