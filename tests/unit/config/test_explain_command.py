"""`unified-clip explain`, the command: its text, its options, and what it rejects."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from unified_clip import cli, record
from unified_clip.config.explain import cli as explain_command
from unified_clip.config.explain import describe
from unified_clip.numpy import clip_by_global_norm


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text('rule = "global_norm"\nthreshold = 1.0\n', encoding="utf-8")
    (tmp_path / "b.yaml").write_text("rule: global_norm\nthreshold: 1.0\nfamily: tensorflow\n", encoding="utf-8")
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "gradient_clipping": 0.5}', encoding="utf-8")
    np.savez(tmp_path / "g.npz", w=np.array([30.0, 40.0], np.float32))
    np.savez(tmp_path / "none.npz")
    np.save(tmp_path / "one.npy", np.ones(2))
    np.savez(tmp_path / "objects.npz", w=np.array([None]))
    np.savez(tmp_path / "whole.npz", w=np.array([1], np.int64))
    np.savez(tmp_path / "nan.npz", w=np.array([math.nan]))
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "g.npz").read_bytes()[:60])
    (tmp_path / "raise.toml").write_text(
        'rule = "global_norm"\nthreshold = 1.0\nnonfinite = "raise"\n', encoding="utf-8"
    )
    return tmp_path


def test_the_command_shows_errors_that_are_raised(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "raise.toml", "--gradients", "nan.npz"]) == 0
    assert "raises" in capsys.readouterr().out
    assert cli.main(["explain", "raise.toml", "a.toml", "--gradients", "nan.npz"]) == 0
    assert "raises / nan" in capsys.readouterr().out


def test_the_command_explains_one_configuration(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "a.toml"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "a.toml Multiply all gradients by min(1, c / " in printed
    assert "coefficient" in printed


def test_the_command_compares_two_configurations(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "a.toml", "b.yaml"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "what differs" in printed
    assert printed.startswith("The results differ in 3 of 4 examples.")
    assert printed.count("identical") == 1


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ('rule = "global_norm"\nthreshold = 1\neps = 1e-6\n', "Both configurations have the same effect."),
        (
            'rule = "global_norm"\nthreshold = 1.0000000000000002\n',
            "The results are identical, but the configurations differ.",
        ),
        ('rule = "global_norm"\nthreshold = 2.0\n', "The results differ in 3 of 4 examples."),
    ],
)
def test_a_comparison_begins_with_a_verdict_that_repeats_no_row(
    files: Path, capsys: pytest.CaptureFixture[str], settings: str, verdict: str
) -> None:
    Path("other.toml").write_text(settings, encoding="utf-8")
    assert cli.main(["explain", "a.toml", "other.toml"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == verdict


@pytest.mark.parametrize("threshold", ["0.1", "0.5", "1.0", "0.3", "3e-5", "123456.7", "inf"])
def test_norms_of_examples_have_few_digits(files: Path, capsys: pytest.CaptureFixture[str], threshold: str) -> None:
    """The examples are float32: measured in float64, their norm at the threshold has other digits."""
    Path("t.toml").write_text(f'rule = "global_norm"\nthreshold = {threshold}\nfamily = "paddle"\n', encoding="utf-8")
    assert cli.main(["explain", "t.toml", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["worked"]
    unchanged = [row for row in rows if row["outcome"] == "unchanged"]
    assert unchanged
    for row in unchanged:
        assert explain_command._format_number(row["norm_clipped"]) == explain_command._format_number(row["norm"])
    if threshold != "inf":
        assert explain_command._format_number(rows[1]["norm"]) == describe.number(float(threshold))


def test_different_numbers_are_printed_with_different_digits() -> None:
    single = np.float32(0.5)
    shown = [
        describe.number_text(float(each))
        for each in (single, np.nextafter(single, 1), 0.5 + 2**-27, math.nan, math.inf)
    ]
    assert shown == ["0.5", "0.50000006", "0.500000007", "nan", "inf"]


def test_the_command_accepts_a_trainers_format_and_gradients(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["explain", "ds.json", "a.toml", "--from", "deepspeed@0.19.6", "--gradients", "g.npz", "--json"]) == 0
    )
    data = json.loads(capsys.readouterr().out)
    (compared,) = data["compared"]
    assert (compared["a"]["norm"], compared["of"]) == (50.0, "your gradients")
    assert round(compared["a"]["norm_clipped"], 5) == 0.5
    abouts = [each["about"] for each in data["differences"]]
    assert abouts == ["threshold", "the trainer's action if the norm is not finite"]
    assert data["a"]["sentences"][-1].startswith("With fp16, DeepSpeed skips")
    assert not data["same"]


def test_a_narrow_table_keeps_the_exponents_of_numbers(
    files: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    np.savez("large.npz", weight=np.full(3, 1e300), bias=np.full(1, 1000 + 1j))
    assert cli.main(["explain", "a.toml", "--gradients", "large.npz"]) == 0
    printed = capsys.readouterr().out
    assert "1.73205081e+300" in printed
    assert "…" not in printed


@pytest.mark.parametrize("version", [2, 3])
def test_the_command_reads_no_header_beyond_the_limit(
    files: Path, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    """NumPy reads a complete header, up to 4 GiB or more of a compressed file of a few MiB, before it rejects it."""
    size = 50_000_000
    with zipfile.ZipFile("long.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w.npy", b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", size) + bytes(size))
    tracemalloc.start()
    try:
        assert cli.main(["explain", "a.toml", "--gradients", "long.npz"]) == 2
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "'w' is not an array: the header has 50000000 bytes, and the limit is 20000" in capsys.readouterr().err
    assert peak < 10_000_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.toml"], "absent.toml cannot be read"),
        (["a.toml", "absent.json"], "absent.json cannot be read"),
        (["a.toml", "--gradients", "a.toml"], "a.toml: cannot read gradients: File is not a zip file"),
        (
            ["a.toml", "--gradients", "none.npz"],
            "none.npz: cannot read gradients: the file has no arrays. Save gradients with numpy.savez.",
        ),
        (["a.toml", "--gradients", "one.npy"], "one.npy: cannot read gradients: File is not a zip file"),
        (["a.toml", "--gradients", "empty.npz"], "empty.npz: cannot read gradients"),
        (["a.toml", "--gradients", "torn.npz"], "torn.npz: cannot read gradients"),
        (["a.toml", "--gradients", "objects.npz"], "'w' has dtype object. Save gradients as floats."),
        (["a.toml", "--gradients", "whole.npz"], "'w' has dtype int64. Save gradients as floats."),
        (["a.toml", "--step", "-1"], "--step is -1. Pass 0 or more"),
        (["a.toml", "--step", "0"], "--step needs a threshold with a schedule, but no threshold has a schedule. "),
    ],
)
def test_an_invalid_command_is_rejected(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert cli.main(["explain", *arguments]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("unified-clip: error UC")
    assert message in errors


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


def test_the_differences_follow_the_first_line_and_all_tables_have_the_same_examples(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("excluding.toml").write_text('rule = "global_norm"\nthreshold = 1.0\nexclude = ["*.bias"]\n', encoding="utf-8")
    Path("plain.toml").write_text('rule = "global_norm"\nthreshold = 1.0\n', encoding="utf-8")
    assert cli.main(["explain", "excluding.toml", "plain.toml"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(
        "The results differ in 4 of 8 examples. excluding.toml leaves *.bias unclipped, but plain.toml clips all "
        "parameters. ┏"
    )
    assert printed.index("what differs") < printed.index("Parameters named *, except *.bias")
    assert printed.count("If the norm is infinite, finite gradients become 0") == 1
    assert cli.main(["explain", "excluding.toml", "plain.toml", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    examples = [[row["of"] for row in rows] for rows in (data["a"]["worked"], data["b"]["worked"], data["compared"])]
    assert examples[0] == examples[1] == examples[2]
    names = [[list(row["results"] or {}) for row in data[side]["worked"]] for side in "ab"]
    assert names[0] == names[1]
    assert data["summary"].startswith("excluding.toml leaves *.bias unclipped, but plain.toml clips all parameters; ")
