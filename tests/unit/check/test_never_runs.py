"""Clips in functions that every checked call switches off, or that no code calls."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

RIGHT = {"right.py": "import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"}
HELPER = """import torch

__all__ = ["clip_grad_value_"]


def clip_grad_value_(parameters, clip_value, norm_type=2):
    if clip_value is not None:
        clip_value = float(clip_value)
    for p in parameters:
        if {test}:
            p.grad.data.clamp_(min=-clip_value, max=clip_value)
"""
OFF = "import commons\n\nnorm = commons.clip_grad_value_(net.parameters(), None)\n"


@pytest.mark.parametrize("test", ["clip_value is not None", "clip_value", "clip_value is not None and norm_type"])
@pytest.mark.parametrize("train", [OFF, OFF.replace("None", "clip_value=None")])
def test_a_clip_that_every_call_switches_off_is_none(check: Check, test: str, train: str) -> None:
    files = {"commons.py": HELPER.format(test=test), "train.py": train}
    assert only_finding(check(files)).kind == "missing"
    report = check({**RIGHT, **files})
    assert (report.findings, report.counts.clips) == ([], 1)


METHOD = "class Trainer:\n    def clip(self, model, limit):\n        if limit is not None:\n            {}\n"


@pytest.mark.parametrize(("limit", "clips"), [("None", 1), ("0.5", 2)])
def test_the_arguments_of_a_method_count_without_self(check: Check, limit: str, clips: int) -> None:
    method = METHOD.format("torch.nn.utils.clip_grad_norm_(model.parameters(), limit)")
    train = f"import torch\n\n\n{method}\n    def step(self):\n        self.clip(self.model, {limit})\n"
    assert check({**RIGHT, "trainer.py": train}).counts.clips == clips


@pytest.mark.parametrize(
    "more",
    [
        {"train.py": ""},
        {"other.py": "import commons\n\ncommons.clip_grad_value_(net.parameters(), 0.5)\n"},
        {"other.py": "import commons\n\ncommons.clip_grad_value_(*arguments)\n"},
        {"other.py": "import commons\n\ncommons.clip_grad_value_(net.parameters())\n"},
        {"other.py": "from commons import clip_grad_value_ as clip\n\nclip(net.parameters(), 0.5)\n"},
        {"other.py": "import commons\n\nfit(net, clip=commons.clip_grad_value_)\n"},
        {"other.py": "import commons\n\nclip = getattr(commons, 'clip_grad_value_')\n"},
        {"other.py": "clip_grad_value_(net.parameters(), 0.5"},
        {"commons.py": HELPER.format(test="norm_type")},
        {"commons.py": HELPER.format(test="clip_value is not None or norm_type")},
        {"commons.py": HELPER.format(test="clip_value:\n            pass\n        elif norm_type")},
        {"commons.py": HELPER.format(test="clip_value").replace("if clip_value is not None", "if norm_type")},
    ],
    ids=range(12),
)
def test_a_clip_that_a_call_may_switch_on_stays(check: Check, more: dict[str, str]) -> None:
    files = {"commons.py": HELPER.format(test="clip_value is not None"), "train.py": OFF, **more}
    findings = check({**RIGHT, **files}).findings
    assert [each.kind for each in findings if each.path == "commons.py"] == ["drift"]


UNCALLED = """import torch


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def train(model, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        model(batch).sum().backward(){}
        optimizer.step()
"""


def test_a_clip_in_a_function_that_no_code_calls_never_runs(check: Check) -> None:
    finding = only_finding(check({"train.py": UNCALLED.format("")}))
    assert (finding.kind, finding.line) == ("unknown", 5)
    assert "no code in the checked files uses clip, the function that contains the clip" in finding.does


@pytest.mark.parametrize(
    "files",
    [
        {"train.py": UNCALLED.format("\n        clip(model)")},
        {"train.py": UNCALLED.format(""), "main.py": "import train\n\ntrain.clip(model)\n"},
        {"train.py": UNCALLED.format("").partition("def train")[0]},
        {"train.py": UNCALLED.format("\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")},
        {"train.py": UNCALLED.format("").replace("def clip", "@register\ndef clip")},
        {"train.py": UNCALLED.format("").replace("1.0)", "1.0)\n    optimizer.step()")},
    ],
    ids=["called", "called elsewhere", "a module of functions", "another clip", "registered", "with its own step"],
)
def test_a_clip_in_a_function_that_may_be_called_is_no_such_finding(check: Check, files: dict[str, str]) -> None:
    assert not [each for each in check(files).findings if "never runs" in each.does]
