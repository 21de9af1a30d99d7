"""`unified-clip config check` on shell scripts of timm and fairseq, and on options that set a rule."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, Check

TIMM = "python train.py --model vit --opt adamw --lr 1e-3 {}\n"
TRAIN = "import argparse\n\nparser = argparse.ArgumentParser()\nparser.add_argument('--clip-mode', default='norm')\n"


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ("--clip-grad 1.0 --clip-mode norm", []),
        ("--clip-grad 1.0 --clip-mode value", ["drift"]),
        ("--clip-grad 1.0 --clip-mode agc", ["drift"]),
        ("--clip-grad 0.5 --clip-mode norm", ["drift"]),
        ("--clip-grad $CLIP --clip-mode norm", ["unknown"]),
        ("--clip-grad 1.0 --clip-mode $MODE", ["unknown"]),
        ("--config missing.yaml --clip-grad 1.0 --clip-mode norm", []),
    ],
)
def test_a_script_with_clip_mode_is_a_script_of_timm(check: Check, options: str, kinds: list[str]) -> None:
    report = check({"run.sh": TIMM.format(options)})
    assert [each.kind for each in report.findings] == kinds
    assert [each.clip for each in report.clips] == ["timm: clip-grad" if "clip-grad" in options else "timm: clip-mode"]


@pytest.mark.parametrize(
    ("script", "clips"),
    [
        ("python vision/train.py --lr 0.1 --clip-grad 1.0\n", ["timm: clip-grad"]),
        ("cd vision\n./distributed_train.sh 4 --clip-grad 1.0\n", ["clip-grad = 1.0"]),
        ("vision/distributed_train.sh 4 --lr 0.1\n", ["timm by default: clip-grad is not set"]),
        ("python vision/train.py --lr 0.1 --data $DATA\n", ["timm by default: clip-grad is not set"]),
        ("vision/distributed_train.sh $N --lr 0.1\n", ["timm by default: clip-grad is not set"]),
        ('torchrun vision/train.py "$@"\n', []),
        ("python vision/train.py $ARGS\n", []),
        ("python vision/train.py ${ARGS[@]} --clip-grad 1.0\n", ["timm: clip-grad"]),
        ("# python vision/train.py\npython speech/train.py --lr 0.1 --clip-grad 1.0\n", ["clip-grad = 1.0"]),
    ],
)
def test_a_script_that_starts_the_train_file_of_timm_is_a_script_of_timm(
    check: Check, script: str, clips: list[str]
) -> None:
    report = check({"run.sh": script, "vision/train.py": TRAIN, "ds.json": DEEPSPEED % "1.0"})
    assert [each.clip for each in report.clips if each.path == "run.sh"] == clips


@pytest.mark.parametrize(
    ("yaml", "options", "findings"),
    [
        ("clip_grad: 1.0", "", []),
        ("clip_grad: 1.0", "--clip-mode value", [("run.sh", "timm: clip-mode", "--clip-grad 1.0 --clip-mode norm")]),
        ("clip_grad: 5.0", "--clip-grad 1.0", [("a/vit.yaml", "timm: clip_grad", "clip_grad: 1.0\nclip_mode: norm")]),
        ("clip_grad: 5.0", "", [("a/vit.yaml", "timm: clip_grad", "clip_grad: 1.0\nclip_mode: norm")]),
        ("clip_mode: value", "--clip-grad 1.0", [
            ("run.sh", "timm: clip-grad", "--clip-grad 1.0 --clip-mode norm"),
        ]),
    ],
)  # fmt: skip
def test_the_options_of_timm_override_the_file_of_config(
    check: Check, yaml: str, options: str, findings: list[tuple[str, str, str]]
) -> None:
    files = {"train.py": TRAIN, "a/vit.yaml": f"reprob: 0.5\n{yaml}\n"}
    report = check({**files, "run.sh": f"python train.py --config a/vit.yaml {options}\n"})
    assert [(each.path, each.clip, each.edit) for each in report.findings] == findings
    assert not [each for each in report.findings if each.kind != "drift"]


def test_an_option_is_unknown_if_the_file_of_config_is_missing(check: Check) -> None:
    (finding,) = check({"run.sh": "python train.py --config a.yaml --clip-mode norm\n"}).findings
    assert finding.kind == "unknown"
    assert "cannot find a.yaml" in finding.does
    assert "might set clip_grad" in finding.does


def test_check_formats_declares_a_script_of_timm(check: Check) -> None:
    clip = CLIP_CONFIG + '[check.formats]\n"run.sh" = "timm"\n'
    report = check({"run.sh": "./start.sh --lr 0.1 --clip-grad 1.0\n"}, clip)
    assert [(each.clip, each.result) for each in report.clips] == [("timm: clip-grad", "same")]


def test_a_rule_option_without_a_known_trainer_is_unknown(check: Check) -> None:
    (finding,) = check({"run.sh": "python main.py --clip-type value\n", "ds.json": DEEPSPEED % "1.0"}).findings
    assert (finding.kind, finding.clip) == ("unknown", "clip-type = value")
    assert check({"run.sh": "python main.py --clip-type video\n"}).findings == []


@pytest.mark.parametrize(
    ("script", "clip", "edit"),
    [
        ("fairseq-train data --arch a --clip-norm 0.0\n", "fairseq: clip-norm", "--clip-norm 1.0"),
        (
            "# optimization.clip_norm=3\nfairseq-hydra-train \\\n optimization.clip_norm=0.1\n",
            "fairseq: optimization.clip_norm",
            "optimization.clip_norm=1.0",
        ),
    ],
)
def test_the_edit_of_a_script_has_the_syntax_of_its_command(check: Check, script: str, clip: str, edit: str) -> None:
    (finding,) = check({"run.sh": script}).findings
    assert (finding.line, finding.clip, finding.edit) == (script.count("\n"), clip, edit)
