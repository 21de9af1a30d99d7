"""A trainer's own clip beside a clip of unified_clip in one file: gradients are clipped twice."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

OWN = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\n"
HF = f"""\
from transformers import Trainer, TrainingArguments
from unified_clip.integrations.transformers_callback import ClipCallback
{OWN}
args = TrainingArguments('o'%s)
Trainer(model, args, callbacks=[ClipCallback(clip)])
"""
LIGHTNING = f"""\
import lightning as L
from unified_clip.integrations.lightning_callback import ClipCallback
{OWN}
L.Trainer(%scallbacks=[ClipCallback(clip)])
"""
HYDRA = f"""\
import hydra
import lightning as L
from unified_clip.integrations.lightning_callback import ClipCallback
{OWN}
trainer: L.Trainer = hydra.utils.instantiate(cfg.trainer, %scallbacks=[ClipCallback(clip)])
"""
KERAS = f"import keras\n{OWN}optimizer = keras.optimizers.Adam(0.1%s)\nclip.attach_to(optimizer)\n"
ATTACHED = f"import lightning as L\n{OWN}clip.attach_to(optimizer, model)\nL.Trainer(%s)\n"


@pytest.mark.parametrize(("source", "argument", "own_clip", "off"), [
    (HF, ", max_grad_norm=1.0", "ClipCallback in line 8", "max_grad_norm=0.0"),
    (HF, "", "ClipCallback in line 8", "max_grad_norm=0.0"),
    (LIGHTNING, "gradient_clip_val=1.0, ", "ClipCallback in line 7", "gradient_clip_val=None"),
    (HYDRA, "gradient_clip_val=1.0, ", "ClipCallback in line 8", "gradient_clip_val=None"),
    (ATTACHED, "gradient_clip_val=1.0", "attach_to in line 5", "gradient_clip_val=None"),
    (KERAS, ", global_clipnorm=1.0", "attach_to in line 6", "clipnorm=None, global_clipnorm=None, clipvalue=None"),
])  # fmt: skip
def test_both_clips_on_is_a_finding_that_switches_the_trainers_off(
    check: Check, source: str, argument: str, own_clip: str, off: str
) -> None:
    config = 'rule = "global_norm"\nthreshold = 1.0\n' + ('family = "tensorflow"\n' if source is KERAS else "")
    finding = only_finding(check({"a.py": source % argument}, config))
    assert finding.effect == f"This file clips twice: by this clip, and by {own_clip}. Switch this clip off."
    assert (finding.kind, finding.edit) == ("drift", off)
    switched = {"max_grad_norm=0.0": ", max_grad_norm=0.0", "gradient_clip_val=None": ""}.get(off, "")
    switched = "gradient_clip_val=None, " if source is HYDRA else switched
    assert check({"a.py": source % switched}, config).findings == []


def test_a_second_trainer_without_the_callback_clips_once(check: Check) -> None:
    second_trainer = LIGHTNING % "" + "L.Trainer(gradient_clip_val=1.0)\n"
    assert "twice" in only_finding(check({"a.py": second_trainer})).effect, (
        "no trainer is off by its argument, so either may have it"
    )
    off = LIGHTNING % "gradient_clip_val=None, " + "L.Trainer(gradient_clip_val=1.0)\n"
    assert check({"a.py": off}).findings == []


def test_under_deepspeed_the_callback_has_to_go(check: Check) -> None:
    source = LIGHTNING % "strategy='deepspeed', gradient_clip_val=1.0, "
    assert only_finding(check({"a.py": source})).edit.endswith("Remove ClipCallback in line 7.")
