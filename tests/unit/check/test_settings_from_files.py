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
ENGINE = "import deepspeed\n\ndeepspeed.initialize(args=args, model=model)\n"
SCALER = "from timm.utils import NativeScaler\n\nscaler = NativeScaler()\n"
TIMM = "model: vit\nopt: sgd\nsched: cosine\nclip_grad: %s\nclip_mode: norm\n"
REQUIRE = '\n[check]\nrequire = ["vision/**"]\n'


def result(report: CheckReport, path: str = "vision/main.py") -> str:
    return next(clip.result for clip in report.clips if clip.path == path)


@pytest.mark.parametrize("script", [CLI, CLI.replace("lightning.", "pytorch_lightning.", 1).replace(".pytorch.", ".")])
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({FILE: RIGHT}, "same"),
        ({"vision/a.yaml": RIGHT}, "same"),
        ({"vision/a.yaml": RIGHT, FILE: YAML.format(2.0)}, "same"),  # the other file has a finding
        ({FILE: YAML.format(2.0)}, "unknown"),
        ({FILE: YAML.format("null")}, "unknown"),
        ({FILE: YAML.format("${oc.env:CLIP}")}, "unknown"),
        ({FILE: YAML.format(1.0).replace("clip_val", "clip_vla")}, "unknown"),
        ({FILE: RIGHT + "  gradient_clip_algorithm: value\n"}, "unknown"),
        ({"nlp/a.yaml": RIGHT}, "unknown"),
        ({"vision/ds.json": DEEPSPEED % 1.0}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_a_script_has_the_clip_of_the_file_that_it_reads(
    check: Check, script: str, files: dict[str, str], expected: str
) -> None:
    report = check({"vision/main.py": script, **files})
    assert result(report) == expected
    wrong = [clip.path for clip in report.clips if clip.result not in ("same", "near")]
    assert {each.path for each in report.findings} == {*wrong}
    assert any("LightningCLI reads gradient_clip_val from a file." in note for note in report.notes) == (
        expected == "same"
    )


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


def test_a_trainer_whose_file_sets_the_clip_is_compared_in_the_file(check: Check) -> None:
    hydra = "import hydra\nimport lightning\n\nhydra.utils.instantiate(cfg.trainer)\n"
    parser = "from transformers import HfArgumentParser, TrainingArguments\n\nHfArgumentParser(TrainingArguments)\n"
    for script in (hydra, parser):
        files = {FILE: RIGHT, "vision/args.json": '{"output_dir": "a", "eval_strategy": "no", "max_grad_norm": 1.0}'}
        report = check({"vision/main.py": script, **files})
        assert (report.findings, "vision/main.py" in " ".join(report.notes)) == ([], True)


def test_a_near_file_is_accepted_with_nearest(check: Check) -> None:
    files, paddle = {"vision/main.py": CLI, FILE: RIGHT}, CLIP_CONFIG.replace("pytorch", "paddle")
    assert {each.path for each in check(files, paddle).findings} == {"vision/main.py", FILE}
    report = check(files, paddle + '\n[check]\nnearest = ["vision/**"]\n')
    assert (report.findings, result(report)) == ([], "near")


@pytest.mark.parametrize("files", [{}, {FILE: YAML.format(2.0)}, {FILE: YAML.format("null")}])
def test_the_edit_of_a_script_is_for_its_file(check: Check, files: dict[str, str]) -> None:
    finding = next(each for each in check({"vision/main.py": CLI, **files}).findings if each.path == "vision/main.py")
    where, edit = finding.edit.split("set:\n")
    keys = edit.partition("\nOr to clip by")[0]
    assert where == (f"In {FILE}, " if files else where)
    assert keys == "trainer:\n  gradient_clip_val: 1.0\n  gradient_clip_algorithm: norm"
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


@pytest.mark.parametrize(
    ("script", "file", "right", "wrong"),
    [
        (ENGINE, "ds.json", DEEPSPEED % 1.0, DEEPSPEED % 2.0),
        (SCALER, "args.yaml", TIMM % 1.0, TIMM % 2.0),
    ],
    ids=["DeepSpeed", "timm"],
)
def test_scripts_of_other_trainers_have_the_clip_of_their_file(
    check: Check, script: str, file: str, right: str, wrong: str
) -> None:
    files = {"vision/main.py": script}
    finding = only_finding(check(files))
    assert finding.kind == "unknown"
    assert "No checked file near this script is a configuration of" in finding.does
    assert result(check({**files, f"vision/{file}": right})) == "same"
    assert result(check({**files, f"vision/{file}": wrong})) == "unknown"


def test_every_function_that_reads_its_clip_from_a_file_has_a_format() -> None:
    readers = [name for setting in settings() for name in setting.elsewhere]
    assert len(readers) > 3
    assert {name.partition(".")[0] for name in readers} <= ARGUMENT_FORMATS.keys()


def test_the_function_that_reads_a_file_is_named_in_full(check: Check) -> None:
    script = "from deepspeed import initialize\n\nengine = initialize(model=model, config=args.ds)\n"
    assert only_finding(check({"a.py": script})).does.startswith("deepspeed.initialize reads gradient_clipping from")


PARSED = """import sys

from transformers import HfArgumentParser, Trainer, TrainingArguments


def main(model, data):
    parser = HfArgumentParser(TrainingArguments)
    {parse}
    {setting}
    trainer = Trainer(model, args, train_dataset=data)
    trainer.train()
    {late}
"""
ARGUMENTS = "(args,) = parser.parse_args_into_dataclasses()"
EITHER = f"if sys.argv[1:]:\n        {ARGUMENTS}\n    else:\n        (args,) = parser.parse_json_file('a.json')"
SET = "args.max_grad_norm = {}"


@pytest.mark.parametrize("parse", [ARGUMENTS, EITHER])
def test_an_argument_that_code_sets_after_parsing_is_compared(check: Check, parse: str) -> None:
    def clips(setting: str, late: str = "") -> list[tuple[str, str]]:
        report = check({"a.py": PARSED.format(parse=parse, setting=setting, late=late)})
        return [(each.clip, each.result) for each in report.clips]

    parsed = ("transformers.TrainingArguments(max_grad_norm=)", "unknown")
    assert clips(SET.format(1.0)) == [("args.max_grad_norm", "same")]
    assert clips(SET.format(0.5)) == [("args.max_grad_norm", "drift")]
    assert parsed in clips("if model:\n        " + SET.format(1.0))
    assert parsed in clips("")


PARSER = """from transformers import HfArgumentParser, Trainer, TrainingArguments

parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
Trainer(model=model, args=training_args).train()
"""


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("python train.py --max_grad_norm 1.0", ""),
        ("python train.py --max_grad_norm 0.5", "drift"),
        ("python other.py --max_grad_norm 1.0", "unknown"),
        ("deepspeed train.py --deepspeed ds.json --max_grad_norm 1.0", "unknown"),
    ],
)
def test_an_option_of_training_arguments_has_the_rule_of_trainer(check: Check, command: str, kind: str) -> None:
    """The source stays unknown, because other commands can start it without the option."""
    findings = {each.path: each for each in check({"train.py": PARSER, "run.sh": command + "\n"}).findings}
    kinds = {path: each.kind for path, each in findings.items()}
    assert kinds == {"train.py": "unknown", **({"run.sh": kind} if kind else {})}
    assert ("settings of DeepSpeed decide" in getattr(findings.get("run.sh"), "does", "")) is ("deepspeed" in command)


def test_an_option_of_a_script_with_an_engine_of_deepspeed_is_unknown(check: Check) -> None:
    """DeepSpeed reads the threshold from its settings, and the script might not write the option into the settings."""
    files = {"train.py": "import deepspeed\n\nengine, *_ = deepspeed.initialize(args=args, model=model)\n"}
    report = check({**files, "run.sh": "deepspeed train.py --gradient_clipping 1.0\n"})
    assert {each.path: each.kind for each in report.findings} == {"train.py": "unknown", "run.sh": "unknown"}


def test_the_edit_of_a_parser_sets_the_argument_and_approves_its_default(check: Check) -> None:
    finding = only_finding(check({"train.py": PARSER}))
    assert finding.does.endswith("The default is 1.0.")
    line, place, *entry = finding.edit.splitlines()
    assert line == "training_args.max_grad_norm = 1.0"
    assert "With DeepSpeed, pass --max_grad_norm 1.0 on the command line, and add to clip.toml:" in place
    head, last = PARSER.rsplit("Trainer(model", 1)
    assert check({"train.py": f"{head}{line}\nTrainer(model{last}"}).findings == []
    rules = CLIP_CONFIG + '[check]\nrequire = ["train.py"]\n\n' + "\n".join(entry).partition("\nOr to clip")[0]
    assert check({"train.py": PARSER}, rules).findings == []


def test_an_entry_does_not_approve_another_default(check: Check) -> None:
    own = "class Own(TrainingArguments):\n    max_grad_norm: float = {}\n\n\nparser ="
    text = PARSER.replace("parser =", own, 1).replace(", TrainingArguments))", ", Own))")
    rules = CLIP_CONFIG + IGNORE.format("train.py") + 'rule = "global_norm"\nthreshold = 1.0\n'
    assert check({"train.py": text.format("1.0")}, rules).findings == []
    for default in ("0.3", "LIMIT"):
        finding = only_finding(check({"train.py": text.format(default)}, rules))
        assert finding.edit.startswith("The entry 1 of check.ignore approves only ")
        assert "set the default of max_grad_norm to 1.0." in finding.edit
