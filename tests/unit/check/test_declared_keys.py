"""Keys that an entry of `check.key` declares are compared, in every kind of file."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

from unified_clip.check.rules.settings import MAY_BE_OFF
from unified_clip.errors import ConfigError

LINE = "{}optim.grad_clip = {}\n"
FILES = {
    "attribute.py": "import ml_collections\n\nconfig = ml_collections.ConfigDict()\n" + LINE.format("config.", "{}"),
    "variable.py": "optim = config.optim\n" + LINE.format("", "{}"),
    "item.py": "config['optim']['grad_clip'] = {}\n",
    "dict.py": "config = dict(optim=dict(lr=0.1, grad_clip={}))\n",
    "literal.py": "CONFIG = {{'optim': {{'grad_clip': {}}}}}\n",
    "field.py": "class optim:\n    grad_clip: float = {}\n",
    "a.yaml": "model: x\noptim:\n  lr: 0.1\n  grad_clip: {}\n",
    "a.json": '{{"runs": [{{"optim": {{"grad_clip": {}}}}}]}}\n',
    "a.toml": "[optim]\ngrad_clip = {}\n",
    "run.sh": "python main.py --optim.grad-clip={}\n",
    "a.gin": "import x\n" + LINE.format("", "{}"),
    "a.config": "train {{ optim.grad_clip: {} }}\n",
}
KEY = '\n[[check.key]]\npath = "*"\nkey = "optim.grad_clip"\nrule = "{}"\n'
CONFIG = CLIP_CONFIG + KEY.format("global_norm")


def results(check: Check, name: str, value: object, config: str = CONFIG) -> list[str]:
    return [each.result for each in check({name: FILES[name].format(value)}, config).clips]


@pytest.mark.parametrize("name", FILES)
def test_a_declared_key_is_compared_in_every_kind_of_file(check: Check, name: str) -> None:
    assert results(check, name, 1.0) == ["same"]
    assert results(check, name, 5.0) == ["drift"]
    assert results(check, name, 1.0, CLIP_CONFIG + KEY.format("value")) == ["drift"]
    finding = only_finding(check({name: FILES[name].format(5.0)}, CONFIG))
    assert (finding.line, finding.clip) == (FILES[name].format(5.0).count("\n"), finding.clip)
    assert finding.clip.replace("-", "_").endswith("optim.grad_clip = 5.0")


@pytest.mark.parametrize("name", FILES)
def test_a_value_of_off_is_no_clip(check: Check, name: str) -> None:
    off = f"{CONFIG}off = [-1]\n"
    assert results(check, name, -1, CONFIG) == ["unknown"]
    finding = only_finding(check({name: FILES[name].format(-1)}, off))
    assert ("rule", "none") in [(each.about, each.found) for each in finding.differences]
    entry = f'{off}[[check.ignore]]\npath = "*"\nrule = "none"\nreason = "a baseline"\n'
    assert results(check, name, -1, entry) == ["ignored"]
    assert results(check, name, 5.0, entry) == ["drift"]


@pytest.mark.parametrize("name", ["attribute.py", "dict.py", "run.sh"])
def test_a_value_that_only_a_run_knows_is_unknown(check: Check, name: str) -> None:
    assert results(check, name, "$CLIP" if name == "run.sh" else "clip(x)") == ["unknown"]


@pytest.mark.parametrize(
    "entry", ['rule = "none"', 'rule = "global_norm"\noff = [null]', 'rule = "norm"\nthreshold = 1']
)
def test_an_entry_that_says_nothing_about_a_clip_is_rejected(check: Check, entry: str) -> None:
    with pytest.raises(ConfigError, match=r"check|TOML"):
        check(FILES, CLIP_CONFIG + KEY.format("norm").replace('rule = "norm"', entry))


def test_a_file_that_cannot_be_read_is_unknown(check: Check) -> None:
    finding = only_finding(check({"a.yaml": "optim: {\n", "ok.yaml": FILES["a.yaml"].format(1.0)}, CONFIG))
    assert (finding.kind, finding.path) == ("unknown", "a.yaml")


@pytest.mark.parametrize("comment", ["# was lr, optim.grad_clip: 20.0\n", "; optim.grad_clip = 20.0\n"])
def test_a_comment_is_no_setting(check: Check, comment: str) -> None:
    assert check({"a.gin": comment + FILES["a.gin"].format(1.0)}, CONFIG).findings == []


@pytest.mark.parametrize("name", ["attribute.py", "a.yaml", "a.json"])
def test_a_number_that_no_float_can_hold_is_unknown(check: Check, name: str) -> None:
    assert results(check, name, 10**399) == ["unknown"]


def test_a_value_that_may_be_off_is_no_setting_without_a_reader(check: Check) -> None:
    train = 'import torch\ndef train(config, ps):\n    torch.nn.utils.clip_grad_norm_(ps, config["grad_clip"])\n'
    findings = check({"train.py": train, "a.yaml": "grad_clip: -1\n", "b.yaml": "other_grad_clip: -1\n"}).findings
    reasons = {each.path: each.does for each in findings}
    assert (MAY_BE_OFF in reasons["a.yaml"], MAY_BE_OFF in reasons["b.yaml"]) == (True, False)


def test_json_with_comments_keeps_its_lines_and_texts(check: Check) -> None:
    text = '{\n/* of the first\n experiment */\n"limit": "a,]", // x\n"lr": 5.0,\n}\n'
    declared = CLIP_CONFIG + KEY.format("norm").replace("optim.grad_clip", "limit")
    finding = only_finding(check({"a.json": text}, declared))
    assert (finding.line, finding.clip) == (4, "limit = 'a,]'")
