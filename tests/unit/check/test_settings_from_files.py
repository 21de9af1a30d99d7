"""Scripts that leave their clip to a file, such as those with LightningCLI, and ignored clips of `check.require`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding

from unified_clip.check import check_files, files_to_check
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
        ("LightningCLI(Model, args=['--trainer.gradient_clip_val=5'])", "trainer.gradient_clip_val = 5.0"),
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


def test_an_ignored_script_has_an_entry_without_effect(check: Check) -> None:
    report = check({"vision/main.py": CLI, FILE: RIGHT}, CLIP_CONFIG + IGNORE.format("vision/main.py"))
    assert only_finding(report).kind == "unused"


OWN_KEY = "pl_trainer:\n  gradient_clip_val: 1.0\n"


@pytest.mark.parametrize(
    ("name", "text", "entry", "counts"),
    [
        ("main.py", CLI, IGNORE.format("vision/*"), False),
        ("a.py", TORCH % "args.clip", IGNORE.format("vision/*"), False),
        ("a.yaml", OWN_KEY, IGNORE.format("vision/*"), False),
        ("ds.json", DEEPSPEED % "0.0", IGNORE.format("vision/*"), False),
        ("ds.json", DEEPSPEED % "0.0", IGNORE.format("vision/*") + 'rule = "none"\n', False),
        ("ds.json", DEEPSPEED % "2.0", IGNORE.format("vision/*"), True),
        ("a.py", TORCH % "2.0", IGNORE.format("vision/*"), True),
    ],
)
def test_an_ignored_clip_counts_for_a_pattern_only_if_it_clips_for_sure(
    check: Check, name: str, text: str, entry: str, counts: bool
) -> None:
    files = {f"vision/{name}": text, "b.py": TORCH % "1.0"}
    assert [each.clip for each in check(files, CLIP_CONFIG + entry).findings] == []
    report = check(files, CLIP_CONFIG + REQUIRE + entry)
    assert len(report.ignored) == 1
    if counts:
        assert report.findings == []
    else:
        finding = only_finding(report)
        assert (finding.kind, finding.clip) == ("missing", 'check.require "vision/**"')
        assert "These ignored clips do not satisfy the pattern" in finding.does
        assert f" vision/{name}:" in finding.does


def test_another_clip_in_the_file_of_an_ignored_one_counts(check: Check) -> None:
    entry = IGNORE.format("vision/*").replace("reason", 'clip = "clip_grad_value_"\nreason')
    text = TORCH % "1.0" + "torch.nn.utils.clip_grad_value_(model.parameters(), args.value)\n"
    assert check({"vision/a.py": text}, CLIP_CONFIG + REQUIRE + entry).findings == []
    clip = Path("clip.toml")
    report = check_files.check(clip, [Path("vision")], files_to_check.files([Path("vision")], clip))
    assert (report.findings, len(report.ignored)) == ([], 1)


def test_every_function_that_reads_its_clip_from_a_file_has_a_format() -> None:
    readers = [name for setting in settings() for name in setting.elsewhere]
    assert len(readers) > 3
    assert {name.partition(".")[0] for name in readers} <= ARGUMENT_FORMATS.keys()


PARSER = """from transformers import HfArgumentParser, Trainer, TrainingArguments

parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
Trainer(model=model, args=training_args).train()
"""


@pytest.mark.parametrize(("approved", "kinds"), [("", []), ("threshold = 1.0\n", ["unknown"])])
def test_only_an_entry_without_an_effect_accepts_a_parser(check: Check, approved: str, kinds: list[str]) -> None:
    report = check({"train.py": PARSER}, CLIP_CONFIG + IGNORE.format("train.py") + approved)
    assert [each.kind for each in report.findings] == kinds
