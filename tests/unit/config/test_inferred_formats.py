"""Which format a file is of: files that look like another format, and files of programs without a format."""

from __future__ import annotations

import re

import pytest
from support.config.clip_configs import Write

from unified_clip import ClipConfig, ConfigError
from unified_clip.config.formats.base import SetElsewhereError


def test_a_file_that_looks_like_another_format_is_read_in_the_one_that_is_named_with_a_note(write: Write) -> None:
    path = write("train.json", '{"output_dir": "out", "max_grad_norm": 0.3, "eval_strategy": "steps"}')
    note = "The file looks like hf, not like paddlenlp. If the format is hf, pass from_='hf'."
    config = ClipConfig.import_from(path, "paddlenlp")
    assert (config.threshold, config.notes[0]) == (0.3, note)
    assert note not in ClipConfig.import_from(path).notes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "trainer:\n  max_steps: 100\n  total_epochs: 15\n"),
        ("a.yaml", "trainer:\n  _target_: training.trainer.Trainer\n  max_epochs: 3\n  accelerator: cuda\n"),
        ("a.yaml", "global_train_batch_size: 8\ndevice_train_microbatch_size: 1\nmax_duration: 10\n"),
        ("a.yml", "hardware: tpu\nici_fsdp_parallelism: -1\npretrained_model: sd\n"),
        ("a.yaml", "base_config: [configs/base.yaml]\ntask_cls: training.Acoustic\n"),
        ("a.json", '{"model": "HiFi-GAN", "adam_b1": 0.8, "dist_config": {"dist_backend": "nccl"}}'),
        ("a.json", '{"model_type": "wavlm", "hidden_size": 768, "gradient_checkpointing": false}'),
        ("a.yaml", "args: {train_iters: 10}\ndeepspeed: {gradient_clipping: 0.1}\n"),
        (
            "a.yaml",
            "output_dir: out\nper_device_train_batch_size: 1\ngradient_checkpointing: true\nwith_tracking: true\n",
        ),
        ("a.yaml", "output_dir: out\nper_device_train_batch_size: 1\ncheckpointing_steps: epoch\n"),
        ("a.yaml", "hardware: tpu\nsharding:\n  mesh_axes: [data]\n"),
        ("a.py", "train = get_config('train.py').train\ntrain.max_iter = 100\n"),
        ("a.py", "grad_clip = 1.0\nexec(open('configurator.py').read())\noptimizer = dict(type='AdamW')\n"),
    ],
    ids=[
        "EasyR1",
        "SAM2",
        "OLMo",
        "maxdiffusion",
        "DiffSinger",
        "HiFi-GAN",
        "model",
        "SAT",
        "Accelerate",
        "Tulu",
        "LTX",
        "detrex",
        "nanoGPT",
    ],
)
def test_files_of_other_programs_with_a_key_of_a_trainer_are_not_taken_for_its_files(
    name: str, text: str, write: Write
) -> None:
    with pytest.raises(ConfigError, match=r"cannot infer the format"):
        ClipConfig.import_from(write(name, text))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("train:\n  max_norm: 1.0\n", "train.max_norm (line 2)"),
        ("training:\n  max_grad_l2_norm: 0.25\n", "training.max_grad_l2_norm (line 2)"),
        ("clip_max_norm: 0.1\n", "clip_max_norm (line 1)"),
        ("training:\n  gradient_max_norm: 5.0\n", "training.gradient_max_norm (line 2)"),
        ("params:\n  config:\n    grad_norm: 1.0\n", "params.config.grad_norm (line 3)"),
        ("optim:\n  clip: 1.0\n", "optim.clip (line 2)"),
        ("max_grad_value: 1.0\n", "max_grad_value (line 1)"),
        ("discriminator_grad_norm: 10.0\n", "discriminator_grad_norm (line 1)"),
        ("audio:\n  max_norm: 4.0\nloss:\n  clip: 0.2\ntraining:\n  track_grad_norm: 2\n  clip: true\n", ""),
    ],
    ids=["litgpt", "mmf", "detr", "deepmd", "rl_games", "lingua", "maxdiffusion", "uSFGAN", "other"],
)
def test_clip_keys_of_trainers_without_a_format_are_named(text: str, key: str, write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        ClipConfig.import_from(write("a.yaml", text))
    named = re.findall(r"\S* \(line \d+\)(?= looks like a clip setting\.)", str(caught.value))
    assert named == ([key] if key else [])


def test_gin_files_are_rejected(write: Write) -> None:
    """Files of T5X are gin files."""
    message = r"^base\.gin: cannot infer the format\. gin files are not supported\. Write a clip configuration: .*\.$"
    with pytest.raises(ConfigError, match=message):
        ClipConfig.import_from(write("base.gin", "include 'base.gin'\nglobal_norm_clip_threshold = 1.0\n"))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("# @package _global_\nlr: 0.1\n", "a.yaml"),
        ("_BASE_: base.yaml\nMODEL: {}\n", "a.yaml, line 1, _BASE_"),
        ("defaults:\n- trainer: gpu\n", "a.yaml, line 1, defaults"),
    ],
)
def test_the_advice_for_a_file_that_inherits_its_clip_is_to_import_another_file(
    text: str, place: str, write: Write
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^a\.yaml: cannot infer the format\. {place}: .* Import the file"
    ) as caught:
        ClipConfig.import_from(write("a.yaml", text))
    assert caught.value.code == "UC103"


CHILDREN = [
    ("lightning", "defaults: [base]\ntrainer: {%s}\n", "max_epochs: 3", "gradient_clip_algorithm: value"),
    ("detectron2", "_BASE_: a.yaml\nSOLVER: {%s}\n", "IMS_PER_BATCH: 2", "CLIP_GRADIENTS: {CLIP_VALUE: 0.5}"),
    ("timm", "_base_: a.yaml\nmodel: vit\nmixup: 0.8\ncrop_pct: 1\n%s\n", "lr: 1", "clip_mode: agc"),
]


@pytest.mark.parametrize(("name", "text", "other", "part"), CHILDREN, ids=[name for name, *_ in CHILDREN])
def test_a_file_that_sets_only_a_part_of_an_inherited_clip_is_unknown(
    name: str, text: str, other: str, part: str, write: Write
) -> None:
    """Otherwise the check would say nothing about a value that changes the clip of the base file."""
    with pytest.raises(SetElsewhereError):
        ClipConfig.import_from(write("a.yaml", text % other), name)
    with pytest.raises(ConfigError) as caught:
        ClipConfig.import_from(write("a.yaml", text % part), name)
    assert caught.value.code == "UC106"


def test_a_file_that_inherits_and_sets_the_threshold_is_read_as_it_stands(write: Write) -> None:
    text = "defaults: [base]\ntrainer: {gradient_clip_val: %s}\n"
    config = ClipConfig.import_from(write("a.yaml", text % 0.5))
    assert (config.threshold, config.notes[0].partition(": ")[0]) == (0.5, "a.yaml, line 1, defaults")
    assert ClipConfig.import_from(write("a.yaml", text % "null")).rule == "none"
