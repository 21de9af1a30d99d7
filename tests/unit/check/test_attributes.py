"""Thresholds in attributes of an object, such as `self.max_grad_norm`, that `__init__` or the class sets."""

from __future__ import annotations

import pytest
from support.config.check_files import Check, only_finding

TRAINER = """\
import torch

LIMIT = 0.5


class Trainer:
    def __init__(self, model, max_grad_norm: float = 0.5):
        self.model = model
        self.limit = max_grad_norm

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)
"""
SET = "        self.limit = max_grad_norm\n"
DEFAULT = "torch.nn.utils.clip_grad_norm_ by default: Trainer.max_grad_norm is not passed"
CLIP = "torch.nn.utils.clip_grad_norm_"


@pytest.mark.parametrize(("old", "new", "clip"), [
    ("", "", DEFAULT),
    ("model, max_grad_norm", "model, *, max_grad_norm", DEFAULT),
    (SET, f"        super().__init__(model, max_grad_norm)\n{SET}", DEFAULT),
    ("= max_grad_norm", "= 0.5", CLIP),
    ("= max_grad_norm", "= LIMIT", CLIP),
    (f"model\n{SET}", "model\n", CLIP),
])  # fmt: skip
def test_a_default_and_a_constant_are_the_threshold(check: Check, old: str, new: str, clip: str) -> None:
    source = TRAINER.replace(old, new)
    in_class = "Trainer:\n    limit = 0.5\n"
    source = source if "self.limit =" in source else source.replace("Trainer:\n", in_class)
    finding = only_finding(check({"a.py": source}))
    assert (finding.kind, finding.clip) == ("drift", clip)
    assert check({"a.py": source.replace("0.5", "1.0")}).findings == []


@pytest.mark.parametrize("code", [
    "Trainer(model)\n",
    "import a\n\na.Trainer(model)\n",
    "from a import Trainer\n\n\ndef run(x: Trainer | None) -> Trainer:\n    assert isinstance(x, Trainer)\n",
    "class Other:\n    def __init__(self):\n        self.limit = 3\n",
    "Other(model, max_grad_norm=x)\n",
    '"""Not Trainer."""\n\nsetattr(other, "limit", x)\nother.limit = x\n',
])  # fmt: skip
def test_other_code_that_does_not_set_the_threshold_keeps_it(check: Check, code: str) -> None:
    assert only_finding(check({"sub/a.py": code, "a.py": TRAINER})).clip == DEFAULT


OTHERS = [
    "from a import Trainer\n\nTrainer(model, limit())\n",
    "from a import Trainer\n\nTrainer(*settings)\n",
    "from a import Trainer\n\nTrainer(model, max_grad_norm=limit())\n",
    "from a import Trainer\n\nTrainer(model, **settings)\n",
    "from a import Trainer as T\n\nT(model, limit())\n",
    "from a import Trainer\n\nmake = partial(Trainer, max_grad_norm=limit())\n",
    "from a import Trainer\n\nTRAINERS = {'a': Trainer}\n",
    "from a import Trainer\n\ntrainer = Trainer(model)\ntrainer.limit = limit()\n",
    "from a import Trainer\n\ntrainer = Trainer(model)\nsetattr(trainer, 'limit', limit())\n",
    "from a import Trainer\n\ntrainer = Trainer(model)\nvars(trainer).update(settings)\n",
    "from a import Trainer\n\ntrainer = Trainer(model)\ntrainer.__dict__ = settings\n",
    "from a import Trainer\n\n\nclass Own(Trainer):\n    limit = settings()\n",
    "from a import Trainer\n\n\nclass A(Trainer):\n    def __init__(self, m):\n        super().__init__(m, limit())\n",
]


@pytest.mark.parametrize("code", OTHERS)
def test_other_code_that_may_set_the_threshold_makes_it_unknown(check: Check, code: str) -> None:
    finding = only_finding(check({"sub/a.py": code, "a.py": TRAINER}))
    assert finding.kind == "unknown"
    assert finding.does.startswith("The threshold, self.limit, is only known at run time.")
    assert only_finding(check({"a.py": f"{TRAINER}\n\n{code}"})).kind == "unknown"


def test_a_class_that_derives_from_the_class_in_another_file_may_get_the_threshold(check: Check) -> None:
    files = {
        "a.py": TRAINER,
        "b.py": "from a import Trainer\n\n\nclass Middle(Trainer):\n    pass\n",
        "own.py": "from b import Middle\n\n\nclass Own(Middle):\n    pass\n",
    }
    assert only_finding(check({**files, "c.py": "from own import Own\n\nOwn(model)\n"})).clip == DEFAULT
    finding = only_finding(check({**files, "c.py": "from own import Own\n\nOwn(model, max_grad_norm=limit())\n"}))
    assert finding.kind == "unknown"


@pytest.mark.parametrize(("old", "new"), [
    (SET, f"        max_grad_norm = max_grad_norm * 2\n{SET}"),
    (SET, f"{SET}{SET}"),
    (": float = 0.5", ""),
    ("= 0.5):", "= None):"),
    ("class Trainer", "@register\nclass Trainer"),
    ("def __init__(self, model, max_grad_norm: float = 0.5):", "limit = 0.5\n\n    def set(self, max_grad_norm):"),
    ("    def step", "    @classmethod\n    def of(cls, limit):\n        return cls(None, limit)\n\n    def step"),
    ("    def step", "    def set(self, limit):\n        self.limit = limit\n\n    def step"),
])  # fmt: skip
def test_a_threshold_that_the_class_may_change_is_unknown(check: Check, old: str, new: str) -> None:
    assert only_finding(check({"a.py": TRAINER.replace(old, new)})).kind == "unknown"


def test_a_default_of_0_is_unknown_and_shown(check: Check) -> None:
    finding = only_finding(check({"a.py": TRAINER.replace("= 0.5):", "= 0.0):")}))
    assert (finding.kind, "The default of Trainer.max_grad_norm is 0.0." in finding.does) == ("unknown", True)
