"""Ignored findings and formats in `[check]`: rules without effect, and the advice about them."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding

from unified_clip.errors import ConfigError


def test_ignored_findings_are_listed_with_their_reason(check: Check) -> None:
    files = {"runs/a/ds.json": DEEPSPEED % "2.0", "ds.json": DEEPSPEED % "1.0"}
    report = check(files, CLIP_CONFIG + IGNORE.format("runs/**"))
    assert report.findings == []
    assert [(each.path, each.ignored) for each in report.ignored] == [("runs/a/ds.json", "a sweep")]
    assert (
        only_finding(check(files, CLIP_CONFIG + IGNORE.format("runs/*.json") + IGNORE.format("runs/**"))).kind
        == "unused"
    )


def test_a_rule_without_effect_is_a_finding(check: Check) -> None:
    files = {"ds.json": DEEPSPEED % "1.0", "other/a.py": TORCH % "1.0"}
    finding = only_finding(check(files, CLIP_CONFIG + IGNORE.format("gone/**")))
    assert (finding.kind, finding.path, finding.line) == ("unused", "clip.toml", 5)
    assert check(files, CLIP_CONFIG + IGNORE.format("gone/**"), "other").findings == [], (
        "gone/ was not part of the check"
    )
    finding = only_finding(check(files, CLIP_CONFIG + IGNORE.format("other/*"), "other"))
    assert finding.edit == "If no other file needs the entry: remove the entry, or correct its path.", "only some files"


def test_a_format_for_no_file_is_a_finding(check: Check) -> None:
    files = {"configs/ds.json": '{"zero_optimization": {"stage": 2}}', "other/a.py": TORCH % "1.0"}
    formats = '\n[check.formats]\n"configs/*.json" = "deepspeed@0.19.6"\n'
    finding = only_finding(check(files, f'{CLIP_CONFIG}{formats}"runs/*" = "hf"\n'))
    assert (finding.kind, finding.line, finding.clip) == ("unused", 7, 'check.formats."runs/*"')
    second = only_finding(check(files, f'{CLIP_CONFIG}{formats}"**/ds.json" = "hf"\n'))
    assert (second.kind, second.clip) == ("unused", 'check.formats."**/ds.json"')
    assert finding.does.startswith("No checked file matches 'runs/*', or")
    assert finding.edit.startswith("Remove the pattern")
    assert "or an earlier pattern of check.formats matches the same files" in second.does
    assert check(files, CLIP_CONFIG + formats, "other").findings == [], "configs/ was not part of the check"


def test_an_unknown_format_is_an_error_even_without_a_file(check: Check) -> None:
    with pytest.raises(ConfigError, match=r"clip.toml, line 6, check.formats.runs/\*: 'deepsped' is not a format"):
        check({"a.py": TORCH % "1.0"}, CLIP_CONFIG + '\n[check.formats]\n"runs/*" = "deepsped"\n')


@pytest.mark.parametrize("path", ["a/", "a"])
def test_a_rule_for_a_directory_advises_its_files(check: Check, path: str) -> None:
    report = check({"a/x.py": TORCH % "1.0"}, CLIP_CONFIG + IGNORE.format(path))
    assert only_finding(report).edit == 'Write "a/**" for all files below this directory, or remove the entry.'
    assert "correct its path" in only_finding(check({"a/x.py": TORCH % "1.0"}, CLIP_CONFIG + IGNORE.format("b/"))).edit
