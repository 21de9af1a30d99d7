"""`check.off`: trainers whose own clip has to be off, since the training code clips."""

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
TEAMS = {
    "nlp/train.py": HF,
    "nlp/args.json": ARGUMENTS.format(', "max_grad_norm": 0'),
    "vision/train.py": CLI,
    "vision/config.yaml": LIGHTNING.format(NULL),
}


def off_rule(*globs: str, rules: str = "") -> str:
    return f"{CLIP_CONFIG}\n[check]\noff = {[*globs]}\n{rules}".replace("'", '"')


def results(report: CheckReport) -> dict[str, set[str]]:
    return {path: {clip.result for clip in report.clips if clip.path == path} for path in TEAMS}


@pytest.mark.parametrize("rules", ["", 'explicit = ["**"]\n'])
@pytest.mark.parametrize("globs", [("nlp/**", "vision/**"), tuple(TEAMS)])
def test_trainers_whose_clip_is_off_pass(check: Check, globs: tuple[str, ...], rules: str) -> None:
    report = check(TEAMS, off_rule(*globs, rules=rules))
    assert report.findings == []
    assert results(report) == {
        "nlp/train.py": {"same", "off"},
        "nlp/args.json": {"off"},
        "vision/train.py": {"same", "off"},
        "vision/config.yaml": {"off"},
    }
    assert report.notes == [
        "nlp/train.py:8 transformers.TrainingArguments(max_grad_norm=): the source does not set this clip. The clip is "
        "off in nlp/args.json.",
        "vision/train.py:8 lightning.pytorch.cli.LightningCLI(gradient_clip_val=): the source does not set this clip. "
        "The clip is off in vision/config.yaml.",
    ]


def test_without_the_rule_the_edit_names_it(check: Check) -> None:
    findings = check(TEAMS).findings
    assert {each.path for each in findings} == {*TEAMS}
    for finding in findings:
        own = f"{Path(finding.path).parent.name}/train.py"
        hint = f"If {own} clips the gradients of this training, this clip has to be off. Add "
        assert finding.edit.startswith(f'{hint}"{finding.path}" to check.off in clip.toml.\n')


def test_the_edit_names_the_nearest_code_that_clips(check: Check) -> None:
    own = 'from unified_clip import ClipConfig\n\nClipConfig.load("clip.toml").clip_(model.parameters())\n'
    files = {"a/speech/train.py": own, "a/nlp/args.json": ARGUMENTS.format(', "max_grad_norm": 0.0')}
    for others, path in (({}, "a/speech/train.py"), ({"a/nlp/train.py": own}, "a/nlp/train.py")):
        finding = only_finding(check({**files, **others}))
        assert finding.edit.startswith(f"If {path} clips the gradients of this training, this clip has to be off. Add")


@pytest.mark.parametrize(("path", "text", "line", "edit"), [
    ("nlp/args.json", ARGUMENTS.format(', "max_grad_norm": 0.3'), 1, '{\n  "max_grad_norm": 0.0\n}'),
    ("nlp/args.json", ARGUMENTS.format(""), 1, '{\n  "max_grad_norm": 0.0\n}'),
    ("vision/config.yaml", LIGHTNING.format("  gradient_clip_val: 1.0\n"), 4, "trainer:\n  gradient_clip_val: null"),
    ("nlp/train.py", HF + "TrainingArguments('out', max_grad_norm=1.0)\n", 10, "max_grad_norm=0.0"),
    ("nlp/train.py", HF + "TrainingArguments('out')\n", 10, "max_grad_norm=0.0"),
])  # fmt: skip
def test_a_clip_that_is_on_is_a_drift(check: Check, path: str, text: str, line: int, edit: str) -> None:
    findings = check({**TEAMS, path: text}, off_rule("nlp/**", "vision/**")).findings
    finding = next(each for each in findings if each.path == path)
    assert (finding.kind, finding.line, finding.edit) == ("drift", line, edit)
    assert finding.effect.startswith("check.off requires that this clip is off")
    rule = finding.differences[0]
    assert (rule.about, rule.found, rule.wanted) == ("rule", "global_norm", "none")


@pytest.mark.parametrize(("path", "text", "why"), [
    ("vision/config.yaml", LIGHTNING.format("  gradient_clip_vall: 0.3\n"), "gradient_clip_vall"),
    ("vision/config.yaml", "model: resnet\n", "the file shows no clip key of a known trainer"),
    ("nlp/args.json", ARGUMENTS.format(', "max_grad_nrom": 0'), "max_grad_nrom"),
    ("nlp/args.json", "{", "args.json"),
    ("nlp/train.py", "from transformers import TrainingArguments\n\nTrainingArguments(**given)\n", "might be set in"),
])  # fmt: skip
def test_a_file_that_is_not_understood_is_unknown(check: Check, path: str, text: str, why: str) -> None:
    findings = check({**TEAMS, path: text}, off_rule(*TEAMS)).findings
    finding = next(each for each in findings if each.path == path)
    assert finding.kind == "unknown"
    assert why in finding.does


def test_a_command_line_parser_is_unknown_without_a_file_that_is_off(check: Check) -> None:
    files = {path: text for path, text in TEAMS.items() if path != "nlp/args.json"}
    finding = only_finding(check(files, off_rule("nlp/**", "vision/**")))
    assert (finding.kind, finding.path, finding.line) == ("unknown", "nlp/train.py", 8)
    assert finding.edit.startswith(
        "Switch the clip off in the configuration file that sets it, and add that file to check.off."
    )


def test_python_without_a_trainer_is_unknown_if_the_pattern_matches_no_trainer(check: Check) -> None:
    own = HEAD + OWN + "grads = clip(gradients)\n"
    finding = only_finding(check({"a/train.py": own}, off_rule("a/*")))
    assert (finding.kind, finding.path, finding.clip) == ("unknown", "a/train.py", 'check.off "a/*"')
    assert check({**TEAMS, "nlp/other.py": own}, off_rule("nlp/**", "vision/**")).findings == []


def test_the_default_of_off_is_missing_where_the_key_is_required(check: Check) -> None:
    files = {**TEAMS, "vision/config.yaml": LIGHTNING.format("")}
    assert check(files, off_rule("nlp/**", "vision/**")).findings == []
    finding = only_finding(check(files, off_rule("nlp/**", "vision/**", rules='explicit = ["**"]\n')))
    assert (finding.kind, finding.path) == ("missing", "vision/config.yaml")
    assert finding.edit == "trainer:\n  gradient_clip_val: null"


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
BY_ENGINE = ("accelerate", "deepspeed", "gpt_neox", "megatron")
"""Formats whose engine does not expose the gradients, so training code cannot clip."""


def check_switched_off(check: Check, name: str, shared: str = CLIP_CONFIG) -> CheckReport:
    trainer = FORMATS[name]
    suffix = {"args": "sh", "python": "py"}.get(trainer.kinds[0], trainer.kinds[0])
    text = convert.write(ClipConfig(rule="none"), name)[0]
    own = {"train.py": HEAD + 'clip = ClipConfig.load("clip.toml")\ngrads = clip(gradients)\n'}
    rules = f'explicit = ["**"]\n[check.formats]\n"a.{suffix}" = "{name}@{trainer.newest}"\n'
    return check({f"a.{suffix}": text, **own}, f'{shared}\n[check]\noff = ["a.{suffix}"]\n{rules}')


@pytest.mark.parametrize("name", [name for name in WRITABLE if name not in BY_ENGINE])
def test_the_edit_of_each_format_passes(check: Check, name: str) -> None:
    report = check_switched_off(check, name)
    assert [(each.kind, each.does) for each in report.findings] == []
    assert "off" in {each.result for each in report.clips}


@pytest.mark.parametrize("name", BY_ENGINE)
def test_a_file_whose_engine_prevents_clipping_in_code_must_clip(check: Check, name: str) -> None:
    finding = only_finding(check_switched_off(check, name))
    engine = "Megatron-LM" if name == "megatron" else "DeepSpeed"
    assert finding.kind == "drift"
    assert finding.effect.endswith(f"only {engine} can clip the gradients. Training code cannot clip them.")
    assert finding.edit.startswith("Remove this file from check.off in clip.toml.\n")
    assert "1.0" in finding.edit
    assert check_switched_off(check, name, 'rule = "none"\n').findings == [], "the configuration itself is off"


HYDRA = "_target_: lightning.pytorch.Trainer\nmax_epochs: 3\ngradient_clip_val: {}\n"
PARTS = {f"conf/{name}.yaml": f"defaults: [default]\naccelerator: {name}\n" for name in ("cpu", "gpu", "tpu")}


def test_one_finding_covers_all_files_that_inherit_a_clip_that_is_on(check: Check) -> None:
    files = {**PARTS, "conf/default.yaml": HYDRA.format(1.0), "clip_by.toml": CLIP_CONFIG}
    finding = only_finding(check(files, off_rule("conf/*.yaml")))
    assert (finding.kind, finding.path) == ("drift", "conf/default.yaml")


def test_a_file_that_inherits_a_clip_is_compared_by_its_own_rules(check: Check) -> None:
    default = {"conf/default.yaml": HYDRA.format(1.0)}
    finding = only_finding(check({**PARTS, **default}, off_rule("conf/gpu.yaml")))
    assert (finding.kind, finding.path) == ("drift", "conf/default.yaml")
    value = {"conf/tpu.yaml": "defaults: [default]\ngradient_clip_algorithm: value\n"}
    finding = only_finding(check({**PARTS, **default, **value}))
    assert [each.about for each in finding.differences][:1] == ["rule"]
