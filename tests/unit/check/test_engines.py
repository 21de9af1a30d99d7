"""The edit under a training engine that clips by itself, or that needs more arguments for a clip in code."""

from __future__ import annotations

import re

import pytest
import yaml
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, Check, only_finding

from unified_clip.check.model import Finding
from unified_clip.config.formats import engines

EXCLUDE = CLIP_CONFIG + 'exclude = ["*.bias"]\n'
LIGHTNING = "trainer:\n  max_epochs: 1\n  strategy: {}\n  gradient_clip_val: {}\n"
HF = '{"output_dir": "o", "per_device_train_batch_size": 1, "max_grad_norm": 0.5, "deepspeed": "ds.json"}'
IMPORTS = """\
import lightning as L
from accelerate import Accelerator
"""
OWN_CLIPS = {
    "ds.json": DEEPSPEED % 0.5,
    "megatron.sh": "--micro-batch-size 4 --clip-grad 0.5\n",
    "acc.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: 0.5\n",
    "acc_megatron.yaml": "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_gradient_clipping: 0.5\n",
    "l.yaml": LIGHTNING.format("deepspeed_stage_2", 0.5),
    "l_class.yaml": LIGHTNING.format("{class_path: lightning.pytorch.strategies.XLAStrategy}", 0.5),
    "l_hydra.yaml": LIGHTNING.format("{_target_: lightning.pytorch.strategies.XLAStrategy}", 0.5),
    "l_tpu.yaml": LIGHTNING.format("tpu_spawn", 0.5),
}


def finding_for(findings: list[Finding], path: str) -> Finding:
    return next(each for each in findings if each.path == path)


@pytest.mark.parametrize("path", OWN_CLIPS)
@pytest.mark.parametrize("config", [CLIP_CONFIG, EXCLUDE])
def test_no_edit_advises_code_that_an_engine_with_its_own_clip_rejects(check: Check, path: str, config: str) -> None:
    edit = only_finding(check({path: OWN_CLIPS[path]}, config)).edit
    assert not re.search(r"ClipCallback|attach_to|clip_\(", edit)
    assert edit.startswith("Change the clip to match clip.toml.") == (config == EXCLUDE)


@pytest.mark.parametrize(
    ("strategy", "engine"),
    [
        ("auto", ""),
        ("ddp", ""),
        ("fsdp_native", engines.FSDP1),
        ("ddp_fully_sharded", engines.FSDP1),
        ("pytorch_lightning.strategies.DDPFullyShardedNativeStrategy", engines.FSDP1),
        ("xla_fsdp", engines.XLA),
        ("tpu_spawn_debug", engines.XLA),
        ("single_tpu", engines.XLA),
        ("deepspeed_stage_3_offload", engines.DEEPSPEED),
        ({"class_path": "lightning.pytorch.strategies.FSDPStrategy", "init_args": {"a": "deepspeed"}}, engines.FSDP1),
        ({"_target_": "lightning.pytorch.strategies.DeepSpeedStrategy", "stage": 2}, engines.DEEPSPEED),
        ({"type": "ColossalAIStrategy"}, engines.COLOSSAL),
        ({"class_path": "DDPStrategy", "init_args": {"process_group_backend": "no_fsdp"}}, ""),
        ({"class_path": "fsdp_project.strategies.DDPStrategy"}, ""),
        ({"fsdp": True}, ""),
    ],
)
def test_the_engine_of_a_strategy_is_that_of_its_name_or_class(strategy: object, engine: str) -> None:
    assert engines.of_strategy(strategy) == engine


def test_the_same_settings_without_such_an_engine_may_be_replaced_by_code(check: Check) -> None:
    files = {"l.yaml": LIGHTNING.format("ddp", 0.5), "a.py": IMPORTS + "L.Trainer(gradient_clip_val=0.5)\n"}
    for finding in check(files, EXCLUDE).findings:
        assert "To clip by clip.toml, except under DeepSpeed, FSDP 1 or XLA: " in finding.edit.replace(
            "to clip", "To clip"
        )
        assert "pass `ClipCallback(clip)` of" in finding.edit


def test_a_method_of_an_engine_is_replaced_by_the_code_for_that_engine(check: Check) -> None:
    heads = {
        "a.py": "from accelerate import Accelerator\naccelerator.clip_grad_norm_(ps, 2.0)\n",
        "f.py": "from lightning import Fabric\nfabric = Fabric()\nfabric.clip_gradients(m, o, max_norm=2.0)\n",
        "s.py": "from torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(n)\nm.clip_grad_norm_(2.0)\n",
    }
    findings = check(heads, EXCLUDE).findings
    assert "clip.attach_to(optimizer, model)" in finding_for(findings, "a.py").edit
    assert "clip.attach_to(optimizer, model), in place of fabric.clip_gradients" in finding_for(findings, "f.py").edit
    assert "clip.clipper(process_group=model.process_group, ownership='distinct')" in finding_for(findings, "s.py").edit


PLACES = {
    "fit.yaml": "fit:\n  trainer:\n    max_epochs: 1\n    gradient_clip_val: 0.5\n",
    "nemo.yaml": "exp_manager: {}\noptim:\n  config:\n    clip_grad: 0.5\n    optimizer: adam\n",
}
FORMATS = '\n[check.formats]\n"nemo.yaml" = "nemo"\n'


@pytest.mark.parametrize("path", PLACES)
def test_the_keys_of_an_edit_pass_where_the_file_has_its_own(check: Check, path: str) -> None:
    keys, _, removed = only_finding(check({path: PLACES[path]}, CLIP_CONFIG + FORMATS, path)).edit.partition(
        "\nRemove "
    )
    data = merge_tables(yaml.safe_load(PLACES[path]), yaml.safe_load(keys))
    for key in filter(None, removed.rstrip(".").split(" and ")):
        *tables, last = key.split(".")
        table = data
        for name in tables:
            table = table[name]
        del table[last]
    assert check({path: yaml.safe_dump(data)}, CLIP_CONFIG + FORMATS, path).findings == []


def merge_tables(old: object, new: object) -> dict[str, object]:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new  # type: ignore[return-value]
    return {**old, **{key: merge_tables(old.get(key), value) for key, value in new.items()}}


ACCELERATE = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  {}\n"
AUTO = '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}'
ARGUMENTS = '{"output_dir": "o", "per_device_train_batch_size": 1, "max_grad_norm": 0.5}'


@pytest.mark.parametrize("key", ["gradient_clipping: auto", "zero_stage: 2"])
def test_accelerate_that_leaves_the_clip_to_the_trainer_is_no_drift(check: Check, key: str) -> None:
    files = {"acc.yaml": ACCELERATE.format(key), "ds.json": AUTO, "args.json": ARGUMENTS}
    report = check(files, CLIP_CONFIG.replace("1.0", "0.5"))
    assert report.findings == []
    assert any("HF's Trainer clips at max_grad_norm of TrainingArguments" in note for note in report.notes)
    report = check(files, CLIP_CONFIG)
    assert [each.path for each in report.findings] == ["args.json"]
