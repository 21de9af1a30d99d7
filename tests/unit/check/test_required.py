"""Paths of `unified-clip config check` and patterns of `check.require` without a clip."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, TORCH, Check, only_finding

from unified_clip import cli
from unified_clip.check.model import CheckReport

REQUIRE = '\n[check]\nrequire = [\n  "nlp/**",\n  "{}",\n]\n'
FILES = {"nlp/ds.json": DEEPSPEED % "1.0", "recsys/train.py": TORCH % "1.0"}
WITHOUT_CLIP = "norm = total(grads)\nprint(norm)\n"


def texts(report: CheckReport) -> list[str]:
    return [f"{each.place} {each.clip} {each.does} {each.edit}" for each in report.findings if each.kind == "missing"]


def test_a_path_without_a_clip_is_an_error_even_if_others_have_clips(check: Check) -> None:
    assert check(FILES, CLIP_CONFIG, "nlp", "recsys").findings == []
    report = check({**FILES, "recsys/train.py": WITHOUT_CLIP}, CLIP_CONFIG, "nlp", "recsys")
    assert texts(report) == [
        "clip.toml:1:1 PATH recsys No file has a clip (checked files: 1). Restore the clip, or pass other paths."
    ]
    report = check({"nlp/a.py": WITHOUT_CLIP}, CLIP_CONFIG, "nlp/ds.json", "nlp/a.py", "recsys")
    assert [(each.kind, each.path) for each in report.findings] == [("missing", "clip.toml"), ("missing", "nlp/a.py")]
    assert check({}, CLIP_CONFIG, ".").counts.clips == 1, "one path covers both"


def test_a_link_to_a_clip_counts_for_its_path(check: Check, tmp_path: Path) -> None:
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "ds.json").symlink_to(tmp_path / "nlp" / "ds.json")
    assert check(FILES, CLIP_CONFIG, "nlp", "vision").counts.clips == 1


def test_a_file_that_inherits_its_clip_has_no_clip_of_its_own(check: Check) -> None:
    base = "SOLVER:\n  CLIP_GRADIENTS: {ENABLED: true, CLIP_TYPE: full_model, CLIP_VALUE: 1.0}\n"
    files = {"base.yaml": base, "a.yaml": "_BASE_: base.yaml\nSOLVER: {IMS_PER_BATCH: 2}\n"}
    assert check(files, CLIP_CONFIG, ".").findings == []
    finding = only_finding(check({}, CLIP_CONFIG, "a.yaml"))
    assert (finding.kind, "Also pass that file" in finding.does) == ("missing", True)


def test_a_required_pattern_without_a_clip_is_an_error_with_its_line(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("recsys/**")
    assert check(FILES, clip).findings == []
    place = 'clip.toml:8:1 check.require "recsys/**"'
    without = (
        f"{place} No file that matches 'recsys/**' has a clip (matching files: 1). Restore the clip, or remove the "
        "pattern from check.require."
    )
    assert texts(check({"recsys/train.py": WITHOUT_CLIP}, clip)) == [without]
    Path("recsys/train.py").unlink()
    gone = f"{place} No checked file matches 'recsys/**'. Remove the pattern, or correct it."
    assert texts(check({}, clip)) == [gone]


@pytest.mark.parametrize("glob", ["recsys", "recsys/"])
def test_a_required_directory_advises_its_files(check: Check, glob: str) -> None:
    assert only_finding(check(FILES, CLIP_CONFIG + REQUIRE.format(glob))).edit.startswith(
        'Write "recsys/**" for all files below'
    )


def test_a_pattern_for_files_outside_the_paths_is_a_note(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("recsys/*.py")
    note, _ = check(FILES, clip, "nlp").notes
    assert note == "check.require: 'recsys/*.py' is skipped, because no path that you passed contains it."
    report = check(
        {"recsys/ds.json": DEEPSPEED % "1.0"}, CLIP_CONFIG + REQUIRE.format("recsys/gone.py"), "nlp", "recsys"
    )
    assert only_finding(report).does == "No checked file matches 'recsys/gone.py'."


@pytest.mark.parametrize(
    ("format_", "start"), [("sarif", '"ruleId": "clip-missing"'), ("github", "::error file=clip.toml,line=1,")]
)
def test_a_missing_clip_is_in_every_report(
    check: Check, capsys: pytest.CaptureFixture[str], format_: str, start: str
) -> None:
    check({"a.py": WITHOUT_CLIP}, CLIP_CONFIG)
    assert cli.main(["config", "check", "clip.toml", ".", "--format", format_]) == 1
    assert start in capsys.readouterr().out


def test_a_path_for_other_tools_needs_no_clip_beside_a_path_with_one(check: Check) -> None:
    files = {
        ".github/workflows/ci.yml": "jobs: {test: {steps: [run: pytest]}}\n",
        "a.py": TORCH % "1.0",
        "b.py": "x = 1\n",
    }
    report = check(files, CLIP_CONFIG, "a.py", ".github")
    assert report.findings == []
    assert ".github has no clip. No clip is needed, since no trainer reads this path." in report.notes
    assert [each.clip for each in check(files, CLIP_CONFIG, "b.py", ".github").findings] == [
        "PATH b.py",
        "PATH .github",
    ]
    workflow = {".github/workflows/ci.yml": "jobs: {test: {steps: [run: python t.py --clip-grad-norm 5]}}\n"}
    notes = check(files | workflow, CLIP_CONFIG, "a.py", ".github").notes
    assert notes[-1].startswith("In 1 file with a clip's name,")
    assert notes[-1].endswith(": .github/workflows/ci.yml.")


def test_the_headline_counts_findings_without_a_clip_apart_from_clips(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("gone.py") + 'nearest = ["nothing.py"]\n'
    files = {"a.py": TORCH % "1.0", "b.py": TORCH % "args.limit", "c.py": TORCH % "2.0"}
    unused = "1 entry without effect."
    headline = f"3 clips: 1 as in clip.toml, 1 not as in clip.toml, 1 unknown. Also: 2 missing, {unused}"
    assert check(files, clip).headline == headline
    assert check(dict.fromkeys(files, "x = 1\n"), clip).headline == f"0 clips: 3 missing, {unused}"
