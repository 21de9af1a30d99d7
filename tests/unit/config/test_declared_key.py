"""`config import --key` and `explain --key` read a key of the user's own code, as `check.key` declares it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from unified_clip import ClipConfig, cli

FILES = {
    "a.yaml": "model: a\noptim:\n  grad_clip: 5.0\n",
    "lazy.py": "train = dict(\n    clip_grad=dict(params=dict(max_norm=0.1, norm_type=2)),\n)\n",
    "p.pbtxt": "optimizer {\n  gradient_clipping_by_norm: 10.0\n}\n",
    "off.py": "config.optim.grad_clip = -1\n",
    "gan.json": '{"gen": {"clip": 1}, "disc": {"clip": 2}, "other": {"clip": 1.0}}',
    "word.toml": '[optim]\ngrad_clip = "auto"\n',
}
GLOBAL = "--rule global_norm"

READ = [
    # a command, the settings, and the line of the note
    (f"a.yaml --key optim.grad_clip {GLOBAL}", {"rule": "global_norm", "threshold": 5.0}, 3),
    ("a.yaml --key optim.grad-clip --rule value", {"rule": "value", "threshold": 5.0}, 3),
    (f"a.yaml --key *.grad_clip {GLOBAL} --off 5", {"rule": "none"}, 3),
    (
        f"lazy.py --key clip_grad.params.max_norm {GLOBAL} --family paddle",
        {"rule": "global_norm", "threshold": 0.1, "family": "paddle"},
        2,
    ),
    ("p.pbtxt --key gradient_clipping_by_norm --rule norm", {"rule": "norm", "threshold": 10.0}, 2),
    (f"off.py --key optim.grad_clip {GLOBAL} --off 0 --off -1", {"rule": "none"}, 1),
    (f"gan.json --key disc.clip {GLOBAL}", {"rule": "global_norm", "threshold": 2.0}, 1),
    (f"word.toml --key optim.grad_clip {GLOBAL} --off auto", {"rule": "none"}, 2),
]

REJECTED = [
    # a command, the code of its error, and what the message names
    (f"a.yaml --key optim.clip {GLOBAL}", "UC104", "a.yaml: no key ends with optim.clip"),
    (f"a.yaml --key optim {GLOBAL}", "UC104", "no key ends with optim"),
    (f"gan.json --key clip {GLOBAL}", "UC104", "gen.clip = 1 (line 1), disc.clip = 2 (line 1)"),
    (f"off.py --key optim.grad_clip {GLOBAL}", "UC104", "off.py, line 1, config.optim.grad_clip = -1"),
    (f"word.toml --key optim.grad_clip {GLOBAL}", "UC104", "word.toml, line 2, optim.grad_clip = 'auto'"),
    (f"b.yaml --key optim.grad_clip {GLOBAL}", "UC207", "b.yaml"),
    ("a.yaml --key optim.grad_clip", "UC202", "--rule"),
    ("a.yaml --rule norm", "UC202", "--rule applies to --key only"),
    (f"a.yaml --key optim.grad_clip {GLOBAL} --from hf", "UC202", "--from"),
]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize(("command", "settings", "line"), READ)
def test_a_declared_key_is_read(
    capsys: pytest.CaptureFixture[str], command: str, settings: dict[str, Any], line: int
) -> None:
    assert cli.main(["config", "import", *shlex.split(command)]) == 0
    data = ClipConfig.loads(capsys.readouterr().out).data()
    provenance = data.pop("provenance")
    assert data == {"version": 1} | settings
    assert (provenance["file"], f"(line {line})" in provenance["notes"][0]) == (command.split()[0], True)
    assert cli.main(["explain", *shlex.split(command), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == provenance["notes"]


@pytest.mark.parametrize(("command", "code", "named"), REJECTED)
def test_an_undecided_key_is_rejected(capsys: pytest.CaptureFixture[str], command: str, code: str, named: str) -> None:
    for action in (["config", "import"], ["explain"]):
        assert cli.main([*action, *shlex.split(command)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"unified-clip: error {code}: ")
        assert named in error
