"""Files of `check.each` whose classes leave the clip to a base class, or to a trainer of a library."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, TORCH, Check, only_finding

EACH = f'{CLIP_CONFIG}\n[check]\neach = ["*.py"]\n'
CLIP = {"sub/clip.py": TORCH % "1.0"}
BASE = """\
import torch

class Base:
    def fit(self):
        self.loss().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
"""
DERIVED = """\
import torch
{0}

class Recipe({1}):
    def build(self):
        self.optimizer = torch.optim.AdamW(self.parameters())
"""
LOOP = "\n    def fit(self):\n        self.loss().backward()\n        self.optimizer.step()\n"
PASSED = "import torch\n{}\n\noptimizer = torch.optim.AdamW(model.parameters())\n{}\n"
LAMBDA = "class Mine(speechbrain.Brain):\n    pass\n\nMine(modules, lambda p: torch.optim.SGD(p, 0.1))"


@pytest.mark.parametrize("files", [
    {"base.py": BASE, "a.py": DERIVED.format("from base import Base", "Base")},
    {"base.py": BASE, "a.py": DERIVED.format("import base", "nn.Module, base.Base[int]")},
    {
        "base.py": BASE, "between.py": "from base import Base\n\nclass Between(Base):\n    pass\n",
        "a.py": DERIVED.format("from between import Between", "Between"),
    },
    {"base.py": BASE, "a.py": DERIVED.format("from base import Base\n\nclass Own(Base):\n    pass\n", "Own")},
])  # fmt: skip
def test_a_class_whose_base_class_clips_needs_no_clip(check: Check, files: dict[str, str]) -> None:
    report = check(files, EACH)
    assert (report.findings, report.notes) == ([], [])
    without = {**files, "base.py": BASE.replace("torch.nn.utils.clip_grad_norm_", "print")}
    assert {each.path for each in check({**CLIP, **without}, EACH).findings} == {"a.py", "base.py"}


@pytest.mark.parametrize(("imports", "base", "setting"), [
    ("import speechbrain as sb", "sb.Brain", "speechbrain.Brain, which clips at max_grad_norm"),
    ("from speechbrain.core import Brain", "Brain", "speechbrain.core.Brain, which clips at max_grad_norm"),
    ("import transformers", "transformers.Trainer", "transformers.Trainer, which clips at max_grad_norm"),
    ("from trl import SFTTrainer", "SFTTrainer", "trl.SFTTrainer, which clips at max_grad_norm"),
])  # fmt: skip
def test_a_class_of_a_trainer_that_clips_by_default_has_a_note(
    check: Check, imports: str, base: str, setting: str
) -> None:
    report = check({**CLIP, "a.py": DERIVED.format(imports, base)}, EACH)
    assert report.findings == []
    keyword = setting.rpartition(" ")[2]
    advice = f"Also pass the file or script that sets {keyword}."
    assert report.notes == [f"a.py:6 relies on {setting}. {advice}"]


@pytest.mark.parametrize("code", [
    PASSED.format("from transformers import Trainer", "Trainer(model, args, optimizers=(optimizer, None))"),
    f"import speechbrain\nimport torch\n\n{LAMBDA}\n",
])  # fmt: skip
def test_an_optimizer_that_such_a_trainer_gets_needs_no_clip(check: Check, code: str) -> None:
    assert check({**CLIP, "a.py": code}, EACH).findings == []


def test_a_module_of_lightning_needs_no_clip_if_a_trainer_of_lightning_clips(check: Check) -> None:
    files = {**CLIP, "a.py": DERIVED.format("import lightning as L", "L.LightningModule")}
    assert only_finding(check(files, EACH)).path == "a.py"
    trainer = {"sub/b.py": "import lightning as L\n\nL.Trainer(gradient_clip_val=1.0)\n"}
    report = check({**files, **trainer}, EACH)
    assert (report.findings, report.notes) == ([], [])


def test_a_loop_around_a_module_of_lightning_needs_a_clip(check: Check) -> None:
    trainer = "import lightning as L\n\nL.Trainer(gradient_clip_val=1.0)\n"
    files = {"a.py": DERIVED.format("import lightning as L", "L.LightningModule"), "b.py": trainer}
    loop = "from a import Recipe\n\nmodel = Recipe()\noptimizer = setup()\nloss.backward()\noptimizer.step()\n"
    assert only_finding(check({**files, "c.py": loop}, EACH)).path == "c.py"


def test_a_base_class_of_a_framework_is_not_a_class_of_another_file_by_name(check: Check) -> None:
    files = {"base.py": BASE.replace("Base", "Module"), "a.py": DERIVED.format("import torch.nn as nn", "nn.Module")}
    assert only_finding(check(files, EACH)).path == "a.py"


def test_the_setting_of_a_brain_is_unknown_and_counts_as_its_clip(check: Check) -> None:
    brain = DERIVED.format("import speechbrain as sb", "sb.Brain")
    finding = only_finding(check({"a.py": f"{brain}\nRecipe(run_opts={{'max_grad_norm': 1.0}})\n"}, EACH))
    assert finding.kind == "unknown"
    assert finding.does.startswith("SpeechBrain clips in its own loop. ")


OWN_LOOP = """from transformers import Trainer, TrainingArguments

args = TrainingArguments("o")
trainer = Trainer(model=model, args=args)
for batch in batches:
    model.train()
    model(**batch).loss.backward()
    {}optimizer.step()
"""
