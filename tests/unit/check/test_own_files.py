"""Files of unified_clip itself: reports in the checked directory, swapped arguments, and the paths in patterns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding

from unified_clip import cli

FILES = {"ds.json": DEEPSPEED % "1.0", "a.py": TORCH % "{}"}


@pytest.mark.parametrize("format_", ["json", "sarif", "gitlab"])
@pytest.mark.parametrize(("threshold", "status"), [(1.0, 0), (2.0, 1)])
def test_the_check_does_not_read_its_own_reports(
    check: Check, capsys: pytest.CaptureFixture[str], format_: str, threshold: float, status: int
) -> None:
    files = FILES | {"a.py": TORCH % threshold}
    check(files)
    command = ["config", "check", "clip.toml", ".", "--format", format_, "--out", "report.json"]
    assert [cli.main(command) for _ in range(2)] == [status, status], "the second run overwrites the report"
    report = check(files)
    assert {each.path for each in report.findings} == ({"a.py"} if status else set())
    assert "The check does not read its own reports: report.json." in report.notes
    assert report.counts.files == len(FILES)


SARIF = {"$schema": "s", "version": "2.1.0", "runs": [{"tool": {"driver": {"name": "unified-clip", "rules": []}}}]}


@pytest.mark.parametrize(
    "data",
    [
        {"headline": "unified-clip", "max_grad_norm": 5.0},
        {**SARIF, "max_grad_norm": 5.0},
        {**SARIF, "runs": [{"tool": {"driver": {"name": "ruff"}}}], "note": "unified-clip", "max_grad_norm": 5.0},
    ],
)
def test_a_file_that_only_resembles_a_report_is_read(check: Check, data: object) -> None:
    finding = only_finding(check(FILES | {"a.py": TORCH % 1.0, "report.json": json.dumps(data)}))
    assert (finding.kind, finding.path) == ("unknown", "report.json")


def test_a_mistake_in_the_clip_configuration_is_an_error(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    check({**FILES, "bad.toml": CLIP_CONFIG.replace("threshold", "treshold")})
    assert cli.main(["config", "check", "bad.toml", "clip.toml"]) == 2
    assert "treshold: there is no such key" in capsys.readouterr().err


@pytest.mark.parametrize("glob", ["./nlp/*.json", "././nlp/**", ".//nlp/ds.json"])
def test_a_pattern_may_begin_with_the_current_directory(check: Check, glob: str) -> None:
    files = {"nlp/ds.json": DEEPSPEED % "1.0"}
    rules = CLIP_CONFIG.replace("pytorch", "paddle") + f'\n[check]\nrequire = ["{glob}"]\nnearest = ["{glob}"]\n'
    assert check(files, f'{rules}\n[check.formats]\n"{glob}" = "deepspeed"\n').findings == []
    report = check({"nlp/ds.json": DEEPSPEED % "2.0"}, rules + IGNORE.format(glob))
    assert (report.findings, len(report.ignored)) == ([], 1)


@pytest.mark.parametrize("name", ["require", "each"])
def test_a_pattern_with_a_wrong_separator_or_an_absolute_path_has_an_edit_that_works(check: Check, name: str) -> None:
    files = {"nlp/ds.json": DEEPSPEED % "1.0"}
    for glob in (r"nlp\\ds.json", f"{Path().resolve().as_posix()}/nlp/*.json"):
        clip = f'{CLIP_CONFIG}\n[check]\n{name} = ["{{}}"]\n'
        edit = only_finding(check(files, clip.format(glob))).edit
        corrected = edit.split('"')[1]
        assert check(files, clip.format(corrected)).findings == []
