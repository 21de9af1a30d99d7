"""The patterns of `check.explicit` and `check.nearest`, and misspelt clip keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, IGNORE, Check, only_finding

from unified_clip import cli

EXPLICIT = '\n[check]\nexplicit = ["sft/**"]\n'
AXOLOTL = "base_model: a\nsequence_len: 2048\n"
MAXTEXT = "base_emb_dim: 2048\n"
HF = "from transformers import TrainingArguments\n\nargs = TrainingArguments('out'{})\n"


@pytest.mark.parametrize(
    ("name", "text", "key", "edit"),
    [
        ("a.yml", AXOLOTL, "max_grad_norm: 1.0\n", "max_grad_norm: 1.0"),
        ("a.yml", AXOLOTL + "max_grad_norm: null\n", "", "max_grad_norm: 1.0"),
        ("a.py", HF.format(""), "", "max_grad_norm=1.0"),
    ],
)
def test_a_default_is_missing_where_the_key_is_required(
    check: Check, name: str, text: str, key: str, edit: str
) -> None:
    assert check({f"sft/{name}": text}).findings == []
    finding = only_finding(check({f"sft/{name}": text}, CLIP_CONFIG + EXPLICIT))
    assert (finding.kind, finding.path, finding.edit) == ("missing", f"sft/{name}", edit)
    if key:
        assert check({f"sft/{name}": text + key}, CLIP_CONFIG + EXPLICIT).findings == []
    assert check({f"sft/{name}": text}, CLIP_CONFIG + EXPLICIT + IGNORE.format("sft/*")).findings == []


def test_a_success_names_the_default(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    check({"sft/a.yml": AXOLOTL, "b.py": HF.format("")})
    assert cli.main(["config", "check", "clip.toml", "."]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "b.py:3 same transformers.TrainingArguments by default: max_grad_norm is not set (pytorch)",
        "sft/a.yml:1 same Axolotl by default: max_grad_norm is not set (pytorch)",
    ]


def test_the_version_for_a_default_comes_after_the_advice_to_set_the_key(check: Check) -> None:
    finding = only_finding(check({"ds.json": '{"zero_optimization": {}}'}))
    advice = 'Set gradient_clipping. Or, if you use DeepSpeed 0.19.6, set "**/ds.json"'
    assert f"at 1.0 since 0.19.3. {advice}" in finding.does


@pytest.mark.parametrize("key", ["max_grad_nrom", "max_gard_norm", "max_grad_nrm"])
def test_a_misspelt_key_is_no_default(check: Check, key: str) -> None:
    finding = only_finding(check({"a.yml": f"{AXOLOTL}{key}: 1.0\n"}))
    assert (finding.kind, finding.line) == ("unknown", 3)
    assert f"{key}: Axolotl has no such key. Set max_grad_norm instead." in finding.does


def test_the_nearest_rule_is_accepted_in_the_files_of_a_pattern(check: Check) -> None:
    nearest = CLIP_CONFIG + '\n[check]\nnearest = ["tpu/**"]\n'
    files = {f"{team}/a.yml": f"{MAXTEXT}gradient_clipping_threshold: 1.0\n" for team in ("tpu", "cpu")}
    report = check(files, nearest)
    assert (only_finding(report).path, [each.result for each in report.clips]) == ("cpu/a.yml", ["drift", "near"])
    Path("cpu/a.yml").unlink()
    assert check({}, nearest).findings == []


@pytest.mark.parametrize("name", ["explicit", "nearest"])
def test_a_pattern_for_no_file_is_a_finding(check: Check, name: str) -> None:
    rule = f'\n[check]\n{name} = [\n  "gone/**",\n]\n'
    finding = only_finding(check({"sft/a.yml": f"{AXOLOTL}max_grad_norm: 1.0\n"}, CLIP_CONFIG + rule))
    assert (finding.kind, finding.clip, finding.line) == ("unused", f'check.{name} "gone/**"', 7)


@pytest.mark.parametrize("pattern", ["own/a.yaml", "own/*.yaml", "**"])
def test_a_file_of_a_pattern_has_to_show_a_clip_key(check: Check, pattern: str) -> None:
    clip = f'{CLIP_CONFIG}\n[check]\nexplicit = ["{pattern}"]\n'
    files = {"own/a.yaml": "learning_rate: 0.1\n", "sft/a.yml": f"{AXOLOTL}max_grad_norm: 1.0\n"}
    finding = only_finding(check(files, clip))
    assert (finding.kind, finding.path, finding.clip) == ("unknown", "own/a.yaml", f'check.explicit "{pattern}"')
    assert "shows no clip key of a known trainer" in finding.does
    report = check(files, clip + IGNORE.format("own/*"))
    assert report.findings == []
    assert [each.path for each in report.ignored] == ["own/a.yaml"]
    clip = f'{CLIP_CONFIG}\n[check]\nexplicit = ["sft/a.yml"]\n'
    assert check({}, clip).findings == []


@pytest.mark.parametrize(
    ("name", "text", "is_found"),
    [
        ("pyproject.toml", "[project]\nname = 'a'\n", False),
        ("tsconfig.build.json", "{}", False),
        (".codecov.yml", "a: 1\n", False),
        ("utils.py", "def f():\n    return 1\n", False),
        ("run.sh", "python train.py\n", False),
        ("conf/model.py", "optimizer = dict(lr=1)\n", True),
        ("conf/data.json", "[1, 2]", True),
    ],
)
def test_a_wildcard_leaves_out_files_that_are_no_configuration(
    check: Check, name: str, text: str, is_found: bool
) -> None:
    clip = f'{CLIP_CONFIG}\n[check]\nexplicit = ["**"]\n'
    findings = check({name: text, "a.yml": f"{AXOLOTL}max_grad_norm: 1.0\n"}, clip).findings
    assert [(each.kind, each.path) for each in findings] == ([("unknown", name)] if is_found else [])


SCRIPTS = '\n[check]\nexplicit = ["{}"]\n'
TRL_FILE = "output_dir: a\npush_to_hub: true\nmax_grad_norm: 1.0\n"


@pytest.mark.parametrize(
    ("glob", "script", "kinds"),
    [
        ("jobs/*.sh", "accelerate launch train.py --lr 1\n", ["unknown"]),
        ("jobs/a.sh", "accelerate launch train.py --lr 1\n", ["unknown"]),
        ("jobs/*", "accelerate launch train.py --lr 1\n", []),
        ("**", "accelerate launch train.py --lr 1\n", []),
        ("jobs/*.sh", "fairseq-hydra-train --config-dir c --config-name base\n", ["unknown"]),
        ("jobs/*.sh", "fairseq-hydra-train --config-dir conf --config-name base\n", []),
        ("jobs/*.sh", "fairseq-hydra-train optimization.clip_norm=1.0\n", []),
        ("jobs/*.sh", "trl sft --config conf/trl.yaml\n", []),
        ("jobs/*.sh", "trl sft --config conf/other.yaml\n", ["unknown"]),
        ("jobs/*.sh", "trl sft\n", ["unknown"]),
    ],
)
def test_a_script_without_a_clip_key_is_no_silent_pass(check: Check, glob: str, script: str, kinds: list[str]) -> None:
    fairseq = "optimization:\n  clip_norm: 1.0\n"
    files = {"jobs/a.sh": script, "conf/base.yaml": fairseq, "conf/trl.yaml": TRL_FILE}
    findings = check(files, CLIP_CONFIG + SCRIPTS.format(glob)).findings
    assert [each.kind for each in findings] == kinds
    assert {each.path for each in findings} <= {"jobs/a.sh"}


def test_an_entry_with_an_effect_does_not_accept_a_missing_key(check: Check) -> None:
    config = CLIP_CONFIG + SCRIPTS.format("jobs/*.sh") + IGNORE.format("jobs/*.sh")
    megatron = "torchrun train.py --micro-batch-size 2 --num-layers 2 --bf16 --train-iters 9\n"
    files = {"jobs/a.sh": megatron, "a.yml": f"{AXOLOTL}max_grad_norm: 1.0\n"}
    assert check(files, config).findings == []
    finding = only_finding(check(files, config + 'rule = "global_norm"\nthreshold = 1.0\n'))
    assert finding.kind == "missing"
    assert finding.edit.startswith("The entry 1 of check.ignore approves only ")
