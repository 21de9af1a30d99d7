"""With fp16, a loss scaler skips steps, as nonfinite = "skip" does."""

from __future__ import annotations

import json

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

SKIP = CLIP_CONFIG + 'nonfinite = "skip"\n'
HF_JSON = {"output_dir": "out", "per_device_train_batch_size": 1, "max_grad_norm": 1.0}
LIGHTNING = "trainer:\n  gradient_clip_val: {}\n  precision: {}\n"
HF_PY = "from transformers import TrainingArguments\n\nargs = TrainingArguments({})\n"
TRAINER = "import lightning\n\ntrainer = lightning.Trainer(gradient_clip_val={}, precision={})\n"
DEEPSPEED = {"gradient_clipping": 1.0, "zero_optimization": {}}

FP16 = {
    "HF's JSON": ("a.json", json.dumps(HF_JSON | {"fp16": True})),
    "HF's source": ("a.py", HF_PY.format("max_grad_norm=1.0, fp16=True")),
    "HF's default threshold": ("a.py", HF_PY.format("fp16=True")),
    "Lightning's YAML": ("a.yaml", LIGHTNING.format("1.0", "16-mixed")),
    "an old value": ("a.yaml", LIGHTNING.format("1.0", "16")),
    "Lightning's source": ("a.py", TRAINER.format("1.0", "'16-mixed'")),
    "DeepSpeed": ("a.json", json.dumps(DEEPSPEED | {"fp16": {"enabled": True}})),
}


@pytest.mark.parametrize(("name", "text"), FP16.values(), ids=FP16)
def test_a_loss_scaler_skips_steps_as_the_configuration_does(check: Check, name: str, text: str) -> None:
    report = check({name: text}, SKIP)
    assert (report.findings, report.notes) == ([], [])
    assert check({name: text}, SKIP.replace("skip", "raise")).findings != [], "a loss scaler raises no error"
    report = check({name: text})
    assert report.findings == []
    (note,) = report.notes
    assert ": With fp16, " in note
    assert note.endswith("With clip.toml, these steps are clipped.")


def test_the_edit_sets_only_what_differs_from_a_loss_scaler(check: Check) -> None:
    finding = only_finding(check({"a.yaml": LIGHTNING.format("5.0", "16-mixed")}, SKIP))
    assert [each.about for each in finding.differences] == ["threshold"]
    assert "gradient_clip_val: 1.0" in finding.edit
    assert "nonfinite" not in finding.edit
