"""`unified-clip config check` on calls of a `ClipConfig` through other names: aliases, attributes and clippers."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, IGNORE, Check, only_finding

BEFORE = 'from unified_clip import ClipConfig\n\nCLIP = ClipConfig.load("clip.toml")\n\n\n'
NAMES = {
    "clip": "clip = CLIP",
    "clipper": "clipper = CLIP.clipper(names=model)",
    "self.grad_clip": "self.grad_clip: object = CLIP if model else None",
    "clip_d": "clip_g, clip_d = CLIP.clipper(model.g), CLIP.clipper(model.d)",
}


def step(make: str, call: str) -> dict[str, str]:
    return {"a.py": f"{BEFORE}def step(self, model, gradients, tensors):\n    {make}\n    return [{call}]\n"}


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_is_one_clip_under_every_name(check: Check, name: str) -> None:
    report = check(step(NAMES[name], f"{name}.clip_(model.named_parameters())"))
    assert (report.findings, [each.result for each in report.clips]) == ([], ["same"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tensors", ["[p.grad for p in model.parameters()]", "tensors[1:]"])
def test_a_call_under_every_name_has_to_clip_all_parameters(check: Check, name: str, tensors: str) -> None:
    finding = only_finding(check(step(NAMES[name], f"{name}.clip_({tensors})")))
    assert (finding.kind, finding.clip) == ("unknown", "unified_clip.ClipConfig.clip_")


IMPORTS = {"CLIP": "from policy import CLIP", "c": "from policy import CLIP as c", "policy.CLIP": "import policy"}


@pytest.mark.parametrize("name", IMPORTS)
def test_an_imported_configuration_is_the_clip_of_both_files(check: Check, name: str) -> None:
    text = f"{IMPORTS[name]}\n\n\ndef step(gradients):\n    return {name}(gradients)\n"
    config = f'{CLIP_CONFIG}\n[check]\nrequire = ["team/*.py"]\n'
    assert check({"policy.py": BEFORE, "team/a.py": text}, config).findings == []
    dropped = text.replace("return ", "")
    finding = only_finding(check({"policy.py": BEFORE, "team/a.py": dropped}, config))
    assert (finding.kind, finding.path, finding.clip) == ("unknown", "team/a.py", "unified_clip.ClipConfig.__call__")


@pytest.mark.parametrize(("use", "kinds"), [("", ["unknown"]), ("print(clip)\n", []), ("def f(): return clip\n", [])])
def test_a_configuration_that_no_code_reads_clips_nothing(check: Check, use: str, kinds: list[str]) -> None:
    text = BEFORE.replace("CLIP", "clip") + use
    assert [each.kind for each in check({"a.py": text}).findings] == kinds
    config = f'{CLIP_CONFIG}\n[check]\nrequire = ["a.py"]\n{IGNORE.format("a.py")}'
    required = [each.clip for each in check({"a.py": text}, config).findings if each.kind == "missing"]
    assert ('check.require "a.py"' in required) == bool(kinds), "an ignored configuration without use is no clip"
