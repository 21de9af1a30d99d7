"""PyTorch's trainers, if they are installed, read the sample files and clip like the imported configurations."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
import yaml
from support.config.format_samples import DATA

from unified_clip import ClipConfig

OTHERS = ("deepspeed", "private", "zero3", "based", "misplaced", "tagged")
"""Files with keys or tags that TrainingArguments does not know, or for which it needs another package."""

TAKEN = sorted(path for path in (DATA / "hf").glob("*.yaml") if not any(name in path.name for name in OTHERS))


def parameters() -> list[torch.nn.Parameter]:
    """Return parameters with gradients of norm 13. They are float64, so that PyTorch's eps has a larger effect than
    rounding."""
    torch.manual_seed(0)
    result = [torch.nn.Parameter(torch.zeros(size, dtype=torch.float64)) for size in ((3,), (4, 5))]
    for parameter in result:
        parameter.grad = torch.randn(parameter.shape, dtype=torch.float64)
    norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in result])
    for parameter in result:
        parameter.grad *= 13 / norm
    return result


def gradients(result: list[torch.nn.Parameter]) -> list[float]:
    return [number for parameter in result for number in parameter.grad.flatten().tolist()]


@pytest.mark.parametrize("path", TAKEN, ids=lambda path: path.name)
def test_training_arguments_take_the_sample_files(path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    given = yaml.safe_load(path.read_text())
    if not isinstance(given.get("max_grad_norm", 0.0), float | int | None):
        pytest.skip("the file is wrong on purpose")
    on_a_cpu = given | {"bf16": False}
    (read,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_dict(on_a_cpu)
    assert read.max_grad_norm == given.get("max_grad_norm", 1.0)


@pytest.mark.parametrize("limit", [0.3, 0.0, 100.0])
def test_training_arguments_take_what_is_exported(limit: float, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = ClipConfig(rule="global_norm", threshold=limit) if limit else ClipConfig(rule="none")
    (tmp_path / "args.yaml").write_text(config.export_to("hf"))
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (read,) = parser.parse_yaml_file(str(tmp_path / "args.yaml"))
    assert read.max_grad_norm == limit


def test_accelerate_clips_as_was_imported_from_training_arguments() -> None:
    accelerate = pytest.importorskip("accelerate")
    native, replacement = parameters(), parameters()
    accelerate.Accelerator(cpu=True).clip_grad_norm_(native, 0.3)
    ClipConfig.import_from(DATA / "hf" / "sft.yaml").clip_(replacement)
    assert gradients(replacement) == pytest.approx(gradients(native), rel=1e-14)


@pytest.mark.parametrize("path", sorted((DATA / "accelerate").glob("*.yaml")), ids=lambda path: path.name)
def test_accelerate_takes_the_sample_files(path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    read = load_config_from_file(str(path))
    given = yaml.safe_load(path.read_text())
    assert read.distributed_type.value == given["distributed_type"]
    assert read.deepspeed_config == given.get("deepspeed_config", {})
    assert read.megatron_lm_config == given.get("megatron_lm_config", {})


def test_lightning_clips_nothing_by_default() -> None:
    trainer = pytest.importorskip("lightning.pytorch").Trainer
    given = inspect.signature(trainer).parameters
    assert [given[name].default for name in ("gradient_clip_val", "gradient_clip_algorithm")] == [None, None]


@pytest.mark.parametrize("name", ["norm", "default_algorithm", "value", "off"])
def test_lightning_clips_as_was_imported(name: str) -> None:
    plugins = pytest.importorskip("lightning.pytorch.plugins.precision")
    path = DATA / "lightning" / f"{name}.yaml"
    given = yaml.safe_load(path.read_text())["trainer"]
    native, replacement = parameters(), parameters()
    plugins.Precision().clip_gradients(
        torch.optim.SGD(native), given["gradient_clip_val"], given.get("gradient_clip_algorithm") or "norm"
    )
    ClipConfig.import_from(path).clip_(replacement)
    assert gradients(replacement) == pytest.approx(gradients(native), rel=1e-14)
    assert (gradients(replacement) == gradients(parameters())) == (name == "off")
