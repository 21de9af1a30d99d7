"""Settings such as `config.grad_clip = 1.0`, and the code that reads them."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

OPTIMIZER = "import optax\n\n{}\noptimizer = optax.chain(optax.adamw(1e-3))\n"

UNREAD = {
    "a constant": "CLIP_VALUE = 1.0",
    "an attribute": "config.clip_value = 1.0",
    "a dict": "config = {'clip_value': 1.0}",
    "a field": "class Config(NamedTuple):\n    clip_value: float = 1.0",
    "an own class": "class Config:\n    pass\n\n\nconfig = Config(clip_value=1.0)",
    "an own base class": "class Base:\n    pass\n\n\nclass Config(Base):\n    clip_value = 1.0",
}

READ = {
    "a product": "CLIP_VALUE = 1.0\ncoef = CLIP_VALUE / norm",
    "an own function": "config.clip_value = 1.0\nscale(grads, config.clip_value)",
    "an item": "config = {'clip_value': 1.0}\nscale(grads, config['clip_value'])",
    "getattr": "config.clip_value = 1.0\nscale(grads, getattr(config, 'clip_value'))",
    "a library": "trainer = lib.Trainer(clip_value=1.0)",
    "a table for a library": "trainer = lib.Trainer(options={'clip_value': 1.0})",
    "a base class of a library": "class Own(lib.Config):\n    clip_value = 1.0",
}


@pytest.mark.parametrize("setting", UNREAD.values(), ids=UNREAD)
def test_a_setting_that_no_code_reads_is_no_clip(check: Check, setting: str) -> None:
    source = OPTIMIZER.format(setting)
    finding = only_finding(check({"train.py": source}))
    assert (finding.kind, "no clip reads the setting" in finding.does) == ("unknown", True)
    assert "[[check." not in finding.edit


@pytest.mark.parametrize("setting", READ.values(), ids=READ)
def test_a_setting_that_unknown_code_reads_can_be_declared(check: Check, setting: str) -> None:
    source = OPTIMIZER.format(setting)
    advice, _, entry = only_finding(check({"train.py": source})).edit.partition("\n")
    assert advice.startswith("If your own code reads this key, add to clip.toml")
    assert check({"train.py": source}, CLIP_CONFIG + entry).findings == []


def test_code_of_another_project_does_not_read_a_setting(check: Check) -> None:
    files = {"a/train.py": OPTIMIZER.format("CLIP_VALUE = 1.0"), "b/train.py": "scale(grads, CLIP_VALUE)\n"}
    assert "no clip reads the setting" in only_finding(check(files)).does
    files["a/steps/own.py"] = files.pop("b/train.py")
    assert "the code that reads the setting is unknown" in only_finding(check(files)).does


TRAINER = """import torch


class Trainer:
    @staticmethod
    def get_default_config():
        C = CN()
        C.grad_norm_clip = {}
        return C

    def run(self):
        config = self.config
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_norm_clip)
        self.optimizer.step()
"""


@pytest.mark.parametrize(
    ("value", "adder", "drifts"),
    [
        ("1.0", "1.0", []),
        ("0.5", "1.0", ["lib/trainer.py"]),
        ("1.0", "0.5", ["adder.py"]),
        ("LIMIT", "LIMIT", ["lib/trainer.py"]),
        ("0.0", "1.0", ["lib/trainer.py"]),
        ("float('inf')", "1.0", ["lib/trainer.py"]),
    ],
)
def test_a_setting_has_the_rule_of_the_clip_that_reads_it(
    check: Check, value: str, adder: str, drifts: list[str]
) -> None:
    """The clip is compared where its threshold is set. It is unknown only if no number was found."""
    files = {
        "lib/trainer.py": TRAINER.format(value),
        "adder.py": f"from lib.trainer import Trainer\n\nC.trainer.grad_norm_clip = {adder}\n",
    }
    assert [each.path for each in check(files).findings] == drifts


@pytest.mark.parametrize("folders", [("a", "b"), ("teams/a", "teams/b")])
def test_a_setting_of_another_project_has_no_rule(check: Check, folders: tuple[str, str]) -> None:
    one, other = folders
    files = {f"{team}/config.py": "class C:\n    pass\n\n\nC.grad_norm_clip = 1.0\n" for team in folders}
    files[f"{one}/train.py"] = "from config import C\n\n" + TRAINER.format("1.0")
    found = [(each.path, each.kind) for each in check(files).findings]
    assert found == ([(f"{other}/config.py", "unknown")] if one == "a" else [])


def test_an_argument_of_a_layer_is_no_setting(check: Check) -> None:
    layer = "\nlayer = torch.nn.Embedding(9, 3, max_norm=5.0)\n"
    source = TRAINER.format("1.0").replace("grad_norm_clip", "max_norm") + layer
    assert check({"lib/trainer.py": source}).findings == []
