"""Group the results by clip rule, for a table that compares functions of different frameworks.

For example, `torch.nn.utils.clip_grad_norm_` and `tf.clip_by_global_norm` are in the same row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ...tensors.types import Stage
from ..results import CaseResult, NativeResult, ParityReport

LAST_STAGES: tuple[Stage, ...] = ("tensors", "norm")
"""The last stage of a call is its result: the clipped tensors, or the norm if the call only measures the norm."""


class FunctionResult(NamedTuple):
    result: NativeResult
    case: str


@dataclass(frozen=True)
class RuleRow:
    gradients: str
    rule: str
    cases: Sequence[CaseResult]

    def functions(self, framework: str) -> list[FunctionResult]:
        functions: dict[tuple[object, ...], FunctionResult] = {}
        for case in self.cases:
            native = case.natives.get(framework)
            if native and native.function:
                key = native.function, native.verdict, native.norm, native.gradients, native.kind
                functions.setdefault(key, FunctionResult(native, case.name))
        return list(functions.values())

    @cached_property
    def results(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for case in self.cases:
            stage = next((stage for stage in LAST_STAGES if stage in case.sha256), None)
            if stage:
                names.setdefault(case.sha256[stage], []).append(case.call)
        return names

    @property
    def is_exact(self) -> bool:
        hosts = [result.host for case in self.cases for result in case.frameworks.values() if result.host]
        return bool(hosts) and all(each.verdict == "equal" for each in hosts)


def rule_rows(report: ParityReport, frameworks: Sequence[str]) -> list[RuleRow]:
    groups: dict[tuple[str, str], list[CaseResult]] = {}
    for case in report.cases:
        if case.rule is not None:
            groups.setdefault((case.gradients, case.rule), []).append(case)
    all_rows = [RuleRow(gradients, rule, cases) for (gradients, rule), cases in groups.items()]
    return [row for row in all_rows if sum(bool(row.functions(name)) for name in frameworks) > 1]
