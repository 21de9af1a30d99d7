"""`unified-clip config check` on timm's train.py, and on the second clip of timm's Lamb."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, Check, only_finding

TRAIN = """import argparse

from timm.utils import NativeScaler

parser = argparse.ArgumentParser()
parser.add_argument("--clip-grad", type=float, default=None)
parser.add_argument("--clip-mode", default="norm")
args = parser.parse_args()
loss_scaler = NativeScaler()
loss_scaler(loss, optimizer, clip_grad=args.clip_grad, clip_mode=args.clip_mode)
"""
YAML = "reprob: 0.5\nclip_grad: 1.0\n{}"


@pytest.mark.parametrize(
    ("code", "changed", "why"),
    [
        ("default=None", "default=0.5", "Line 6 sets the default of --clip-grad to 0.5."),
        ('default="norm"', 'default="value"', "Line 7 sets the default of --clip-mode to 'value'."),
        ("=args.clip_mode", "='value'", "Line 10 passes clip_mode='value' to loss_scaler."),
        ("=args.clip_grad", "=0.5", "Line 10 passes clip_grad=0.5 to loss_scaler."),
        ("=args.clip_grad", "=None", "Line 10 passes clip_grad=None to loss_scaler."),
        ("=args.clip_grad", "=args.clip_grad / 2", "Line 10 passes clip_grad=args.clip_grad / 2 to loss_scaler."),
        ("default=None", "default=-1.0", "Line 6 sets the default of --clip-grad to -1.0."),
        ("default=None", "default=LIMIT", "Line 6 sets the default of --clip-grad to LIMIT."),
        ("args =", "parser.set_defaults(clip_grad=2.0)\nargs =", "Line 8 sets the default of --clip-grad to 2.0."),
    ],
)
def test_changed_code_of_timm_is_no_silent_pass(check: Check, code: str, changed: str, why: str) -> None:
    files = {"a.yaml": YAML.format("")}
    assert check({**files, "train.py": TRAIN}).findings == []
    finding = only_finding(check({**files, "train.py": TRAIN.replace(code, changed)}))
    assert (finding.path, finding.kind) == ("train.py", "unknown")
    assert finding.does.startswith(why)


@pytest.mark.parametrize(
    ("options", "threshold", "second"),
    [
        ("opt: lamb\n", "1.0", ""),
        ("opt: lamb\n", "5.0", "1.0"),
        ("opt: lamb\nopt_kwargs: {max_grad_norm: 0.2}\n", "1.0", "0.2"),
        ("opt: lambw\nopt_kwargs: {max_grad_norm: null}\n", "5.0", ""),
        ("opt: adamw\nopt_kwargs: {max_grad_norm: 0.2}\n", "1.0", ""),
    ],
)
def test_the_second_clip_of_lamb_is_compared(check: Check, options: str, threshold: str, second: str) -> None:
    text = YAML.format(options).replace("clip_grad: 1.0", f"clip_grad: {threshold}")
    findings = check({"a.yaml": text}, CLIP_CONFIG.replace("1.0", threshold)).findings
    assert [(each.kind, each.differences[0].found) for each in findings] == [("drift", second)] * bool(second)
    assert all("max_grad_norm: null" in each.edit for each in findings)


@pytest.mark.parametrize(
    ("clip", "mode"),
    [('rule = "value"\nthreshold = 1.0\n', "clip_mode: value\n"), ('rule = "none"\n', "clip_grad: null\n")],
)
def test_every_second_clip_differs_if_the_first_clip_does_not_limit_the_global_norm(
    check: Check, clip: str, mode: str
) -> None:
    text = YAML.format("").replace("clip_grad: 1.0\n", "") if "null" in mode else YAML.format("")
    assert check({"a.yaml": text + mode}, clip).findings == []
    difference = only_finding(check({"a.yaml": f"{text}{mode}opt: lamb\n"}, clip)).differences[0]
    assert (difference.found, difference.wanted) == ("1.0", "none")


@pytest.mark.parametrize(
    ("options", "second"),
    [
        ("--opt lamb", ""),
        ("--opt lamb --opt-kwargs=max_grad_norm=0.2", "0.2"),
        ("--opt lamb --opt-kwargs 'eps=1' \\\n max_grad_norm=0.2", "0.2"),
        ("--opt lamb --opt-kwargs eps=1 max_grad_norm=0.2", "0.2"),
        ("--opt lamb --opt-kwargs max_grad_norm=$NORM", "$NORM"),
        ("--opt lamb --opt-kwargs max_grad_norm=None", ""),
    ],
)
def test_the_second_clip_of_lamb_in_a_script_is_compared(check: Check, options: str, second: str) -> None:
    report = check({"a.sh": f"python train.py --clip-grad 1.0 --clip-mode norm {options}\n"})
    findings = [each for each in report.findings if each.clip.startswith("timm")]
    assert [each.differences[0].found for each in findings] == [second] * bool(second)


def test_a_file_of_timm_without_keys_is_unknown(check: Check) -> None:
    clip = CLIP_CONFIG + '[check.formats]\n"a.yaml" = "timm"\n'
    assert only_finding(check({"a.yaml": "text\n"}, clip)).kind == "unknown"


def test_the_second_clip_names_the_optimizer_of_one_of_several_commands(check: Check) -> None:
    command = "python train.py --clip-grad 5.0 --clip-mode norm --opt {}\n"
    report = check({"a.sh": command.format("adamw") + command.format("lamb")}, CLIP_CONFIG.replace("1.0", "5.0"))
    assert only_finding(report).clip == "timm: max_grad_norm of lamb"
