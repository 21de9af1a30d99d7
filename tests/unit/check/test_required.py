"""Paths of `unified-clip config check` and patterns of `check.require` without a clip."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, TORCH, Check, only_finding

from unified_clip import cli
from unified_clip.check.model import CheckReport

REQUIRE = '\n[check]\nrequire = [\n  "nlp/**",\n  "{}",\n]\n'
FILES = {"nlp/ds.json": DEEPSPEED % "1.0", "recsys/train.py": TORCH % "1.0"}
BY_HAND = "norm = total(grads)\ngrads = [g * min(1, 0.3 / norm) for g in grads]\n"


def texts(report: CheckReport) -> list[str]:
    return [f"{each.place} {each.clip} {each.does} {each.edit}" for each in report.findings if each.kind == "missing"]


def test_a_path_without_a_clip_is_an_error_even_if_others_have_clips(check: Check) -> None:
    assert check(FILES, CLIP_CONFIG, "nlp", "recsys").findings == []
    report = check({**FILES, "recsys/train.py": BY_HAND}, CLIP_CONFIG, "nlp", "recsys")
    assert texts(report) == [
        "clip.toml:1:1 PATH recsys No file has a clip (files: 1). Restore the clip, or pass other paths."
    ]
    report = check({"nlp/a.py": BY_HAND}, CLIP_CONFIG, "nlp/ds.json", "nlp/a.py", "recsys")
    assert [(each.kind, each.path) for each in report.findings] == [("missing", "clip.toml"), ("missing", "nlp/a.py")]
    assert check({}, CLIP_CONFIG, ".").counts.clips == 1, "one path covers both"


def test_a_link_to_a_clip_counts_for_its_path(check: Check, tmp_path: Path) -> None:
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "ds.json").symlink_to(tmp_path / "nlp" / "ds.json")
    assert check(FILES, CLIP_CONFIG, "nlp", "vision").counts.clips == 1


def test_a_base_file_with_the_trainers_default_has_a_clip(check: Check) -> None:
    base = "SOLVER:\n  CLIP_GRADIENTS: {ENABLED: true, CLIP_TYPE: full_model, CLIP_VALUE: 1.0}\n"
    files = {"base.yaml": "SOLVER: {IMS_PER_BATCH: 2}\n", "a.yaml": f"_BASE_: base.yaml\n{base}"}
    assert check(files, CLIP_CONFIG, "base.yaml", "a.yaml").findings == []


def test_a_required_pattern_without_a_clip_is_an_error_with_its_line(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("recsys/**")
    assert check(FILES, clip).findings == []
    place = 'clip.toml:8:1 check.require "recsys/**"'
    without = (
        f"{place} No file that matches 'recsys/**' has a clip (files: 1). Restore the clip, or remove the pattern "
        "from check.require."
    )
    assert texts(check({"recsys/train.py": BY_HAND}, clip)) == [without]
    Path("recsys/train.py").unlink()
    gone = f"{place} No checked file matches 'recsys/**'. Remove the pattern, or correct it."
    assert texts(check({}, clip)) == [gone]


@pytest.mark.parametrize("glob", ["recsys", "recsys/"])
def test_a_required_directory_advises_its_files(check: Check, glob: str) -> None:
    assert only_finding(check(FILES, CLIP_CONFIG + REQUIRE.format(glob))).edit.startswith(
        'Write "recsys/**" for all files below'
    )


def test_a_pattern_for_files_outside_the_paths_is_a_note(check: Check) -> None:
    clip = CLIP_CONFIG + REQUIRE.format("recsys/*.py")
    note, _ = check(FILES, clip, "nlp").notes
    assert note == "check.require: 'recsys/*.py' is not checked, since no path contains it."
    report = check(
        {"recsys/ds.json": DEEPSPEED % "1.0"}, CLIP_CONFIG + REQUIRE.format("recsys/gone.py"), "nlp", "recsys"
    )
    assert only_finding(report).does == "No checked file matches 'recsys/gone.py'."


@pytest.mark.parametrize(
    ("format_", "start"), [("sarif", '"ruleId": "clip-missing"'), ("github", "::error file=clip.toml,line=1,")]
)
def test_a_missing_clip_is_in_every_report(
    check: Check, capsys: pytest.CaptureFixture[str], format_: str, start: str
) -> None:
    check({"a.py": BY_HAND}, CLIP_CONFIG)
    assert cli.main(["config", "check", "clip.toml", ".", "--format", format_]) == 1
    assert start in capsys.readouterr().out


EACH = CLIP_CONFIG + '[check]\neach = ["research/*.py"]\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import optax\n\ntx = optax.adamw(1e-3)\n", 3),
        ("import torch\n\nopt = torch.optim.AdamW(model.parameters())\n", 3),
        ("from torch.optim import SGD\n\nopt = SGD(model.parameters())\n", 3),
        ("import keras\n\nopt = keras.optimizers.Adam(1e-3)\n", 3),
        ("import tensorflow as tf\n\nopt = tf.keras.optimizers.Adam(1e-3)\n", 3),
        ("import paddle\n\nopt = paddle.optimizer.AdamW(parameters=m.parameters())\n", 3),
        ("import torch\n\ns = torch.optim.lr_scheduler.StepLR(opt, 3)\n", 0),
        ("import torch\n\ns = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, 3)\n", 0),
        ("import paddle\n\ns = paddle.optimizer.lr.StepDecay(0.1)\n", 0),
        ("import optax\n\nloss = optax.softmax_cross_entropy(x, y)\n", 0),
        ("import torch\n\nopt = torch.optim.AdamW(m.parameters())\n" + TORCH % "1.0", 0),
    ],
)
def test_each_file_that_builds_an_optimizer_has_to_clip(check: Check, text: str, line: int) -> None:
    files = {"research/a.py": text, "research/b.py": TORCH % "1.0", "other.py": "import optax\n\no = optax.sgd(1.0)\n"}
    findings = check(files, EACH).findings
    assert [(each.path, each.line, each.kind) for each in findings] == [("research/a.py", line, "missing")] * bool(line)
