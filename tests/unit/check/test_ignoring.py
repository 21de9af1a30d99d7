"""`check.ignore` with an approved effect, and for inherited clips."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding

from unified_clip.check.output import as_text


def test_a_finding_names_the_entry_that_approves_another_effect(check: Check) -> None:
    clip = f"{CLIP_CONFIG}{IGNORE.format('a.py')}threshold = 0.1\n"
    for threshold in ("0.2", "args.norm"):
        finding = only_finding(check({"a.py": TORCH % threshold, "ds.json": DEEPSPEED % "1.0"}, clip))
        assert finding.edit.startswith("The entry 1 of check.ignore approves only threshold = 0.1")


def test_the_text_has_the_reason_of_ignored_findings(check: Check) -> None:
    files = {"a.py": TORCH % "0.1" + TORCH % "0.2", "b.py": TORCH % "0.5"}
    text = as_text(check(files, CLIP_CONFIG + IGNORE.format("a.py")))
    assert "\na.py:3 (and 1 more) ignored torch.nn.utils.clip_grad_norm_: a sweep\n" in text
    assert text.startswith("b.py:3:1 drift"), "with findings, too"


def test_clips_that_are_near_share_a_note(check: Check) -> None:
    source = "import optax\n\ntx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))\n"
    report = check({"a.py": source, "b.py": source, "c.py": source}, CLIP_CONFIG + '[check]\nnearest = ["**"]\n')
    (note,) = report.notes
    assert note.startswith("a.py:3 optax.clip_by_global_norm and 2 more clips are accepted with this difference: ")


def test_a_key_with_null_is_no_default(check: Check) -> None:
    text = "model:\n  _component_: torchtune.models.x\nclip_grad_norm: null\n"
    assert only_finding(check({"a.yaml": text})).clip == "torchtune: clip_grad_norm is null"


@pytest.mark.parametrize(
    "code",
    [
        "torch.nn.utils.clip_grad_norm_(model.parameters(), args.norm)",
        "accelerator.clip_grad_norm_(model.parameters(), args.norm)",
    ],
)
def test_an_entry_without_a_threshold_approves_a_threshold_of_its_rule_that_is_unknown(check: Check, code: str) -> None:
    rules = f'{CLIP_CONFIG}[check]\nrequire = ["a.py"]\n{IGNORE.format("a.py")}'
    text = f"import torch\n\n{code}\n"
    finding = only_finding(check({"a.py": text}))
    assert finding.does.startswith("The threshold, args.norm,")
    assert check({"a.py": text}, f'{rules}rule = "global_norm"\n').findings == []
    assert only_finding(check({"a.py": text}, rules)).clip == 'check.require "a.py"'
    with_threshold = only_finding(check({"a.py": text}, f"{rules}threshold = 1.0\n"))
    assert with_threshold.edit.startswith("The entry 1 of check.ignore approves only threshold = 1.0")
    value = text.replace("clip_grad_norm_", "clip_grad_value_")
    assert only_finding(check({"a.py": value}, f'{rules}rule = "global_norm"\n')).kind == "drift"
