"""Trainers whose own clip has to be off, since the training code clips: entries of `check.ignore` with rule none."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

from unified_clip import ClipConfig
from unified_clip.check.model import CheckReport
from unified_clip.config.formats import FORMATS, convert
from unified_clip.config.formats.python_source import PythonFormat

OWN = 'clip = ClipConfig.load(Path(__file__).parents[1] / "clip.toml")\n'
HEAD = "from pathlib import Path\n\nfrom unified_clip import ClipConfig\n"
HF = f"""{HEAD}from unified_clip.integrations.transformers_callback import ClipCallback
from transformers import HfArgumentParser, Trainer, TrainingArguments

{OWN}(args,) = HfArgumentParser(TrainingArguments).parse_json_file("training_args.json")
trainer = Trainer(model, args, callbacks=[ClipCallback(clip)])
"""
CLI = f"""{HEAD}from unified_clip.integrations.lightning_callback import ClipCallback
from lightning.pytorch.cli import LightningCLI

{OWN}cli = LightningCLI(Model, trainer_defaults={{"callbacks": [ClipCallback(clip)]}})
"""
ARGUMENTS = '{{"output_dir": "out", "per_device_train_batch_size": 16{}}}\n'
LIGHTNING = "trainer:\n  max_epochs: 90\n  accumulate_grad_batches: 2\n{}"
NULL = "  gradient_clip_val: null\n"
FILES = ("nlp/args.json:1", "vision/config.yaml:4")
TEAMS = {
    "nlp/train.py": HF,
    "nlp/args.json": ARGUMENTS.format(', "max_grad_norm": 0'),
    "vision/train.py": CLI,
    "vision/config.yaml": LIGHTNING.format(NULL),
}


def off_rule(*globs: str, rules: str = "") -> str:
    entry = '[[check.ignore]]\npath = "{}"\nrule = "none"\nreason = "the code clips"\n'
    return f"{CLIP_CONFIG}\n[check]\n{rules}" + "".join(map(entry.format, globs))


def results(report: CheckReport) -> dict[str, set[str]]:
    return {path: {clip.result for clip in report.clips if clip.path == path} for path in TEAMS}


@pytest.mark.parametrize("globs", [("nlp/**", "vision/**"), ("nlp/args.json", "vision/config.yaml")])
def test_trainers_whose_clip_is_off_pass(check: Check, globs: tuple[str, ...]) -> None:
    report = check(TEAMS, off_rule(*globs))
    assert report.findings == []
    assert results(report) == {
        "nlp/train.py": {"same"},
        "nlp/args.json": {"ignored"},
        "vision/train.py": {"same"},
        "vision/config.yaml": {"ignored"},
    }
    assert [(note.split()[0], files in note) for note, files in zip(report.notes, FILES, strict=True)] == [
        ("nlp/train.py:8", True),
        ("vision/train.py:8", True),
    ]


def test_a_trainer_whose_clip_is_off_is_a_finding_without_an_entry(check: Check) -> None:
    assert {each.path for each in check(TEAMS).findings} == {"nlp/args.json", "vision/config.yaml"}


@pytest.mark.parametrize(("path", "text", "line"), [
    ("nlp/args.json", ARGUMENTS.format(', "max_grad_norm": 0.3'), 1),
    ("vision/config.yaml", LIGHTNING.format("  gradient_clip_val: 2.0\n"), 4),
    ("nlp/train.py", HF + "TrainingArguments('out', max_grad_norm=2.0)\n", 10),
])  # fmt: skip
def test_a_clip_that_is_on_is_a_drift(check: Check, path: str, text: str, line: int) -> None:
    findings = check({**TEAMS, path: text}, off_rule("nlp/**", "vision/**")).findings
    finding = next(each for each in findings if (each.path, each.line) == (path, line))
    assert finding.kind == "drift"
    assert "of check.ignore approves only rule = 'none'" in finding.edit


@pytest.mark.parametrize(("path", "text", "kind"), [
    ("vision/config.yaml", LIGHTNING.format("  gradient_clip_vall: 0.3\n"), "unknown"),
    ("vision/config.yaml", "model: resnet\n", "unused"),
    ("nlp/args.json", ARGUMENTS.format(', "max_grad_nrom": 0'), "unknown"),
    ("nlp/args.json", ARGUMENTS.format(""), "unused"),
])  # fmt: skip
def test_a_file_whose_clip_is_not_off_for_sure_is_a_finding(check: Check, path: str, text: str, kind: str) -> None:
    findings = check({**TEAMS, path: text}, off_rule("nlp/args.json", "vision/config.yaml")).findings
    places = {"unknown": path, "unused": "clip.toml"}
    assert (kind, places[kind]) in [(each.kind, each.path) for each in findings]


def test_a_command_line_parser_is_unknown_without_a_file_that_is_off(check: Check) -> None:
    files = {path: text for path, text in TEAMS.items() if path != "nlp/args.json"}
    (finding,) = (each for each in check(files, off_rule("nlp/**", "vision/**")).findings if each.kind == "unknown")
    assert (finding.path, finding.line) == ("nlp/train.py", 8)


def test_a_trainer_that_is_off_is_no_clip_for_a_requirement(check: Check) -> None:
    files = {**TEAMS, "nlp/train.py": "from transformers import Trainer\n"}
    finding = only_finding(
        check(files, off_rule("nlp/args.json", "vision/**", rules='require = ["nlp/**", "vision/**"]\n'))
    )
    assert (finding.kind, finding.clip) == ("missing", 'check.require "nlp/**"')
    for path in TEAMS:
        Path(path).unlink()
    finding = only_finding(check({"args.json": TEAMS["nlp/args.json"]}, off_rule("args.json")))
    assert (finding.kind, finding.clip) == ("missing", "PATH .")


WRITABLE = [name for name, each in FORMATS.items() if not isinstance(each, PythonFormat)]


@pytest.mark.parametrize("name", WRITABLE)
def test_the_edit_of_each_format_passes(check: Check, name: str) -> None:
    trainer = FORMATS[name]
    suffix = {"args": "sh", "python": "py"}.get(trainer.kinds[0], trainer.kinds[0])
    text = convert.write(ClipConfig(rule="none"), name)[0]
    own = {"train.py": HEAD + 'clip = ClipConfig.load("clip.toml")\ngrads = clip(gradients)\n'}
    rules = f'[check.formats]\n"a.{suffix}" = "{name}@{trainer.newest}"\n'
    report = check({f"a.{suffix}": text, **own}, off_rule(f"a.{suffix}", rules=rules))
    assert [(each.kind, each.does) for each in report.findings] == []
    assert "ignored" in {each.result for each in report.clips}


def test_an_entry_without_a_threshold_approves_no_clip_if_the_configuration_has_none(check: Check) -> None:
    entry = '[[check.ignore]]\npath = "**"\nrule = "global_norm"\nreason = "by the code"\n'
    report = check({"train.py": "import torch\ntorch.nn.utils.clip_grad_norm_(p, 1.0)\n"}, f'rule = "none"\n{entry}')
    assert [(each.kind, each.line) for each in report.findings] == [("drift", 2)]
