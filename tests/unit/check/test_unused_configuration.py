"""A `ClipConfig` that Python source makes and never uses."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

IMPORT = "from unified_clip import ClipConfig\n\n"
LOAD = 'ClipConfig.load("clip.toml")'
OWN = 'ClipConfig(rule="global_norm", threshold=1.0)'


@pytest.mark.parametrize("make", [LOAD, OWN])
def test_a_function_that_never_uses_its_configuration_does_not_clip(check: Check, make: str) -> None:
    finding = only_finding(check({"a.py": f"{IMPORT}def step(grads):\n    clip = {make}\n    return grads\n"}))
    assert (finding.kind, finding.line) == ("unknown", 4)
    assert finding.does.startswith("The function never uses the configuration clip, so the configuration clips")
    assert finding.edit.endswith("clip(gradients). Clipping then changes your training results.")


@pytest.mark.parametrize(
    "source", ["clip = {}\n", "class A:\n    clip = {}\n", "def make(self):\n    self.clip = {}\n"]
)
def test_a_configuration_that_no_file_names_does_not_clip(check: Check, source: str) -> None:
    other_module = "import torch\n\n\ndef step(clip):\n    torch.clamp(clip, 1)  # a.clip\n"
    finding = only_finding(check({"team/a.py": IMPORT + source.format(LOAD), "b.py": other_module}))
    assert (finding.kind, finding.path) == ("unknown", "team/a.py")
    assert finding.does.startswith("No checked file uses the configuration clip, so the configuration clips nothing.")


def test_a_configuration_without_a_name_does_not_clip(check: Check) -> None:
    assert only_finding(check({"a.py": f"{IMPORT}{LOAD}\n"})).does.startswith(
        "This line creates a configuration that no code uses"
    )


@pytest.mark.parametrize("module", [
    "from team.a import clip\n\ngrads = clip(grads)\n",
    "from .a import clip as c\n\ngrads = c(grads)\n",
    "from team.a import *\n\ngrads = clip(grads)\n",
    "import team.a\n\ngrads = team.a.clip(grads)\n",
    "from team import a as settings\n\ngrads = settings.clip(grads)\n",
    "import importlib\n\ngrads = importlib.import_module('team.a').clip(grads)\n",
])  # fmt: skip
def test_a_configuration_that_another_module_uses_is_a_note(check: Check, module: str) -> None:
    report = check({"team/a.py": IMPORT + f"clip = {LOAD}\n", "team/b.py": module})
    assert report.findings == []
    assert report.notes == [
        "team/a.py:3 unified_clip.ClipConfig.load: This file does not use clip, so clip has no effect here."
    ]


@pytest.mark.parametrize("module", [
    "from team.a import clip\n",  # the line that clips was removed
    "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\nclip.clip_(model)\n",  # another team's
])  # fmt: skip
def test_the_name_in_another_module_is_no_use(check: Check, module: str) -> None:
    assert only_finding(check({"team/a.py": IMPORT + f"clip = {LOAD}\n", "b.py": module})).path == "team/a.py"


def test_an_import_that_another_module_passes_on_is_followed(check: Check) -> None:
    files = {"team/a.py": IMPORT + f"clip = {LOAD}\n", "team/__init__.py": "from .a import clip\n"}
    assert only_finding(check(files)).kind == "unknown"
    assert check({**files, "b.py": "from team import clip\n\ngrads = clip(grads)\n"}).findings == []


def test_an_attribute_that_another_module_reads_is_a_note(check: Check) -> None:
    report = check({"a.py": f"{IMPORT}def make(self):\n    self.clip = {LOAD}\n", "b.py": "grads = self.clip(grads)\n"})
    assert (report.findings, len(report.notes)) == ([], 1)


def test_a_configuration_that_is_never_used_is_not_the_clip_that_is_required(check: Check) -> None:
    clip = CLIP_CONFIG + '\n[check]\nrequire = ["a.py"]\n'
    files = {"a.py": f"{IMPORT}clip = {LOAD}\n", "b.py": f"{IMPORT}grads = {LOAD}(grads)\n"}
    assert {each.kind for each in check(files, clip).findings} == {"missing", "unknown"}
    assert check({**files, "a.py": files["a.py"] + "grads = clip(grads)\n"}, clip).findings == []


@pytest.mark.parametrize(
    "source",
    [
        "clip = {}\n\n\ndef step(grads):\n    return clip(grads)\n",
        "def step(grads):\n    clip = {}\n    return [clip(each) for each in grads]\n",
        "def make():\n    clip = {}\n    return locals()\n",
        "clip = {}\n\n\ndef step(grads):\n    return globals()['clip'](grads)\n",
        "clip = {}\neval('grads = clip(grads)')\n",
        "def step(grads):\n    clip = {}\n    rule = clip\n    return rule(grads)\n",
        "def make():\n    global clip\n    clip = {}\n\n\ndef step(grads):\n    return clip(grads)\n",
        "def f():\n    clip = None\n    def g():\n        nonlocal clip\n        clip = {}\n    return clip, g\n",
        "def make(self):\n    clip = {}\n    self.state['clip'] = clip\n",
        "clip = {}\nhook = functools.partial(step, clip=clip)\n",
        "clip = {}\nclip_model = clip.clip_\n",
        "clip = {}\nfor rule in [clip]:\n    rule(grads)\n",
        "class Settings:\n    clip = {}\n    clips = [clip]\n",
        "class Settings:\n    clip = {}\n\ngrads = Settings().clip(grads)\n",
        "def make(self):\n    self.clip = {}\n    getattr(self, 'clip')(grads)\n",
        "def make():\n    return {}\n",
        "def make(optimizer):\n    {}.attach_to(optimizer)\n",
        "train(clip={})\n",
    ],
)
def test_a_configuration_that_may_be_used_is_no_finding(check: Check, source: str) -> None:
    report = check({"a.py": IMPORT + source.format(LOAD)})
    assert (report.findings, report.notes, report.counts.clips) == ([], [], 1)


@pytest.mark.parametrize(
    "read",
    [
        "print(vars(args))",
        "def main():\n    return locals()",
        "print(globals())",
        "keys = [k for k, v in globals().items() if v]\nsave({k: globals()[k] for k in keys})",
        "eval('1 + 1')",
        "exec(code)",
        "print(clip)",
        "print(f'clips by {clip}')",
        "log.info('%s', clip)",
        "assert clip",
        "assert clip.threshold == 1.0",
        "threshold = clip.threshold",
        "save(clip.model_dump())",
        "__all__ = ['clip']",
        "rule = clip",
        "def step(clip, grads):\n    return clip(grads)",
        "if clip:\n    train()",
    ],
)
def test_code_that_only_reads_a_configuration_does_not_clip(check: Check, read: str) -> None:
    finding = only_finding(check({"a.py": f"{IMPORT}clip = {LOAD}\n{read}\n"}))
    assert (finding.kind, finding.line) == ("unknown", 3)
    assert finding.does.startswith("No checked file uses the configuration clip, so the configuration clips nothing.")


@pytest.mark.parametrize("read", ["advantages.clip(-1, 1)", "print(self.clip)", "vars(x)"])
def test_code_that_only_reads_an_attribute_does_not_clip(check: Check, read: str) -> None:
    source = f"import numpy as np\n{IMPORT}def make(self):\n    self.clip = {LOAD}\n    {read}\n"
    assert only_finding(check({"a.py": source})).kind == "unknown"


def test_a_file_that_uses_the_configuration_of_another_module_has_a_clip(check: Check) -> None:
    clip = CLIP_CONFIG + '\n[check]\neach = ["*.py"]\nrequire = ["fit.py"]\n'
    policy = {"policy.py": f"{IMPORT}clip = {LOAD}\n"}
    fit = "import keras\nfrom policy import clip\n\noptimizer = keras.optimizers.Adam(1e-3)\n"
    assert check({**policy, "fit.py": f"{fit}clip.attach_to(optimizer)\n"}, clip).findings == []
    removed = check({**policy, "fit.py": f"{fit}print(clip)\n"}, clip).findings
    assert sorted(each.kind for each in removed) == ["missing", "missing", "unknown"]
