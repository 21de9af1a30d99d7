"""`unified-clip explain`, the command: its text, its options, and what it rejects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unified_clip import cli

FILES = {
    "a.toml": 'rule = "global_norm"\nthreshold = 1.0\n',
    "same.toml": 'rule = "global_norm"\nthreshold = 1\neps = 1e-6\n',
    "next.toml": 'rule = "global_norm"\nthreshold = 1.0000000000000002\n',
    "excluding.toml": 'rule = "global_norm"\nthreshold = 1.0\nexclude = ["*.bias"]\n',
    "b.yaml": "rule: global_norm\nthreshold: 1.0\nfamily: tensorflow\n",
    "ds.json": '{"train_batch_size": 8, "gradient_clipping": 0.5}',
}

RULE = "Multiply all gradients by min(1, c / (n + 1e-06)) with c = 1."
NOT_FINITE = "If the norm is infinite, finite gradients become 0, and infinite gradients become NaN."
SELECTION = "excluding.toml leaves *.bias unclipped, but a.toml clips all parameters."

PRINTED = {
    "a.toml": ["a.toml", RULE, NOT_FINITE],
    "a.toml same.toml": ["Both configurations have the same effect."],
    "a.toml next.toml": [
        "The configurations differ in: threshold.",
        "threshold: 1 (a.toml), 1.0000000000000002 (next.toml)",
    ],
    "a.toml b.yaml": [
        "The configurations differ in: eps, the result if the norm is not finite.",
        "eps: 1e-06 (a.toml), 0 (b.yaml)",
    ],
    "excluding.toml a.toml": [
        f"The configurations differ in: parameters. {SELECTION}",
        "parameters: *, except *.bias (excluding.toml), * (a.toml)",
        f"excluding.toml and a.toml {NOT_FINITE}",
        f"excluding.toml Parameters named *, except *.bias: {RULE}",
        f"a.toml {RULE}",
    ],
    "ds.json a.toml --from deepspeed@0.19.6": [
        "threshold: 0.5 (ds.json), 1 (a.toml)",
        "With fp16, DeepSpeed skips",
    ],
}
"""For each command, parts of its output in their order."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", PRINTED)
def test_the_command_prints_what_files_do_and_how_they_differ(
    files: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert cli.main(["explain", *command.split()]) == 0
    printed = rest = " ".join(capsys.readouterr().out.split())
    for text in PRINTED[command]:
        assert text in rest, (text, printed)
        rest = rest.partition(text)[2]
    assert "not finite: " not in printed, "a sentence about a file says this"


@pytest.mark.parametrize("file", ["a.toml", "excluding.toml", "ds.json"])
def test_six_sentences_describe_a_file(files: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert cli.main(["explain", file]) == 0
    printed = " ".join(capsys.readouterr().out.partition("Note:")[0].split())
    assert printed.count(". ") + printed.endswith(".") <= 6


def test_the_data_of_a_comparison_have_what_the_text_prints(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "excluding.toml", "a.toml", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (set(data), set(data["a"])) == (
        {"a", "b", "same", "differences", "effect", "summary"},
        {"name", "sentences", "notes"},
    )
    assert data["effect"] == SELECTION
    assert data["differences"] == [{"about": "parameters", "a": "*, except *.bias", "b": "*"}]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.toml"], "UC101"),
        (["a.toml", "absent.json"], "UC101"),
        (["a.toml", "--gradients", "g.npz"], "UC202"),
        (["a.toml", "--step=3"], "UC202"),
        (["a.toml", "--recorded", "run.jsonl"], "UC202"),
    ],
)
def test_an_invalid_command_is_rejected(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert cli.main(["explain", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"unified-clip: error {code}")
