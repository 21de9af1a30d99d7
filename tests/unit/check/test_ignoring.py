"""`check.ignore` with an approved effect, and for inherited clips."""

from __future__ import annotations

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding

from unified_clip.check.output import as_text

VALUE = "import torch\n\ntorch.nn.utils.clip_grad_value_(model.parameters(), {})\n"
CLAMP = "import torch\n\ndef clip(p, limit):\n    p.grad.data.clamp_(min=-limit, max=limit)\n"
LOADED = 'from unified_clip import ClipConfig\n\nclip = ClipConfig.load("rl/clip.toml")\ngradients = clip(gradients)\n'
MAXTEXT = "base_emb_dim: 1\ngradient_clipping_threshold: 0.1\n"


@pytest.mark.parametrize(
    ("approved", "accepted", "rejected"),
    [
        ("threshold = 0.1", [TORCH % "0.1"], [TORCH % "0.2", TORCH % "1000.0", VALUE.format(0.1), TORCH % "args.norm"]),
        ('threshold = 0.1\nrule = "value"', [VALUE.format(0.1)], [VALUE.format(0.2), TORCH % "0.1"]),
        ('rule = "value"', [VALUE.format(1.0), CLAMP], [VALUE.format(0.2), TORCH % "0.1"]),
    ],
)
def test_an_entry_with_an_approved_effect_ignores_no_other(
    check: Check, approved: str, accepted: list[str], rejected: list[str]
) -> None:
    clip = f"{CLIP_CONFIG}{IGNORE.format('a.py')}{approved}\n"
    for text in accepted:
        report = check({"a.py": text, "ds.json": DEEPSPEED % "1.0"}, clip)
        assert ([each.clip for each in report.findings], len(report.ignored)) == ([], 1)
    for text in rejected:
        finding = only_finding(check({"a.py": text, "ds.json": DEEPSPEED % "1.0"}, clip))
        assert finding.path == "a.py"
        assert finding.edit.startswith("The entry 1 of check.ignore approves only ")


@pytest.mark.parametrize("order", [1, -1])
def test_any_entry_that_matches_can_approve_a_clip(check: Check, order: int) -> None:
    entries = [IGNORE.format("rl/*") + 'rule = "none"\n', IGNORE.format("rl/*") + "threshold = 0.1\n"]
    clip = CLIP_CONFIG + "".join(entries[::order])
    files = {f"rl/{limit}.json": DEEPSPEED % limit for limit in ("0.0", "0.1")} | {"ds.json": DEEPSPEED % "1.0"}
    report = check(files, clip)
    assert (report.findings, len(report.ignored)) == ([], 2)
    assert only_finding(check({**files, "rl/2.json": DEEPSPEED % "2.0"}, clip)).path == "rl/2.json"


def test_an_approved_clip_may_be_off(check: Check) -> None:
    clip = f'{CLIP_CONFIG}{IGNORE.format("rl/*")}rule = "none"\n'
    assert check({"rl/ds.json": DEEPSPEED % "0.0", "ds.json": DEEPSPEED % "1.0"}, clip).findings == []
    assert only_finding(check({"rl/ds.json": DEEPSPEED % "0.1"}, clip)).kind == "drift"


def test_a_configuration_with_a_group_that_clips_is_not_off(check: Check) -> None:
    clip = f'{CLIP_CONFIG}{IGNORE.format("rl/*")}rule = "none"\n'
    files = {"rl/train.py": LOADED, "rl/clip.toml": 'rule = "none"\n'}
    files["ds.json"] = DEEPSPEED % "1.0"
    assert check(files, clip).findings == []
    files["rl/clip.toml"] += '[[groups]]\nname = "head"\ninclude = ["head.*"]\nrule = "norm"\nthreshold = 5.0\n'
    assert [(each.kind, each.path) for each in check(files, clip).findings] == [
        ("drift", "rl/clip.toml"), ("drift", "rl/train.py"),
    ]  # fmt: skip


def test_an_approved_clip_may_have_another_family(check: Check) -> None:
    clip = f"{CLIP_CONFIG}{IGNORE.format('rl.yml')}threshold = {{}}\n"
    files = {"rl.yml": MAXTEXT, "ds.json": DEEPSPEED % "1.0"}
    assert check(files, clip.format(0.1)).findings == []
    assert only_finding(check(files, clip.format(0.2))).clip == "MaxText: gradient_clipping_threshold"


def test_an_entry_for_a_base_file_covers_its_clip_and_not_the_clip_of_a_file_that_inherits(check: Check) -> None:
    child = 'base_config: "../configs/rl.yml"\nsteps: 9\n'
    files = {"configs/rl.yml": MAXTEXT, "jobs/a.yml": child, "jobs/b.yml": f"{child}gradient_clipping_threshold: 0.7\n"}
    findings = check(files, CLIP_CONFIG + IGNORE.format("configs/*")).findings
    assert [(each.path, each.line) for each in findings] == [("jobs/b.yml", 3)]
    assert findings[0].clip == "MaxText: gradient_clipping_threshold"


def test_the_text_has_the_reason_of_ignored_findings(check: Check) -> None:
    files = {"a.py": TORCH % "0.1" + TORCH % "0.2", "b.py": TORCH % "0.5"}
    text = as_text(check(files, CLIP_CONFIG + IGNORE.format("a.py")))
    assert "\na.py:3 (and 1 more) ignored torch.nn.utils.clip_grad_norm_: a sweep\n" in text
    assert text.startswith("b.py:3:1 drift"), "with findings, too"


@pytest.mark.parametrize(
    ("threshold", "approved", "is_accepted"),
    [
        ("1.0", 'rule = "global_norm"', True),
        ("2.0", 'rule = "global_norm"', False),
        ("2.0", "threshold = 2.0", True),
        ("1.0", 'rule = "value"', False),
    ],
)
def test_an_entry_accepts_every_action_for_norms_that_are_not_finite(
    check: Check, threshold: str, approved: str, is_accepted: bool
) -> None:
    source = TORCH % f"{threshold}, error_if_nonfinite=True"
    clip = f"{CLIP_CONFIG}{IGNORE.format('team/*')}{approved}\n"
    report = check({"team/a.py": source}, clip)
    assert [each.kind for each in report.findings] == ([] if is_accepted else ["drift"])


def test_clips_that_are_near_share_a_note(check: Check) -> None:
    source = "import optax\n\ntx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))\n"
    report = check({"a.py": source, "b.py": source, "c.py": source}, CLIP_CONFIG + '[check]\nnearest = ["**"]\n')
    (note,) = report.notes
    assert note.startswith("a.py:3 optax.clip_by_global_norm and 2 more clips are accepted with this difference: ")


def test_a_key_with_null_is_no_default(check: Check) -> None:
    text = "model:\n  _component_: torchtune.models.x\nclip_grad_norm: null\n"
    assert only_finding(check({"a.yaml": text})).clip == "torchtune: clip_grad_norm is null"


PL_TRAINER = "pl_trainer:\n  gpus: 1\n  gradient_clip_val: {}\n  gradient_clip_algorithm: {}\n"


def test_a_key_of_0_is_not_approved_by_a_rule_without_a_threshold(check: Check) -> None:
    clip = f'{CLIP_CONFIG}{IGNORE.format("own.yaml")}rule = "global_norm"\n'
    report = check({"own.yaml": "grad_clip: 0\n", "ds.json": DEEPSPEED % "1.0"}, clip)
    assert (only_finding(report).kind, report.ignored) == ("unknown", [])


OWN_KEY = "optimizer:\n  config:\n    {}: {}\n"


@pytest.mark.parametrize(
    "code",
    [
        "torch.nn.utils.clip_grad_norm_(model.parameters(), args.norm)",
        "accelerator.clip_grad_norm_(model.parameters(), args.norm)",
    ],
)
def test_an_entry_without_a_threshold_approves_a_threshold_of_its_rule_that_is_unknown(check: Check, code: str) -> None:
    rules = f'{CLIP_CONFIG}[check]\nrequire = ["a.py"]\n{IGNORE.format("a.py")}'
    text = f"import torch\n\n{code}\n"
    finding = only_finding(check({"a.py": text}))
    assert finding.does.startswith("The threshold, args.norm,")
    assert check({"a.py": text}, f'{rules}rule = "global_norm"\n').findings == []
    assert only_finding(check({"a.py": text}, rules)).clip == 'check.require "a.py"'
    with_threshold = only_finding(check({"a.py": text}, f"{rules}threshold = 1.0\n"))
    assert with_threshold.edit.startswith("The entry 1 of check.ignore approves only threshold = 1.0")
    value = text.replace("clip_grad_norm_", "clip_grad_value_")
    assert only_finding(check({"a.py": value}, f'{rules}rule = "global_norm"\n')).kind == "drift"


RUN_TIME = "import torch\n\n\ndef clip(parameters, value, norm_type=2.0):\n    {}\n"
UNKNOWN_RULE = RUN_TIME.format("optimizer.clip_grad_norm(value)")


@pytest.mark.parametrize(
    ("arguments", "is_approved"),
    [("value", True), ("value, norm_type=norm_type", False), ("value, norm_type", False)],
)
def test_an_entry_with_only_a_rule_approves_a_threshold_that_is_known_at_run_time(
    check: Check, arguments: str, is_approved: bool
) -> None:
    call = f"torch.nn.utils.clip_grad_norm_(parameters, {arguments})"
    files = {"a.py": RUN_TIME.format(call), "ds.json": DEEPSPEED % "1.0"}
    assert only_finding(check(files)).kind == "unknown"
    entry = CLIP_CONFIG + IGNORE.format("a.py")
    assert (check(files, entry + 'rule = "global_norm"\n').findings == []) == is_approved
    assert only_finding(check(files, entry + 'rule = "value"\n')).kind == "unknown"
    assert only_finding(check(files, entry + "threshold = 1.0\n")).kind == "unknown"


def test_an_entry_with_a_rule_does_not_approve_an_unknown_rule(check: Check) -> None:
    files = {"a.py": UNKNOWN_RULE, "ds.json": DEEPSPEED % "1.0"}
    finding = only_finding(check(files, f'{CLIP_CONFIG}{IGNORE.format("a.py")}rule = "global_norm"\n'))
    assert (finding.kind, finding.path) == ("unknown", "a.py")
    assert check(files, CLIP_CONFIG + IGNORE.format("a.py")).findings == []
