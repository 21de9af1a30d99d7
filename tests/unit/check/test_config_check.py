"""`unified-clip config check`: which clips agree with a configuration, which differ, and which are unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, TORCH, Check, only_finding
from support.config.format_samples import SAMPLES, Sample
from support.tiers import sampled

from unified_clip import ClipConfig
from unified_clip.check import check_files, files_to_check, trainer_files
from unified_clip.check.judge import loading
from unified_clip.check.python import own_clips
from unified_clip.config.check_rules import CheckRules
from unified_clip.config.formats.python_source import PythonFormat
from unified_clip.port.catalog import positional_parameters

DATA = Path(__file__).parents[2] / "data" / "check"

REPOSITORY = DATA / "repository"


def test_all_planted_drifts_are_found_and_no_right_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    paths = [Path()]
    report = check_files.check(Path("clip.toml"), paths, files_to_check.files(paths, Path("clip.toml")))
    assert {(each.path, each.line, each.kind) for each in report.findings} == {
        ("ads/port.py", 5, "drift"),
        ("llm/ds_zero2.json", 6, "drift"),
        ("llm/ds_zero3_off.json", 5, "drift"),
        ("llm/sft_lora.yaml", 5, "drift"),
        ("llm/titan/debug.toml", 8, "drift"),
        ("ranking/train_jax.py", 3, "drift"),
        ("ranking/train_keras.py", 7, "drift"),
        ("speech/lightning.yaml", 5, "drift"),
        ("speech/train_gan.py", 6, "drift"),
        ("vision/detector/panoptic.yaml", 6, "drift"),
        ("vision/mm/retina.py", 6, "drift"),
        ("vision/timm/args_adamw.yaml", 5, "drift"),
    }
    assert len(report.findings) == 12
    assert len([path for path in Path("right").rglob("*") if path.is_file()]) == 40
    assert {each.path for each in report.ignored} == {"experiments/sweep.py", "legacy/critic.py"}
    assert report.headline == "34 clips: 20 as in clip.toml, 12 not as in clip.toml, 2 ignored."


def is_imported_whole(sample: Sample) -> bool:
    """Return whether `config import` reads all clips. It leaves out the second clip of timm's Lamb."""
    is_read = sample.settings is not None and not isinstance(sample.format, PythonFormat)
    return is_read and sample.path.name != "lamb.yaml"


@pytest.mark.parametrize("sample", sampled([each for each in SAMPLES if is_imported_whole(each)], 3), ids=str)
def test_every_trainers_file_agrees_with_its_own_settings_and_with_no_others(sample: Sample, tmp_path: Path) -> None:
    clip = tmp_path / "clip.toml"
    rules = CheckRules(formats={os.path.relpath(sample.path.resolve(), tmp_path.resolve()): sample.from_})
    same_settings = ClipConfig(**(sample.settings or {}), check=rules)
    same_settings.save(clip)
    files = files_to_check.files([sample.path, *files_of_engines(sample, tmp_path)], clip)
    assert check_files.check(clip, [sample.path], files).findings == []
    other_settings = ClipConfig(rule="value", min=-7.0, max=8.0, check=rules)
    other_settings.save(clip)
    finding = only_finding(check_files.check(clip, [sample.path], files))
    assert finding.kind == "drift"
    assert finding.differences


def files_of_engines(sample: Sample, folder: Path) -> list[Path]:
    """Write the files of DeepSpeed that a sample names, so that they leave the clip to the trainer."""
    names = [Path(use.engine_file).name for use in trainer_files.read(sample.path, sample.from_) if use.engine_file]
    for name in names:
        (folder / name).write_text('{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}')
    return [folder / name for name in names]


def call_of(name: str, limits: dict[str, float]) -> str:
    first = positional_parameters(name)[0]
    arguments = [*([] if first in limits else ["tensors"]), *(f"{key}={value}" for key, value in limits.items())]
    return f"import unified_clip as uc\n\nresult = uc.{name}({', '.join(arguments)})\n"


@pytest.mark.parametrize("name", sorted(own_clips._own_functions()))
def test_unified_clips_own_functions_are_compared(check: Check, name: str) -> None:
    function = own_clips._own_functions()[name]
    family = {} if function.rule == "value" else {"family": function.family}
    config = ClipConfig(rule=function.rule, threshold=2.0, **family).dumps()
    upper, *lower = function.limits
    arguments = {upper: 2.0, **dict.fromkeys(lower, -2.0)}
    assert check({"a.py": call_of(name, arguments)}, config).findings == []
    finding = only_finding(check({"a.py": call_of(name, arguments | {upper: 3.0})}, config))
    assert (finding.kind, finding.line, finding.clip) == ("drift", 3, f"unified_clip.{name}")


def test_a_threshold_known_at_run_time_only_is_unknown(check: Check) -> None:
    finding = only_finding(check({"a.py": TORCH % "args.max_norm"}))
    assert finding.kind == "unknown"
    assert finding.does.startswith("The threshold, args.max_norm, is only known at run time. The object args")
    load = 'ClipConfig.load(Path(__file__).parent / "clip.toml")'
    assert finding.edit.startswith(f"To clip by clip.toml: clip = {load}, then clip.attach_to(")


@pytest.mark.parametrize("source", ["a.py", "nlp/a.py", "nlp/big/a.yaml", "shared/a.py"])
def test_the_advice_loads_the_file_from_any_working_directory(tmp_path: Path, source: str) -> None:
    clip = tmp_path / "shared" / "clip.toml"
    clip.parent.mkdir()
    clip.write_text(CLIP_CONFIG)
    names = {"ClipConfig": ClipConfig, "Path": Path, "__file__": str(tmp_path / source)}
    assert eval(loading(clip, tmp_path / source), names) == ClipConfig.load(clip)


def test_the_advice_for_a_notebook_needs_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clip.toml").write_text(CLIP_CONFIG)
    (tmp_path / "nlp").mkdir()
    monkeypatch.chdir(tmp_path / "nlp")
    loaded = eval(loading(tmp_path / "clip.toml", tmp_path / "nlp" / "a.ipynb"), {"ClipConfig": ClipConfig})
    assert loaded.threshold == 1.0


HF = "from transformers import HfArgumentParser, TrainingArguments\n\n"

LIGHTNING = "import lightning as L\n\n"


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        (
            LIGHTNING + "L.Trainer(gradient_clip_val=5.0)\n",
            "pass `ClipCallback(clip)` of `unified_clip.integrations.light",
        ),
        (
            HF + "TrainingArguments('out', max_grad_norm=5.0)\n",
            "pass `ClipCallback(clip)` of `unified_clip.integrations.tr",
        ),
        (HF + "settings['max_grad_norm'] = 5.0\n", "Set the threshold to 1."),
        (
            "from unified_clip import ClipConfig\n\nclip = ClipConfig(rule='none')\ngradients = clip(gradients)\n",
            "then clip.attach_to(optimizer, model)",
        ),
        ("import tensorflow as tf\n\ntf.clip_by_global_norm(grads, 5.0)\n", "then clip(gradients)."),
    ],
)
def test_the_edit_is_for_the_framework_of_the_clip(check: Check, source: str, edit: str) -> None:
    assert edit in only_finding(check({"a.py": source})).edit


def test_the_name_of_a_clip_has_the_key_with_a_value(check: Check) -> None:
    keras = '{"class_name": "Adam", "config": {\n"learning_rate": 0.1,\n"clipnorm": null,\n"global_clipnorm": 5.0}}\n'
    lightning = "trainer:\n  gradient_clip_algorithm: norm\n  gradient_clip_val: 5.0\n"
    findings = check({"a.json": keras, "b.yaml": lightning}).findings
    assert [(each.line, each.clip) for each in findings] == [
        (4, "Keras: config.global_clipnorm"),
        (3, "Lightning: trainer.gradient_clip_val"),
    ]
