"""A `ClipConfig` that Python source makes and never uses."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, one

IMPORT = "from unified_clip import ClipConfig\n\n"
LOAD = 'ClipConfig.load("clip.toml")'
OWN = 'ClipConfig(rule="global_norm", threshold=1.0)'


@pytest.mark.parametrize("make", [LOAD, OWN])
def test_a_function_that_never_uses_its_configuration_does_not_clip(check: Check, make: str) -> None:
    finding = one(check({"a.py": f"{IMPORT}def step(grads):\n    clip = {make}\n    return grads\n"}))
    assert (finding.kind, finding.line) == ("unknown", 4)
    assert finding.does.startswith("The function makes this configuration and never uses clip, so it clips nothing.")


@pytest.mark.parametrize(("source", "subject"), [("clip = {}\n", "clip"), ("{}\n", "the configuration")])
def test_a_configuration_that_only_another_module_could_use_is_a_note(check: Check, source: str, subject: str) -> None:
    report = check({"a.py": IMPORT + source.format(LOAD)})
    end = " in this file" if subject == "clip" else ""
    assert report.findings == []
    assert report.notes == [
        f"a.py:3 unified_clip.ClipConfig.load: {subject} is not used{end}, so it clips nothing here."
    ]


@pytest.mark.parametrize(
    "source",
    [
        "clip = {}\n\n\ndef step(grads):\n    return clip(grads)\n",
        "def step(grads):\n    clip = {}\n    return [clip(each) for each in grads]\n",
        "def make():\n    global clip\n    clip = {}\n",
        "def outer():\n    clip = None\n    def set():\n        nonlocal clip\n        clip = {}\n    return set\n",
        "def make():\n    clip = {}\n    return locals()\n",
        "__all__ = ['clip']\nclip = {}\n",
        "class Settings:\n    clip = {}\n",
        "def make(self):\n    self.clip = {}\n",
        "def make():\n    return {}\n",
        "def make(optimizer):\n    {}.attach_to(optimizer)\n",
        "train(clip={})\n",
    ],
)
def test_a_configuration_that_may_be_used_is_no_finding(check: Check, source: str) -> None:
    report = check({"a.py": IMPORT + source.format(LOAD)})
    assert (report.findings, report.notes, report.counts.clips) == ([], [], 1)
