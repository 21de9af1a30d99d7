"""The report's rows by rule: the same clip of the same gradients, by each framework's own function.

A case belongs to one public name, so `clip_grad_norm_` and `clip_by_global_norm` are different cases. Here they share a
row, for people who port code and ask how they compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..modes import HOST, NATIVE

Data = Mapping[str, Any]

LAST_STAGES = ("tensors", "norm")
"""The last stage of a clip, and of a call that only measures."""


class Function(NamedTuple):
    """A framework's own function on the gradients of a row."""

    name: str
    verdict: str
    norm: Any
    gradients: Any
    kind: str
    """A key of `known.entries.KINDS`; '' if it does not differ."""

    case: str


@dataclass(frozen=True)
class Row:
    """One list of gradients, one rule, and the cases that apply it."""

    gradients: str
    rule: str
    cases: Sequence[Data]

    def functions(self, framework: str) -> list[Function]:
        """Return the framework's own functions that have a result."""
        found: dict[tuple[Any, ...], Function] = {}
        for case in self.cases:
            native = case["frameworks"].get(framework, {}).get(NATIVE)
            if native and native["function"]:
                results = native["verdict"], native["norm"], native["gradients"], native["kind"]
                function = Function(native["function"], *results, case["name"])
                found.setdefault(function[:-1], function)
        return list(found.values())

    @cached_property
    def results(self) -> dict[str, list[str]]:
        """The names of unified_clip by the digest of the exact result: several where the families' rules differ."""
        found: dict[str, list[str]] = {}
        for case in self.cases:
            stage = next((stage for stage in LAST_STAGES if stage in case["sha256"]), None)
            if stage:
                found.setdefault(case["sha256"][stage], []).append(case["call"])
        return found

    @property
    def is_exact(self) -> bool:
        """Whether every name of unified_clip gave the exact result on the host path of every framework."""
        hosts = [modes[HOST] for case in self.cases for modes in case["frameworks"].values() if HOST in modes]
        return bool(hosts) and all(each["verdict"] == "equal" for each in hosts)


def rows(data: Data, frameworks: Sequence[str]) -> list[Row]:
    """Return the rows in which the functions of at least two frameworks are compared."""
    groups: dict[tuple[str, str], list[Data]] = {}
    for case in data["cases"]:
        if case["rule"] is not None:
            groups.setdefault((case["gradients"], case["rule"]), []).append(case)
    found = [Row(gradients, rule, cases) for (gradients, rule), cases in groups.items()]
    return [row for row in found if sum(bool(row.functions(name)) for name in frameworks) > 1]
