"""Code that changes the settings of a loaded `ClipConfig`."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

HEAD = 'import copy\n\nfrom unified_clip import ClipConfig\n\nclip = ClipConfig.load("clip.toml")\n'


@pytest.mark.parametrize("line", [
    'clip = clip.model_copy(update={"threshold": 0.1})',
    "clip = clip.model_copy(update=changes)",
    "clip = clip.model_copy(**changes)",
    'clip = clip.copy(update={**changes, "other": 1})',
    'clip = ClipConfig.model_validate({**clip.model_dump(), "threshold": 0.1})',
    "clip = ClipConfig.model_construct(threshold=0.1)",
    "clip = ClipConfig.loads(text)",
    "clip = copy.replace(clip, threshold=0.1)",
])  # fmt: skip
def test_code_that_changes_a_configuration_is_unknown(check: Check, line: str) -> None:
    finding = only_finding(check({"a.py": f"{HEAD}{line}\ngrads = clip(gradients)\n"}))
    assert (finding.kind, finding.line) == ("unknown", 6)


@pytest.mark.parametrize("line", [
    "other = clip.model_copy()",
    'other = sweep.model_copy(update={"seed": 1})',
    "shape = array.copy()",
    'other = ClipConfig.loads(\'rule = "global_norm"\\nthreshold = 1.0\\nfamily = "pytorch"\')\nx = other(gradients)',
])  # fmt: skip
def test_other_code_is_no_change(check: Check, line: str) -> None:
    assert check({"a.py": f"{HEAD}{line}\ngrads = clip(gradients)\n"}).findings == []


def test_a_constant_text_is_compared(check: Check) -> None:
    line = "other = ClipConfig.loads('rule = \"global_norm\"\\nthreshold = 2.0')\nx = other(gradients)"
    assert only_finding(check({"a.py": f"{HEAD}{line}\ngrads = clip(gradients)\n"})).kind == "drift"


def test_a_threshold_that_exec_may_change_is_unknown(check: Check) -> None:
    lines = "limit = 1.0\n{}clip = ClipConfig(rule='global_norm', threshold=limit)\ngrads = clip(gradients)\n"
    source = f"from unified_clip import ClipConfig\n\n{lines}"
    assert check({"a.py": source.format("exec('seed = 1')\n")}).findings == []
    assert only_finding(check({"a.py": source.format("exec(open('configurator.py').read())\n")})).kind == "unknown"
