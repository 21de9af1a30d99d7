"""`unified-clip explain`, the command: its text, its options, and what it rejects."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from unified_clip import cli, record
from unified_clip.config.explain import describe
from unified_clip.numpy import clip_by_global_norm

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
        "The configurations differ in: threshold, but the results of all examples are identical.",
        "threshold: 1 (a.toml), 1.0000000000000002 (next.toml)",
    ],
    "a.toml b.yaml": [
        "The configurations differ in: eps, the result if the norm is not finite.",
        "eps: 1e-06 (a.toml), 0 (b.yaml)",
        "Example: gradients of norm 1 (at the threshold)",
        "Example: gradients with an infinity",
    ],
    "excluding.toml a.toml": [
        f"The configurations differ in: parameters. {SELECTION}",
        "parameters: *, except *.bias (excluding.toml), * (a.toml)",
        f"excluding.toml and a.toml {NOT_FINITE}",
        f"excluding.toml Parameters named *, except *.bias: {RULE}",
        f"a.toml {RULE}",
        "Example: all groups together",
        "Example: dense.bias, conv.bias: gradients with an infinity",
    ],
    "ds.json a.toml --from deepspeed@0.19.6": [
        "threshold: 0.5 (ds.json), 1 (a.toml)",
        "With fp16, DeepSpeed skips",
        "Example: gradients of norm 10",
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
    assert printed.count("Example:") == sum("Example:" in text for text in PRINTED[command]), "one of each kind"
    assert "not finite: " not in printed, "a sentence about a file says this"


@pytest.mark.parametrize("file", ["a.toml", "excluding.toml", "ds.json"])
def test_six_sentences_describe_a_file(files: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    assert cli.main(["explain", file]) == 0
    printed = " ".join(capsys.readouterr().out.partition("Note:")[0].split())
    assert printed.count(". ") + printed.endswith(".") <= 6


def test_the_data_of_a_comparison_have_the_same_examples(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "excluding.toml", "a.toml", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    examples = [[row["of"] for row in rows] for rows in (data["a"]["worked"], data["b"]["worked"], data["compared"])]
    assert examples[0] == examples[1] == examples[2]
    names = [[list(row["results"] or {}) for row in data[side]["worked"]] for side in "ab"]
    assert names[0] == names[1]
    assert data["summary"].startswith(f"{SELECTION.removesuffix('.')}; ")


@pytest.mark.parametrize("threshold", ["0.1", "0.5", "1.0", "0.3", "3e-5", "123456.7", "inf"])
def test_norms_of_examples_have_few_digits(files: Path, capsys: pytest.CaptureFixture[str], threshold: str) -> None:
    """The examples are float32: measured in float64, their norm at the threshold has other digits."""
    Path("t.toml").write_text(f'rule = "global_norm"\nthreshold = {threshold}\nfamily = "paddle"\n', encoding="utf-8")
    assert cli.main(["explain", "t.toml", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["worked"]
    unchanged = [row for row in rows if row["outcome"] == "unchanged"]
    assert unchanged
    for row in unchanged:
        assert describe.number_text(row["norm_clipped"]) == describe.number_text(row["norm"])
    if threshold != "inf":
        assert describe.number_text(rows[1]["norm"]) == describe.number(float(threshold))


def test_different_numbers_are_printed_with_different_digits() -> None:
    single = np.float32(0.5)
    shown = [
        describe.number_text(float(each))
        for each in (single, np.nextafter(single, 1), 0.5 + 2**-27, math.nan, math.inf)
    ]
    assert shown == ["0.5", "0.50000006", "0.500000007", "nan", "inf"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["absent.toml"], "UC101"),
        (["a.toml", "absent.json"], "UC101"),
        (["a.toml", "--gradients", "g.npz"], "UC202"),
        (["a.toml", "--step=3"], "UC202"),
    ],
)
def test_an_invalid_command_is_rejected(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: str
) -> None:
    assert cli.main(["explain", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"unified-clip: error {code}")


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with record(path):
        for step in range(40):
            clip_by_global_norm([np.float32([9.0 if step in (30, 31) else 1 + 0.1 * (step % 5)])], math.inf)
    return path


def test_explain_applies_a_configuration_to_a_recorded_run(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed, adaptive = tmp_path / "fixed.toml", tmp_path / "adaptive.toml"
    fixed.write_text('rule = "global_norm"\nthreshold = 1.25\n')
    adaptive.write_text('rule = "global_norm"\nthreshold = 2.0\n[adaptive]\nrule = "ema_ratio"\n')
    command = ["explain", str(fixed), str(adaptive), "--recorded", str(recording), "--format", "json"]
    assert cli.main(command) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["a"]["sentences"][-1] == (
        "With the norms recorded in run.jsonl, this configuration clips 45 % of 40 norms, at thresholds from 1.25 to "
        "1.25."
    )
    assert data["b"]["sentences"][-1] == (
        "With the norms recorded in run.jsonl, this configuration clips 5 % of 40 norms, at thresholds from 2 to 2."
    )
    assert cli.main(["explain", str(adaptive), "--recorded", str(recording)]) == 0
    assert "this configuration clips 5 % of 40 norms" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ('rule = "norm"\nthreshold = 1.0', "rule = 'norm'"),
        ('rule = "global_norm"\nthreshold = 1.0\nexclude = ["*.bias"]', "exclude"),
        ('rule = "global_norm"\nthreshold = 1.0\ninclude = ["*.bias"]', "include"),
        (
            'rule = "global_norm"\nthreshold = 1.0\n[[groups]]\nname = "a"\ninclude = ["*.bias"]\nthreshold = 2.0',
            "groups",
        ),
        ('rule = "global_norm"\nthreshold = 1.0\nnorm_type = 1', "norm_type = 1"),
        (
            'rule = "global_norm"\nthreshold = {schedule = "linear", start = 1.0, end = 2.0, steps = 9}',
            "a threshold with a schedule",
        ),
    ],
)
def test_a_recorded_run_needs_one_threshold_for_the_total_norm(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str], text: str, setting: str
) -> None:
    (tmp_path / "clip.toml").write_text(text)
    assert cli.main(["explain", str(tmp_path / "clip.toml"), "--recorded", str(recording)]) == 2
    assert (
        f"{tmp_path / 'clip.toml'} has {setting}, which --recorded does not support. Remove --recorded"
        in capsys.readouterr().err
    )


def test_a_file_that_is_no_recording_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clip.toml").write_text('rule = "global_norm"\nthreshold = 1.0')
    for name, message in (("missing.jsonl", "no such file"), ("clip.toml", "is not a complete recording")):
        assert cli.main(["explain", str(tmp_path / "clip.toml"), "--recorded", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
