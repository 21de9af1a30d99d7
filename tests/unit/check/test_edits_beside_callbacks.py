"""Edits that switch a trainer's own clip off, beside a `ClipCallback` of unified_clip."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

OWN = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\n"
HF = f"""\
from transformers import Trainer, TrainingArguments
from unified_clip.integrations.transformers_callback import ClipCallback
{OWN}
args = TrainingArguments('o'%s)
Trainer(model, args, callbacks=[ClipCallback(clip)])
"""


PARSED = HF.replace("TrainingArguments('o'%s)", "HfArgumentParser(TrainingArguments).parse_json_file('a.json')[0]")
PARSED = PARSED.replace("import Trainer", "import HfArgumentParser, Trainer")
CLI = f"""\
from lightning.pytorch.cli import LightningCLI
from unified_clip.integrations.lightning_callback import ClipCallback
{OWN}
LightningCLI(Model, trainer_defaults={{'callbacks': [ClipCallback(clip)]}})
"""
YAML = "trainer:\n  max_epochs: 3\n  accelerator: gpu\n"
JSON = '{"output_dir": "o", "eval_strategy": "no", "per_device_train_batch_size": 4, "max_grad_norm": 0.5}\n'
HINT = """\
If a.py clips the gradients of this training, switch this clip off, and add to clip.toml:
[[check.ignore]]
path = "{}"
clip = "{}"
rule = "none"
reason = "..."

"""


@pytest.mark.parametrize(("source", "files", "path", "off"), [
    (PARSED, {"a.json": JSON}, "a.json", '{\n  "max_grad_norm": 0.0\n}'),
    (PARSED, {"a.json": JSON}, "a.py", "Switch the clip off in the configuration file that sets it"),
    (CLI, {"c.yaml": f"{YAML}  gradient_clip_val: 0.5\n"}, "c.yaml", "trainer:\n  gradient_clip_val: null"),
    (CLI, {"c.yaml": YAML}, "c.yaml", "trainer:\n  gradient_clip_val: null"),
    (f"limit = x()\n{HF % ', max_grad_norm=limit'}", {}, "a.py", "max_grad_norm=0.0"),
    (HF % ", max_grad_norm=0", {
        "b.py": "from transformers import TrainingArguments\n\nTrainingArguments('o', max_grad_norm=0.5)\n",
    }, "b.py", "max_grad_norm=0.0"),
])  # fmt: skip
def test_the_edit_of_a_trainer_near_its_callback_switches_the_clip_off(
    check: Check, source: str, files: dict[str, str], path: str, off: str
) -> None:
    (finding,) = (each for each in check({"a.py": source, **files}).findings if each.path == path)
    hint = HINT.format(path, finding.clip)
    edit = finding.edit.removeprefix(hint)
    assert (finding.edit[: len(hint)], edit[: len(off)]) == (hint, off)
    assert "Or" not in edit


def test_the_edit_of_another_trainer_sets_its_threshold(check: Check) -> None:
    report = check({"a.py": PARSED, "c.yaml": f"{YAML}  gradient_clip_val: 0.5\n"})
    (finding,) = (each for each in report.findings if each.path == "c.yaml")
    assert finding.edit.startswith("trainer:\n  gradient_clip_val: 1.0\n")


def test_a_default_near_a_callback_that_check_explicit_rejects_is_switched_off(check: Check) -> None:
    files = {"a.py": HF % ", max_grad_norm=0", "a.json": JSON.replace(', "max_grad_norm": 0.5', "")}
    finding = only_finding(check(files, f'{CLIP_CONFIG}\n[check]\nexplicit = ["a.json"]\n'))
    hint = HINT.format("a.json", finding.clip)
    assert (finding.kind, finding.edit) == ("missing", hint + '{\n  "max_grad_norm": 0.0\n}')
