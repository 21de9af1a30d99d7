"""The edit of a finding: the smallest change first, and clipping by the configuration itself second."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, Check, only_finding

from unified_clip.check import check_files, files_to_check
from unified_clip.check.model import CheckReport

PADDLE = CLIP_CONFIG.replace("pytorch", "paddle")
HF = '{"output_dir": "o", "eval_strategy": "no", "max_grad_norm": 2.0}'
OPTAX = "import optax\n\ntx = optax.chain(optax.clip_by_global_norm({}), optax.sgd(0.1))\n"
TF = "import tensorflow as tf\n\ng, n = tf.{}\n"
TORCH = "import torch\n\ntorch.nn.utils.{}\n"
TRAINERS = "import lightning as L\nfrom transformers import TrainingArguments\n\n"


def near(report: CheckReport) -> CheckReport:
    clip, paths = Path("clip.toml"), [Path()]
    assert report.findings
    return check_files.check(clip, paths, files_to_check.files(paths, clip), nearest=True)


@pytest.mark.parametrize(
    ("source", "literal"),
    [
        (OPTAX.format("max_norm=0.5"), "optax.clip_by_global_norm(max_norm=1.0)"),
        (TF.format("clip_by_global_norm(gs, 0.5)"), "tf.clip_by_global_norm(gs, 1.0)"),
        (TORCH.format("clip_grad_norm_(w, 5, 2.0)"), "torch.nn.utils.clip_grad_norm_(w, 1.0, 2.0)"),
        ("import unified_clip as uc\n\nuc.clip_grad_norm_(ps, 3.0)\n", "uc.clip_grad_norm_(ps, 1.0)"),
        (TRAINERS + "L.Trainer(gradient_clip_val=2.0)\n", "gradient_clip_val=1.0, gradient_clip_algorithm='norm'"),
        (TRAINERS + "TrainingArguments('o', max_grad_norm=2.0)\n", "max_grad_norm=1.0"),
    ],
)  # fmt: skip
def test_the_first_edit_of_source_is_the_call_or_the_arguments(check: Check, source: str, literal: str) -> None:
    finding = only_finding(near(check({"a.py": source})))
    assert finding.edit.startswith(f"{literal}\nOr to clip by clip.toml")


@pytest.mark.parametrize("config", [CLIP_CONFIG, PADDLE])
def test_the_edit_with_another_family_is_the_nearest_one(check: Check, config: str) -> None:
    first, second = (
        each.edit.splitlines() for each in check({"a.py": OPTAX.format(0.5), "hf.json": HF}, config).findings
    )
    assert first[0] == "optax.clip_by_global_norm(1.0)"
    assert first[1].startswith("Or to clip by clip.toml: ")
    assert second == ["{", '  "max_grad_norm": 1.0', "}"]


def test_the_edit_is_never_the_error_of_an_export(check: Check) -> None:
    finding = only_finding(check({"hf.json": HF}, CLIP_CONFIG + 'exclude = ["*.bias"]\n'))
    assert finding.edit.startswith("To clip by clip.toml, except under ")
    source = TORCH.format("clip_grad_norm_(model.parameters(), 5.0)")
    assert only_finding(
        check({"hf.json": HF, "a.py": source}, CLIP_CONFIG + 'exclude = ["*.bias"]\n', "a.py")
    ).edit.startswith("To clip")


def test_an_unknown_file_is_to_be_corrected(check: Check) -> None:
    finding = only_finding(check({"ds.json": '{"zero_optimization": {"stage": 2}}'}))
    assert (finding.kind, finding.edit) == ("unknown", '{\n  "gradient_clipping": 1.0\n}')
    finding = only_finding(check({"ds.json": '{"gradient_clipping": 1.0'}))
    assert finding.edit.startswith("Change the clip to match clip.toml.")


@pytest.mark.parametrize(
    "settings",
    ['exclude = ["*.bias"]\nnonfinite = "raise"\n', "norm_type = 3\n", '[adaptive]\nrule = "zclip"\n'],
)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "trainer:\n  gradient_clip_val: 1.0\n  max_epochs: 1\n"),
        ("a.py", "import lightning\n\ntrainer = lightning.Trainer(gradient_clip_val=1.0)\n"),
    ],
)
def test_the_edit_for_settings_that_the_trainer_does_not_support_is_a_clip_in_code(
    check: Check, name: str, text: str, settings: str
) -> None:
    finding = only_finding(check({name: text}, CLIP_CONFIG + settings))
    assert finding.edit.startswith("To clip by clip.toml, except under DeepSpeed")


def test_a_threshold_with_another_meaning_is_not_written_into_the_file(check: Check) -> None:
    clip = CLIP_CONFIG.replace("1.0", "0.0")
    text = "trainer:\n  gradient_clip_val: 1.0\n  max_epochs: 1\n"
    edit = only_finding(check({"a.yaml": text}, clip)).edit
    assert edit.startswith("To clip by clip.toml, ")


@pytest.mark.parametrize("name", ["team.toml", "clip_team.toml"])
def test_a_configuration_that_cannot_be_parsed_is_found(check: Check, name: str) -> None:
    finding = only_finding(check({name: 'rule = "global_norm"\nthreshold = \n', "ds.json": DEEPSPEED % "1.0"}))
    assert (finding.kind, finding.place) == ("unknown", f"{name}:2:1")
    assert finding.does == f"{name}, line 2: this is not TOML: Invalid value. Correct it."


@pytest.mark.parametrize(
    "wrong",
    [
        "gradient_clip_vla: 1.0",
        "gradient_clip_val: one",
        "gradient_clip_val: '1.0'",
        "gradient_clip_val: 1.0\n  gradient_clip_algorithm: nrom",
        "gradient_clip_val: ${CLIP}",
    ],
)
def test_the_edit_of_a_misspelt_key_or_value_is_the_right_one(check: Check, wrong: str) -> None:
    finding = only_finding(check({"a.yaml": f"trainer:\n  max_epochs: 9\n  {wrong}\n"}))
    keys = "trainer:\n  gradient_clip_val: 1.0\n  gradient_clip_algorithm: norm"
    assert (finding.kind, finding.edit) == ("unknown", keys)
    assert only_finding(check({}, PADDLE)).edit == keys


def test_a_yaml_file_gets_yaml_and_a_json_file_json(check: Check) -> None:
    files = {"ds.json": DEEPSPEED % 2.0, "hf.yaml": "output_dir: o\neval_strategy: no\nmax_grad_norm: 2.0\n"}
    assert [each.edit for each in check(files).findings] == ['{\n  "gradient_clipping": 1.0\n}', "max_grad_norm: 1.0"]


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        (
            "a.yaml",
            "fit:\n  trainer:\n    max_epochs: 3\n    gradient_clip_val: 2.0\n",
            "fit.trainer.gradient_clip_val",
        ),
        ("a.yaml", "fit:\n  trainer:\n    max_epochs: 3\n", "fit.trainer.gradient_clip_val"),
        ("a.yaml", "_target_: lightning.pytorch.Trainer\ngradient_clip_val: 2.0\n", "gradient_clip_val"),
        ("a.yaml", "trainer:\n  gradient_clip_val: 2.0\n", "trainer.gradient_clip_val"),
        ("a.yaml", "micro_batch_size: 2\nclip_grad: 0.5\n", "clip_grad"),
        ("a.sh", "python pretrain.py --micro-batch-size 2 --clip-grad 0.5\n", ""),
        ("a.toml", "[training]\nmax_norm = 0.3\nlocal_batch_size = 2\n", ""),
        ("a.json", DEEPSPEED % 2.0, ""),
        ("a.py", "optim_wrapper = dict(type='A', clip_grad=dict(max_norm=0.3))\n", ""),
    ],
)
def test_the_edit_has_the_key_where_the_file_has_it(check: Check, name: str, text: str, key: str) -> None:
    edit = only_finding(check({name: text})).edit
    assert "In this file" not in edit
    table = yaml.safe_load(edit) if key else {}
    for part in key.split(".") if key else []:
        table = table[part]
    assert table == (1.0 if key else {})


FORMATS = '\n[check.formats]\n"a.py" = "optax"\n'


def test_source_has_no_format_in_check_formats(check: Check) -> None:
    """The check reads source without an entry of check.formats."""
    assert [(each.clip, each.line) for each in check({"a.py": OPTAX.format(1.0)}, PADDLE).clips] == [
        ("optax.clip_by_global_norm", 3)
    ]
    finding = only_finding(check({"a.py": OPTAX.format(1.0)}, PADDLE + FORMATS))
    assert (finding.kind, finding.clip) == ("unknown", "configuration")
    assert "Remove an entry of check.formats for this file" in finding.does + finding.edit


def test_a_shared_rule_that_clips_nothing_during_its_warm_up_has_a_note(check: Check) -> None:
    own = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\ngradients = clip(gradients)\n"
    note = "clip.toml: Nothing is clipped during the 25 warm-up steps, because threshold is not set."
    adaptive = '\n[adaptive]\nrule = "zclip"\n'
    assert note in check({"a.py": own}, 'rule = "global_norm"\n' + adaptive).notes
    assert note not in check({"a.py": own}, CLIP_CONFIG + adaptive).notes


@pytest.mark.parametrize("function", ["per_example_global_norm_clip", "clip_by_block_rms"])
def test_the_edit_of_a_clip_that_unified_clip_does_not_support_is_a_clip_by_the_configuration(
    check: Check, function: str
) -> None:
    finding = only_finding(check({"a.py": f"import optax\n\nclip = optax.{function}(grads, 1.0)\n"}))
    assert "unified_clip does not support" in finding.does
    assert finding.edit.startswith("To clip by clip.toml: clip = ClipConfig.load")
    ignored = f'{CLIP_CONFIG}\n[[check.ignore]]\npath = "a.py"\nreason = "privacy"\n'
    assert check({"a.py": f"import optax\n\nclip = optax.{function}(grads, 1.0)\n"}, ignored).findings == []
