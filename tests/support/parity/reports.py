"""Results and reports of the parity engine, built without a run."""

from __future__ import annotations

import math
from typing import Any

from unified_clip.parity.judge.verdict import NativeVerdict, VerdictKind
from unified_clip.parity.report import build
from unified_clip.parity.results import (
    CaseResult,
    FrameworkResult,
    KnownDifferenceResult,
    NativeResult,
    ParityReport,
    UnifiedClipResult,
    differing_stages,
)

EXACT = "a"


def clip_result(
    verdict: VerdictKind = "equal",
    ulps: float = 0.0,
    sha256: str | None = EXACT,
    detail: str = "",
    seconds: float = 0.0,
) -> UnifiedClipResult:
    return UnifiedClipResult(
        verdict=verdict,
        detail=detail,
        details=None,
        reproduce=None,
        seconds=seconds,
        ulps=ulps,
        cause="",
        stages={},
        sha256=None if sha256 is None else {"norm": sha256},
    )


def native(
    verdict: VerdictKind | NativeVerdict = "known",
    norm: float | None = 0.01,
    kind: Any = "value",
    problem: str = "",
    function: str | None = "clip",
    detail: str = "",
    **fields: Any,
) -> NativeResult:
    numbers = {
        "finite_size": norm if norm is not None and math.isfinite(norm) else 0.0,
        "not_finite": "norm" if norm == math.inf else "",
    }
    return NativeResult(
        verdict=verdict,
        detail=detail,
        details=None,
        reproduce=None,
        function=function,
        kind=kind,
        norm=norm,
        gradients=fields.pop("gradients", None),
        cause=fields.pop("cause", ""),
        problem=problem,
        **numbers | fields,
    )


def known(problem: str = "", size: float | None = 0.01, **fields: Any) -> KnownDifferenceResult:
    entry = {"framework": "torch", "function": "clip", "kind": "value", "listed_size": size, "size": size}
    entry |= {"reason": "so", "problem": problem, "cases": ["one"]}
    return KnownDifferenceResult(**entry | fields)


def one_case(name: str = "one", /, **frameworks: FrameworkResult) -> CaseResult:
    """Return a case. Its norm is exact if its digest is EXACT."""
    return CaseResult(
        name=name,
        call="global_norm",
        gradients="worked example",
        elements=4,
        sha256={"norm": EXACT},
        differing_stages=differing_stages(frameworks),
        frameworks=frameworks,
    )


def report(*cases: CaseResult, **fields: Any) -> ParityReport:
    return build.build_report(["numpy", "torch"], cases, **fields)
