"""A `ClipCallback` that no code passes to a trainer."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

MODULE = """\
from unified_clip import ClipConfig
from unified_clip.integrations.{}_callback import ClipCallback

clip = ClipConfig.load("clip.toml")
"""
MADE = "callbacks = [ClipCallback(clip)]\n"


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
@pytest.mark.parametrize(("code", "name"), [
    ("ClipCallback(clip)\n", "ClipCallback(clip)"),
    ("cb = ClipCallback(clip)\n", "cb"),
    ("cb = ClipCallback(clip)\nprint(cb, cb.last)\n", "cb"),
    (MADE, "callbacks"),
    (f"{MADE}print(len(callbacks))\n", "callbacks"),
    ("callbacks = []\ncallbacks += [ClipCallback(clip)]\n", "callbacks"),
    ("cb = ClipCallback(clip)\ncallbacks = [cb]\n", "cb"),
    ("arguments = {'callbacks': [ClipCallback(clip)] + others}\n", "arguments"),
    ("cb = ClipCallback(ClipConfig.load('clip.toml'))\nclip.clip_(model)\n", "cb"),
    ("cb = ClipCallback(clip) if clips else None\n", "cb"),
    ("def train(config=clip):\n    cb = ClipCallback(config)\n    Trainer(model).train()\n", "cb"),
])  # fmt: skip
def test_a_callback_that_no_code_passes_on_does_not_clip(check: Check, trainer: str, code: str, name: str) -> None:
    finding = only_finding(check({"a.py": f"{MODULE.format(trainer)}{code}", "b.py": "import a\n"}))
    assert (finding.kind, finding.clip) == ("unknown", f"unified_clip.integrations.{trainer}_callback.ClipCallback")
    assert finding.does.startswith(f"No checked code passes the callback {name} to a trainer, so the callback")
    assert finding.edit.startswith("Pass the callback to the trainer")


@pytest.mark.parametrize("code", [
    "Trainer(model, callbacks=[ClipCallback(clip)]).train()\n",
    f"{MADE}Trainer(model, callbacks=callbacks)\n",
    f"{MADE}Trainer(model, callbacks=[*callbacks, other])\n",
    f"{MADE}Trainer(model, callbacks=callbacks + others)\n",
    f"{MADE}for callback in callbacks:\n    trainer.add_callback(callback)\n",
    f"{MADE}trainer.add_callback(callbacks[0])\n",
    f"{MADE}trainer.callbacks += callbacks\n",
    "cb = ClipCallback(clip)\ncallbacks = [cb]\nTrainer(callbacks=callbacks)\n",
    "arguments = {'callbacks': [ClipCallback(clip)]}\nTrainer(**arguments)\n",
    "arguments = {'callbacks': [ClipCallback(clip)]}\nTrainer(callbacks=arguments['callbacks'])\n",
    "arguments = {'callbacks': [ClipCallback(clip)]}\nTrainer(callbacks=arguments.get('callbacks'))\n",
    "if cb := ClipCallback(clip):\n    callbacks.append(cb)\n",
    "callbacks.append(ClipCallback(clip))\n",
    "def make():\n    return ClipCallback(clip)\n",
    "def make():\n    return [ClipCallback(clip)]\n",
    "class Loop:\n    def __init__(self):\n        self.callback = ClipCallback(clip)\n",
    "class Loop:\n    callbacks = [ClipCallback(clip)]\n",
])  # fmt: skip
@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_callback_that_code_may_pass_to_a_trainer_clips(check: Check, trainer: str, code: str) -> None:
    report = check({"a.py": f"{MODULE.format(trainer)}{code}"})
    assert (report.findings, [clip.result for clip in report.clips]) == ([], ["same"])


@pytest.mark.parametrize(
    "module",
    ["from a import callbacks as cbs\n\nTrainer(callbacks=cbs)\n", "import a\n\nTrainer(callbacks=a.callbacks)\n"],
)
def test_another_file_may_pass_the_callback_to_its_trainer(check: Check, module: str) -> None:
    report = check({"a.py": f"{MODULE.format('lightning')}{MADE}", "b.py": module})
    assert (report.findings, [clip.result for clip in report.clips]) == ([], ["same"])
