"""Reports of one case on PyTorch, and their changes since a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from support.parity.reports import clip_result, one_case, report

from unified_clip.parity.report import baseline, junit
from unified_clip.parity.results import (
    Change,
    FrameworkResult,
    KnownDifferenceResult,
    NativeResult,
    ParityReport,
    UnifiedClipResult,
)


def torch_report(**torch_results: UnifiedClipResult | NativeResult) -> ParityReport:
    torch = FrameworkResult.model_validate(torch_results or {"host": clip_result()})
    versions = {"numpy": "2.4", "torch": "2.13"}
    return report(one_case(numpy=FrameworkResult(host=clip_result()), torch=torch), versions=versions)


def torch_changes(
    old: UnifiedClipResult | NativeResult, new: UnifiedClipResult | NativeResult, mode: str = "host"
) -> list[Change]:
    return baseline.changes(torch_report(**{mode: old}), torch_report(**{mode: new}))


def failure_messages(judged: ParityReport) -> list[str]:
    return [mark.attrib["message"] for mark in ElementTree.fromstring(junit.as_xml(judged)).iter("failure")]


def report_with_known(*entries: KnownDifferenceResult) -> ParityReport:
    report_ = torch_report()
    report_.known = list(entries)
    return report_


def write_baseline(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "old.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path
