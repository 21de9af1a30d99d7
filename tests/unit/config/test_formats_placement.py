"""A clip key at a place that its trainer does not read is an error, never a default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.config.format_samples import SAMPLES, Sample

from unified_clip import ClipConfig, ConfigError
from unified_clip.cli import main
from unified_clip.config.formats import FORMATS


def write_file(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


MISPLACED = [
    ("lightning", "a.yaml", "gradient_clip_val: 0.5\ntrainer:\n  max_epochs: 3\n", 1, "trainer.gradient_clip_val"),
    ("lightning", "a.yaml", "fit:\n  gradient_clip_val: 0.5\n", 2, "Move the key to fit.trainer.gradient_clip_val."),
    ("lightning", "a.yaml", "pl_trainer:\n  gradient_clip_val: 0.5\n", 2, "trainer.gradient_clip_val"),
    ("lightning", "a.yaml", "trainer:\n  gradient-clip-val: 0.5\n", 2, "trainer.gradient_clip_val"),
    ("lightning", "a.yaml", "trainer:\n  max_epochs: 3\nmodel:\n  clip_norm: 1.0\n", 4, "trainer.gradient_clip_val"),
    ("lightning", "a.yaml", "trainer:\n  grad_clip: true\n", 2, "trainer.gradient_clip_val"),
    (
        "lightning",
        "a.yaml",
        "trainer:\n  gradient_clip_algorithm: value\nmodel:\n  gradient_clip_val: 1.0\n",
        4,
        "trainer.gradient_clip_val",
    ),
    ("timm", "a.yaml", "clip_mode: norm\noptim:\n  clip_grad: 1.0\n", 3, "Move the key to clip_grad."),
    ("timm", "a.yaml", "opt: sgd\nmax_grad_norm: 1.0\n", 2, "Set clip_grad instead"),
    ("deepspeed", "a.json", '{"fp16": {},\n"max_grad_norm": 0.3}', 2, "Set gradient_clipping instead"),
    ("hf", "a.yaml", "output_dir: x\ngradient_clipping: 1.0\n", 2, "Set max_grad_norm instead"),
    (
        "hf",
        "a.yaml",
        "deepspeed: {gradient_clipping: auto}\ntraining:\n  max_grad_norm: 0.3\n",
        3,
        "Move the key to max_grad_norm.",
    ),
    ("detectron2", "a.yaml", "SOLVER:\n  CLIP_GRADIENTS:\n    ENABLE: true\n", 3, "Use one of ENABLED,"),
    ("hf", "a.yaml", "training:\n  max_grad_norm: 0.3\n", 2, "max_grad_norm"),
    ("paddlenlp", "a.json", '{"trainer":\n{"max_grad_norm": 0.3}}', 2, "max_grad_norm"),
    ("maxtext", "a.yml", "optimizer:\n  gradient_clipping_threshold: 0.3\n", 2, "gradient_clipping_threshold"),
    ("timm", "a.yaml", "opt: sgd\noptimizer:\n  clip_grad: 0.3\n", 3, "clip_grad"),
    ("torchtitan", "a.toml", "[optimizer]\nlr = 1\nmax_norm = 0.3\n", 3, "training.max_norm"),
    ("torchtitan", "a.toml", "max_norm = 0.3\n", 1, "training.max_norm"),
    ("torchtitan", "a.toml", "[training]\nsteps = 1\nclip_grad_norm = 0.3\n", 3, "training.max_norm"),
    ("deepspeed", "a.json", '{"fp16": {"enabled": true},\n"zero": {"gradient_clipping": 0.3}}', 2, "gradient_clipping"),
    (
        "accelerate",
        "a.yaml",
        "distributed_type: DEEPSPEED\ngradient_clipping: 0.3\n",
        2,
        "deepspeed_config.gradient_clip",
    ),
    ("detectron2", "a.yaml", "SOLVER:\n  IMS_PER_BATCH: 2\nCLIP_GRADIENTS:\n  ENABLED: true\n", 3, "SOLVER.CLIP_GRADI"),
    ("detectron2", "a.yaml", "SOLVER:\n  CLIP_VALUE: 2.0\n", 2, "SOLVER.CLIP_GRADIENTS.CLIP_VALUE"),
    ("megatron", "a.yaml", "micro_batch_size: 2\nlanguage_model:\n  clip_grad: 0.3\n", 3, "clip_grad"),
    ("megatron", "a.sh", "python train.py \\\n --micro-batch-size 2 \\\n --max-grad-norm 0.3\n", 3, "clip-grad"),
    (
        "mmengine",
        "a.py",
        "optim_wrapper = dict(type='A')\nmodel = dict(clip_grad=dict(max_norm=1))\n",
        2,
        "optim_wrapper.clip_gr",
    ),
    ("keras", "a.json", '{"config": {"learning_rate": 0.1},\n"clipnorm": 0.3}', 2, "config.clipnorm"),
    (
        "paddleclas",
        "a.yaml",
        "Arch:\n  name: R\nOptimizer:\n  name: SGD\n  clip_norm_global: 1.0\n",
        5,
        "Optimizer.clip_norm",
    ),
    ("paddleclas", "a.yaml", "Optimizer:\n  lr:\n    clip_norm: 1.0\n", 3, "Optimizer.clip_norm"),
    ("paddleocr", "a.yaml", "Optimizer:\n  name: Adam\n  lr:\n    clip_norm: 1.0\n", 4, "Optimizer.clip_norm"),
    ("paddleocr", "a.yaml", "Global:\n  clip_norm_global: 1.0\n", 2, "Optimizer.clip_norm_global"),
    (
        "paddledetection",
        "a.yaml",
        "OptimizerBuilder:\n  regularizer: {clip_grad_by_norm: 1.0}\n",
        2,
        "OptimizerBuilder.cli",
    ),
    (
        "rllib",
        "a.yaml",
        "config:\n  grad_clip: 1.0\n",
        2,
        "Move the key to EXPERIMENT.config.grad_clip. Replace EXPERIMENT by",
    ),
    ("rllib", "a.yaml", "a:\n  config:\n    max_grad_norm: 1.0\n", 3, "Set EXPERIMENT.config.grad_clip instead. Repl"),
    (
        "stable_baselines3",
        "a.yml",
        "max_grad_norm: 0.5\n",
        1,
        "Move the key to ENVIRONMENT.max_grad_norm. Replace ENV",
    ),
    (
        "tf_model_garden",
        "a.yaml",
        "trainer:\n  optimizer_config:\n    optimizer:\n      global_clipnorm: 1.0\n",
        4,
        "Move the key to trainer.optimizer_config.optimizer.OPTIMIZER.global_clipnorm. Replace OPTIMIZER by the name",
    ),
    (
        "composer",
        "a.yaml",
        "gradient_clipping:\n  clipping_threshold: 1.0\n",
        1,
        "Move the key to algorithms.gradient_clipping",
    ),
]


def samples_with(key: str) -> list[Sample]:
    return [sample for sample in SAMPLES if sample.shows == key]


@pytest.mark.parametrize("sample", samples_with("misplaced"), ids=str)
def test_a_sample_with_a_misplaced_clip_key_names_its_line(sample: Sample) -> None:
    assert sample.error is not None
    assert re.match(rf"{re.escape(sample.file)}, line \d+, [^:]+: {re.escape(sample.format.title)} ", sample.error)


@pytest.mark.parametrize("sample", samples_with("unrelated"), ids=str)
def test_a_sample_without_any_key_of_the_trainer_has_an_error(sample: Sample) -> None:
    assert f"no key shows that this is a file of {sample.format.title}. If the file belongs" in str(sample.error)


@pytest.mark.parametrize("sample", samples_with("absent"), ids=str)
def test_a_sample_without_a_clip_key_has_a_note(sample: Sample) -> None:
    assert "default" in " ".join([*sample.notes, sample.error or ""])


def test_every_format_with_its_own_keys_has_a_sample() -> None:
    shown = {case[0] for case in MISPLACED} | {sample.format.name for sample in samples_with("misplaced")}
    assert shown == {name for name, trainer in FORMATS.items() if trainer.clip_keys}
    assert {name for name, trainer in FORMATS.items() if not trainer.clip_keys} == {"optax", "paddle"}, "Python source"


@pytest.mark.parametrize(("name", "file", "text", "line", "place"), MISPLACED)
def test_a_misplaced_clip_key_is_rejected_with_its_line_and_its_place(
    name: str, file: str, text: str, line: int, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_file(tmp_path, file, text)
    assert main(["config", "import", str(path), "--from", f"{name}@{FORMATS[name].newest}"]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"unified-clip: error UC105: {file}, line {line}, ")
    assert f"{FORMATS[name].title} " in error
    assert place in error.partition(": ")[2].partition(": ")[2]


@pytest.mark.parametrize(
    ("name", "file", "text", "reason"),
    [
        ("gpt_neox", "a.yml", "clip_grad: 3.0\n", "a.yml, line 1, clip_grad: GPT-NeoX replaces this value by"),
        (
            "gpt_neox",
            "a.yml",
            "optimizer: {params: {max_grad_norm: 1.0}}\n",
            "line 1, optimizer.params.max_grad_norm: no optimizer",
        ),
        (
            "rllib",
            "a.yaml",
            "d: {config: {world_model_grad_clip_by_global_norm: 9}}\n",
            "line 1, d.config.world_model_grad_clip_by_global_norm: DreamerV3 has three optimizers",
        ),
        ("mmengine", "a.py", "optimizer_config = dict(grad_clip=3)\n", "line 1, optimizer_config.grad_clip: mmengine"),
    ],
)
def test_a_file_with_only_a_clip_key_that_is_not_supported_has_the_error_about_this_key(
    name: str, file: str, text: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as raised:
        ClipConfig.import_from(write_file(tmp_path, file, text), f"{name}@{FORMATS[name].newest}")
    assert reason in str(raised.value)


def test_an_argument_of_lamb_is_a_note_even_if_the_file_names_no_optimizer(tmp_path: Path) -> None:
    for text, is_noted in (
        ("opt_kwargs: {max_grad_norm: 1.0}\n", True),
        ("opt_kwargs: {max_grad_norm: null}\n", False),
    ):
        config = ClipConfig.import_from(write_file(tmp_path, "a.yaml", text), "timm")
        assert any("lamb clips the global norm at 1.0 again" in note for note in config.notes) is is_noted


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("lightning", "a.yaml", "lr: 0.1\n"),
        ("hf", "a.yaml", "model: bert\n"),
        ("hf", "a.json", "{}"),
        ("paddlenlp", "a.json", '{"model": "ernie"}'),
        ("maxtext", "a.yml", "lr: 0.1\n"),
        ("timm", "a.yaml", "name: me\n"),
        ("torchtitan", "a.toml", "[tool.ruff]\nline-length = 120\n"),
        ("deepspeed", "a.json", '{"name": "me"}'),
        ("detectron2", "a.yaml", "solver: {}\n"),
        ("megatron", "a.sh", "ls --all\n"),
        ("mmengine", "a.py", "import os\n"),
        ("keras", "a.json", "{}"),
        ("paddleclas", "a.yaml", "optimizer: sgd\n"),
        ("paddleocr", "a.yaml", "optimizer: sgd\n"),
        ("paddledetection", "a.yaml", "optimizer: sgd\n"),
    ],
)
def test_no_default_is_assumed_for_a_file_without_any_key_of_the_trainer(
    name: str, file: str, text: str, tmp_path: Path
) -> None:
    path = write_file(tmp_path, file, text)
    with pytest.raises(
        ConfigError,
        match=r"no key shows that this is a file of .*\. If the file belongs to another trainer, pass from_='NAME'",
    ):
        ClipConfig.import_from(path, f"{name}@{FORMATS[name].newest}")


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("hf", "a.yaml", "max_grad_norm: 0.3\nproject:\n  max_grad_norm: 5.0\n"),
        ("lightning", "a.yaml", "trainer:\n  gradient_clip_val: 0.3\nmodel:\n  init_args:\n    max_grad_norm: 5.0\n"),
        ("timm", "a.yaml", "clip_grad: 0.3\nteacher:\n- clip_grad: 5.0\n"),
    ],
)
def test_another_clip_key_beside_the_trainers_own_is_a_note(name: str, file: str, text: str, tmp_path: Path) -> None:
    config = ClipConfig.import_from(write_file(tmp_path, file, text), name)
    assert config.threshold == 0.3
    assert config.provenance is not None
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "5.0" in line)
    assert config.provenance.notes[-1].startswith(f"line {line}, ")
    assert config.provenance.notes[-1].endswith("looks like another clip setting, and is not imported.")


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("hf", "a.yaml", "# max_grad_norm: 0.3\noutput_dir: out\nreport: max_grad_norm\n"),
        (
            "hf",
            "a.yaml",
            "output_dir: out\nlogging: {grad_norm: true, clip_grad: null}\nclip_model: ViT\ncliprange: 0.2\n",
        ),
        (
            "lightning",
            "a.yaml",
            "trainer:\n  max_epochs: 3\nmodel:\n  clip_grad_checkpointing: true\n  clip_length: 3\n",
        ),
        ("deepspeed", "a.json", '{"fp16": {"enabled": true}, "zero_optimization": {"stage": 2}}'),
    ],
)
def test_a_key_that_resembles_a_clip_key_is_no_clip_key(name: str, file: str, text: str, tmp_path: Path) -> None:
    config = ClipConfig.import_from(write_file(tmp_path, file, text), f"{name}@{FORMATS[name].newest}")
    assert config.provenance is not None
    assert not any("another clip setting" in note for note in config.provenance.notes)


ABSENT = {
    "deepspeed": '{"train_batch_size": 8}',
    "hf": "output_dir: out\n",
    "accelerate": "distributed_type: MEGATRON_LM\n",
    "lightning": "trainer:\n  max_epochs: 3\n",
    "torchtitan": "[training]\nsteps = 3\n",
    "detectron2": "SOLVER:\n  IMS_PER_BATCH: 2\n",
    "timm": "opt: sgd\n",
    "keras": '{"class_name": "Adam", "config": {"learning_rate": 0.1}}',
    "maxtext": "run_name: a\n",
    "paddlenlp": '{"output_dir": "out"}',
    "paddledetection": "OptimizerBuilder:\n  optimizer: {type: SGD}\n",
    "paddleclas": "Arch: {name: R}\nOptimizer: {name: SGD}\n",
    "paddleocr": "Architecture: {name: R}\nOptimizer: {name: SGD}\n",
}


def test_every_format_has_a_sample_without_a_clip_key() -> None:
    shown = ABSENT.keys() | {sample.format.name for sample in samples_with("absent")}
    assert shown == {name for name, trainer in FORMATS.items() if trainer.clip_keys} - {"megatron", "mmengine"}


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_a_file_without_a_clip_key_has_a_note(name: str, tmp_path: Path) -> None:
    suffix = {"toml": "toml", "json": "json", "yaml": "yaml"}[
        "json" if ABSENT[name][0] == "{" else FORMATS[name].kinds[0]
    ]
    suffix = "yaml" if name == "accelerate" else suffix
    path = write_file(tmp_path, f"a.{suffix}", ABSENT[name])
    config = ClipConfig.import_from(path, f"{name}@{FORMATS[name].newest}")
    assert config.provenance is not None
    assert any("default" in note for note in config.provenance.notes)


TRAINER = "_target_: {}\nmax_epochs: 3\ngradient_clip_val: 5.0\n"


@pytest.mark.parametrize("target", ["lightning.pytorch.trainer.Trainer", "pytorch_lightning.Trainer"])
def test_hydras_configuration_of_a_lightning_trainer_is_read_without_a_format(tmp_path: Path, target: str) -> None:
    config = ClipConfig.import_from(write_file(tmp_path, "default.yaml", TRAINER.format(target)))
    assert (config.rule, config.threshold) == ("global_norm", 5.0)


def test_hydras_configuration_of_another_class_is_not_taken_for_a_trainer(tmp_path: Path) -> None:
    path = write_file(tmp_path, "default.yaml", TRAINER.format("mine.Trainer"))
    with pytest.raises(ConfigError, match=r"Move the key to trainer\.gradient_clip_val"):
        ClipConfig.import_from(path, "lightning")


def test_a_hydra_trainer_without_a_threshold_does_not_clip(tmp_path: Path) -> None:
    path = write_file(tmp_path, "default.yaml", "_target_: lightning.Trainer\nmax_epochs: 3\n")
    config = ClipConfig.import_from(path)
    assert config.rule == "none"
    assert any("By default, Lightning clips nothing" in note for note in config.provenance.notes)
