"""Group the results by clip rule: how each framework's function clips the same gradients.

Here `clip_grad_norm_` and `clip_by_global_norm` share a row, for people who port code and ask how they compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...tensors.types import Stage
from ..results import CaseResult, NativeResult, ParityReport

LAST_STAGES: tuple[Stage, ...] = ("tensors", "norm")
"""The last stage of a clip, and of a call that only measures."""


class Function(NamedTuple):
    """The result of a framework's function in a row, and the first case that calls it."""

    result: NativeResult
    case: str


@dataclass(frozen=True)
class Row:
    """A row of the table: one list of gradients, one clip rule, and the cases that apply it."""

    gradients: str
    rule: str
    cases: Sequence[CaseResult]

    def functions(self, framework: str) -> list[Function]:
        """Return the distinct results of the framework's functions in this row."""
        functions: dict[tuple[object, ...], Function] = {}
        for case in self.cases:
            native = case.natives.get(framework)
            if native and native.function:
                key = native.function, native.verdict, native.norm, native.gradients, native.kind
                functions.setdefault(key, Function(native, case.name))
        return list(functions.values())

    @cached_property
    def results(self) -> dict[str, list[str]]:
        """The unified_clip functions of this row, grouped by the digest of their exact result."""
        names: dict[str, list[str]] = {}
        for case in self.cases:
            stage = next((stage for stage in LAST_STAGES if stage in case.sha256), None)
            if stage:
                names.setdefault(case.sha256[stage], []).append(case.call)
        return names

    @property
    def is_exact(self) -> bool:
        """Return whether every unified_clip function of this row is exact on the host path of every framework."""
        hosts = [result.host for case in self.cases for result in case.frameworks.values() if result.host]
        return bool(hosts) and all(each.verdict == "equal" for each in hosts)


def rows(report: ParityReport, frameworks: Sequence[str]) -> list[Row]:
    """Return the rows in which at least two frameworks have a function to compare."""
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for case in report.cases:
        if case.rule is not None:
            groups.setdefault((case.gradients, case.rule), []).append(case)
    all_rows = [Row(gradients, rule, cases) for (gradients, rule), cases in groups.items()]
    return [row for row in all_rows if sum(bool(row.functions(name)) for name in frameworks) > 1]
