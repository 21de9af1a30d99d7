"""The baseline of `unified-clip parity`: a parity.json that is read, or rejected with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.parity.baselines import torch_report, write_baseline
from support.parity.reports import clip_result, known, native, one_case, report

from unified_clip._kit.atomic_files import FileError
from unified_clip.parity.report import baseline, build, change_rows
from unified_clip.parity.results import FrameworkResult, UnifiedClipResult
from unified_clip.parity.suite.schema import SuiteError


def report_data(**changes: Any) -> dict[str, Any]:
    return {**torch_report(host=clip_result(), native=native()).as_json(), **changes}


def report_data_without(key: str) -> dict[str, Any]:
    return {name: value for name, value in report_data().items() if name != key}


def report_data_with_result(mode: str, **changes: Any) -> dict[str, Any]:
    data = report_data()
    data["cases"][0]["frameworks"]["torch"][mode] |= changes
    return data


def test_a_baseline_is_read_unchanged(tmp_path: Path) -> None:
    assert baseline.read(write_baseline(tmp_path, report_data()), ["one", "two"], ["torch"]).as_json() == report_data()


def test_keys_of_later_versions_are_ignored(tmp_path: Path) -> None:
    assert baseline.read(write_baseline(tmp_path, report_data(later=1)), ["one"], ["torch"]).as_json() == report_data()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a valid parity.json: Expecting property name"),
        ("[" * 100_000, "is not a valid parity.json: maximum recursion depth"),
        ("[]", "is not a valid parity.json. At the top level: Input should be"),
        ("3", "is not a valid parity.json. At the top level: Input should be"),
        (
            {},
            "is not a valid parity.json: the key `schema` is missing. To write DIRECTORY/parity.json as a new "
            "baseline, pass --out DIRECTORY in place of --baseline",
        ),
        (report_data_without("schema"), "the key `schema` is missing"),
        (report_data(schema=1), "has schema 1. This version of unified_clip reads only the schemas 2 and 3"),
        (report_data_without("cases"), "is not a valid parity.json. At cases: Field required"),
        (report_data(cases=[{}]), "is not a valid parity.json. At cases.0.name: Field required"),
        (report_data(versions=[]), "is not a valid parity.json. At versions: Input should be"),
        (report_data(frameworks=3), "is not a valid parity.json. At frameworks: Input should be"),
        (
            report_data(known=[{**known().as_json(), "size": "large"}]),
            "is not a valid parity.json. At known.0.size: Input should be",
        ),
        (
            report_data_with_result("host", ulps="far"),
            "is not a valid parity.json. At cases.0.frameworks.torch.host.ulps: Input should be",
        ),
        (report_data_with_result("native", norm="far"), "valid parity.json. At cases.0.frameworks.torch.native.norm"),
    ],
)
def test_an_invalid_baseline_is_rejected_with_the_reason(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        baseline.read(write_baseline(tmp_path, content), ["one"], ["torch"])


def test_a_baseline_of_other_cases_or_frameworks_is_rejected(tmp_path: Path) -> None:
    path = write_baseline(tmp_path, report_data())
    with pytest.raises(SuiteError, match="has none of the cases of this run"):
        baseline.read(path, ["another"], ["torch"])
    with pytest.raises(SuiteError, match="has no results of jax, paddle"):
        baseline.read(path, ["one"], ["jax", "paddle"])
    with pytest.raises(FileError, match="cannot be read: No such file"):
        baseline.read(tmp_path / "absent", ["one"], ["torch"])


def test_a_stale_entry_of_a_removed_case_fails_the_run_and_the_removed_case_does_not() -> None:
    cases = [one_case(name, torch=FrameworkResult(native=native())) for name in ("one", "two")]
    old, new = report(*cases, known=[known()]), report(cases[0], known=[known()])
    kept = build.with_changes(new, baseline.changes(old, new))
    assert (kept.exit_code, change_rows.headline(kept.baseline or [])) == (
        0,
        "Against the baseline: 1 change (0 fail the run).",
    )
    new = report(cases[0], known=[known("no case shows this difference", None)])
    stale = build.with_changes(new, baseline.changes(old, new))
    assert (stale.exit_code, change_rows.headline(stale.baseline or [])) == (
        1,
        "Against the baseline: 2 changes (1 fails the run).",
    )


def test_a_report_that_an_earlier_version_wrote_is_read(tmp_path: Path) -> None:
    """A key that was added since needs a default: stored reports do not have it."""
    stored = Path(__file__).parents[2] / "data" / "parity" / "report_schema_2.json"
    assert json.loads(stored.read_text())["schema"] in baseline.READABLE
    old = baseline.read(stored, ["worked example: global_norm()"], ["numpy"])
    assert baseline.changes(old, old.model_copy(deep=True)) == []
    (case,) = old.cases
    host = case.frameworks["numpy"].host
    assert isinstance(host, UnifiedClipResult)
    assert host.verdict == "equal"
