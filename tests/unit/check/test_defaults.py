"""Defaults of trainers, misspelt clip keys, and the patterns of `check.nearest`."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

from unified_clip import cli

AXOLOTL = "base_model: a\nsequence_len: 2048\n"
HF = "from transformers import TrainingArguments\n\nargs = TrainingArguments('out'{})\n"


def test_a_success_names_the_default(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    check({"sft/a.yml": AXOLOTL, "b.py": HF.format("")})
    assert cli.main(["config", "check", "clip.toml", "."]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "b.py:3 same transformers.TrainingArguments by default: max_grad_norm is not set (pytorch)",
        "sft/a.yml:1 same Axolotl by default: max_grad_norm is not set (pytorch)",
    ]


def test_the_version_for_a_default_comes_after_the_advice_to_set_the_key(check: Check) -> None:
    finding = only_finding(check({"ds.json": '{"zero_optimization": {}}'}))
    advice = 'Set gradient_clipping. Or, if you use DeepSpeed 0.19.6, set "**/ds.json"'
    assert f"at 1.0 since 0.19.3. {advice}" in finding.does


@pytest.mark.parametrize("key", ["max_grad_nrom", "max_gard_norm", "max_grad_nrm"])
def test_a_misspelt_key_is_no_default(check: Check, key: str) -> None:
    finding = only_finding(check({"a.yml": f"{AXOLOTL}{key}: 1.0\n"}))
    assert (finding.kind, finding.line) == ("unknown", 3)
    assert f"{key}: Axolotl does not read this key. Set max_grad_norm instead" in finding.does


PASSED = """from torch.nn.utils import clip_grad_norm_
LIMIT = 5.0
def train(parameters, limit=4.0, other=LIMIT):
    clip_grad_norm_(
        parameters,
        LIMIT)
    clip_grad_norm_(parameters, limit)
def main(args, parameters):
    train(parameters, 3.0)
    train(parameters, int(args[0]))
    train(parameters)
"""


def test_a_clip_names_the_call_that_passes_its_threshold_and_the_edit_its_place(check: Check) -> None:
    report = check({"a.py": PASSED})
    clip = "torch.nn.utils.clip_grad_norm_"
    found = {(each.line, each.clip, each.edit.split("\n")[0]) for each in report.findings if each.kind == "drift"}
    assert found == {
        (4, clip, "clip_grad_norm_(parameters, 1.0)"),
        (7, f"{clip} by the call in line 9", "Set the threshold in a.py:9 to 1."),
        (7, f"{clip} by the default in line 3", "Set the threshold in a.py:3 to 1."),
    }
    (unknown,) = (each for each in report.findings if each.kind == "unknown")
    assert unknown.does.endswith("See the call in line 10.")
