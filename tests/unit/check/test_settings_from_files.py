"""Scripts that leave their clip to a file, such as those with LightningCLI, and ignored clips of `check.require`."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, IGNORE, TORCH, Check, only_finding

from unified_clip.check.clip_use import ARGUMENT_FORMATS
from unified_clip.check.model import CheckReport
from unified_clip.port.catalog import settings

CLI = "from lightning.pytorch.cli import LightningCLI\n\nLightningCLI(Model)\n"
YAML = "trainer:\n  max_epochs: 9\n  gradient_clip_val: {}\n"
RIGHT = YAML.format(1.0)
OWN = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\ngradients = clip(gradients)\n"
FILE = "vision/configs/a.yaml"
REQUIRE = '\n[check]\nrequire = ["vision/**"]\n'


def result(report: CheckReport, path: str = "vision/main.py") -> str:
    return next(clip.result for clip in report.clips if clip.path == path)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("LightningCLI(Model, trainer_defaults={'gradient_clip_val': 5.0})", "{'gradient_clip_val':}"),
        ("LightningCLI(Model)\ntrainer.gradient_clip_val = 5.0", "trainer.gradient_clip_val"),
        ("LightningCLI(Model)\n" + OWN, "lightning.pytorch.cli.LightningCLI(gradient_clip_val=)"),
    ],
)
def test_another_clip_in_the_script_still_has_a_finding(check: Check, code: str, expected: str) -> None:
    script = CLI.replace("LightningCLI(Model)", code)
    assert only_finding(check({"vision/main.py": script, FILE: RIGHT})).clip == expected


def test_a_near_file_is_accepted_with_nearest(check: Check) -> None:
    files, paddle = {"vision/main.py": CLI, FILE: RIGHT}, CLIP_CONFIG.replace("pytorch", "paddle")
    assert {each.path for each in check(files, paddle).findings} == {FILE}
    report = check(files, paddle + '\n[check]\nnearest = ["vision/**"]\n')
    assert (report.findings, result(report, FILE)) == ([], "near")
    assert any("vision/main.py:3" in note for note in report.notes)


@pytest.mark.parametrize("value", [2.0, "null"])
def test_the_finding_of_a_script_is_about_its_file(check: Check, value: object) -> None:
    finding = only_finding(check({"vision/main.py": CLI, FILE: YAML.format(value)}))
    keys = finding.edit.partition("\nOr to clip by")[0]
    assert (finding.path, finding.kind) == (FILE, "drift")
    assert check({"vision/main.py": CLI, FILE: f"{keys}\n"}).findings == []


def test_a_pattern_names_the_ignored_clips_that_do_not_satisfy_it(check: Check) -> None:
    files = {"vision/a.py": TORCH % "args.clip", "b.py": TORCH % "1.0"}
    finding = only_finding(check(files, CLIP_CONFIG + REQUIRE + IGNORE.format("vision/*")))
    assert (finding.kind, finding.clip) == ("missing", 'check.require "vision/**"')
    assert "do not satisfy the pattern" in finding.does
    assert " vision/a.py:" in finding.does


def test_every_function_that_reads_its_clip_from_a_file_has_a_format() -> None:
    readers = [name for setting in settings() for name in setting.elsewhere]
    assert len(readers) > 3
    assert {name.partition(".")[0] for name in readers} <= ARGUMENT_FORMATS.keys()
