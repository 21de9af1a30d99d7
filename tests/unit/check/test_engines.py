"""The edit under a training engine that clips by itself, or that needs more arguments for a clip in code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, Check, only_finding

from unified_clip.check.model import Finding
from unified_clip.check.trainer_keys import STILL_FAILS
from unified_clip.config.formats import engines
from unified_clip.config.formats.engines import SHARDED

EXCLUDE = CLIP_CONFIG + 'exclude = ["*.bias"]\n'
LIGHTNING = "trainer:\n  max_epochs: 1\n  strategy: {}\n  gradient_clip_val: {}\n"
HF = '{"output_dir": "o", "per_device_train_batch_size": 1, "max_grad_norm": 0.5, "deepspeed": "ds.json"}'
IMPORTS = """\
import lightning as L
from accelerate import Accelerator
from lightning.pytorch.strategies import DeepSpeedStrategy
from transformers import TrainingArguments

strategy = DeepSpeedStrategy(stage=3)
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
    "a.py": IMPORTS + "L.Trainer(strategy='deepspeed_stage_2', gradient_clip_val=0.5)\n",
    "b.py": IMPORTS + "L.Trainer(strategy=strategy, gradient_clip_val=0.5)\n",
    "c.py": IMPORTS + "TrainingArguments('o', deepspeed={'gradient_clipping': 'auto'}, max_grad_norm=0.5)\n",
    "d.py": IMPORTS + "accelerator = Accelerator(deepspeed_plugin=plugin)\naccelerator.clip_grad_norm_(ps, 0.5)\n",
}


def finding_for(findings: list[Finding], path: str) -> Finding:
    return next(each for each in findings if each.path == path)


@pytest.mark.parametrize("path", OWN_CLIPS)
@pytest.mark.parametrize("config", [CLIP_CONFIG, EXCLUDE])
def test_no_edit_advises_code_that_an_engine_with_its_own_clip_rejects(check: Check, path: str, config: str) -> None:
    edit = only_finding(check({path: OWN_CLIPS[path]}, config)).edit
    assert not re.search(r"ClipCallback|attach_to|clip_\(", edit)
    assert ("does not expose the gradients of a step, so code cannot clip them" in edit) == (
        config == EXCLUDE or path == "d.py"
    )


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


def test_the_arguments_of_a_strategy_choose_no_engine(check: Check) -> None:
    source = "import lightning as L\nfrom lightning.pytorch.strategies import DDPStrategy as D\n"
    call = "L.Trainer(strategy=D(process_group_backend='no_deepspeed'), gradient_clip_val=0.5)\n"
    assert "except under DeepSpeed, FSDP 1 or XLA" in only_finding(check({"a.py": source + call}, EXCLUDE)).edit


def test_the_same_settings_without_such_an_engine_may_be_replaced_by_code(check: Check) -> None:
    files = {"l.yaml": LIGHTNING.format("ddp", 0.5), "a.py": IMPORTS + "L.Trainer(gradient_clip_val=0.5)\n"}
    for finding in check(files, EXCLUDE).findings:
        assert "To clip by clip.toml, except under DeepSpeed, FSDP 1 or XLA: " in finding.edit.replace(
            "to clip", "To clip"
        )
        assert "pass `ClipCallback(clip)` of" in finding.edit


def test_under_fsdp_1_the_callback_declares_ownership(check: Check) -> None:
    value = "  gradient_clip_algorithm: value\n"
    source = IMPORTS + "L.Trainer(strategy='fsdp', gradient_clip_val=1.0, gradient_clip_algorithm='value')\n"
    for finding in check({"l.yaml": LIGHTNING.format("fsdp", 1.0) + value, "a.py": source}).findings:
        assert SHARDED in finding.edit
        assert "except under" not in finding.edit
        assert not finding.edit.startswith("gradient_clip_val"), "Lightning rejects a norm under FSDP 1"
    assert STILL_FAILS in finding_for(check({}).findings, "l.yaml").edit


def test_a_method_of_an_engine_is_replaced_by_the_code_for_that_engine(check: Check) -> None:
    heads = {
        "a.py": "from accelerate import Accelerator\naccelerator.clip_grad_norm_(ps, 2.0)\n",
        "f.py": "from lightning import Fabric\nfabric = Fabric()\nfabric.clip_gradients(m, o, max_norm=2.0)\n",
        "s.py": "from torch.distributed.fsdp import FullyShardedDataParallel as F\nm = F(n)\nm.clip_grad_norm_(2.0)\n",
    }
    findings = check(heads, EXCLUDE).findings
    assert "clip_(accelerator, clip, model.named_parameters())" in finding_for(findings, "a.py").edit
    assert "clip.attach_to(optimizer, model), in place of fabric.clip_gradients" in finding_for(findings, "f.py").edit
    assert "clip.clipper(process_group=model.process_group, ownership='distinct')" in finding_for(findings, "s.py").edit


def test_an_edit_that_needs_another_file_names_it(check: Check) -> None:
    findings = check({"hf.json": HF, "ds.json": DEEPSPEED % 0.5}).findings
    assert finding_for(findings, "hf.json").edit.splitlines()[-1].endswith('"gradient_clipping": "auto".')
    auto = '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}'
    done = {"hf.json": HF.replace("0.5", "1.0"), "ds.json": auto}
    assert check(done).findings == []


def test_a_file_whose_training_code_cannot_clip_is_not_advised_to_be_off(check: Check) -> None:
    own = "from unified_clip import ClipConfig\n\nclip = ClipConfig.load('clip.toml')\ngradients = clip(gradients)\n"
    files = {"train.py": own, "ds.json": DEEPSPEED % 0}
    assert "check.off" not in only_finding(check(files)).edit


PLACES = {
    "fit.yaml": "fit:\n  trainer:\n    max_epochs: 1\n    gradient_clip_val: 0.5\n",
    "nemo.yaml": "exp_manager: {}\noptim:\n  config:\n    clip_grad: 0.5\n    optimizer: adam\n",
    "espnet.yaml": "accum_grad: 1\nbatch_type: numel\ngrad_clip: 5\ngrad_clip_type: inf\n",
}
FORMATS = '\n[check.formats]\n"espnet.yaml" = "espnet"\n"nemo.yaml" = "nemo"\n'


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


def test_the_edit_for_a_base_file_is_relative_to_that_file(check: Check) -> None:
    yaml_file = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    edit = finding_for(check({"acc.yaml": yaml_file, "ds.json": DEEPSPEED % 0.5}).findings, "ds.json").edit
    assert edit == '{\n  "gradient_clipping": 1.0\n}'
    assert Path("ds.json").exists()


ACCELERATE = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  {}\n"
AUTO = '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}'
ARGUMENTS = '{"output_dir": "o", "per_device_train_batch_size": 1, "max_grad_norm": 0.5}'


@pytest.mark.parametrize("key", ["deepspeed_config_file: ds.json", "gradient_clipping: auto", "zero_stage: 2"])
def test_accelerate_that_leaves_the_clip_to_the_trainer_is_no_drift(check: Check, key: str) -> None:
    files = {"acc.yaml": ACCELERATE.format(key), "ds.json": AUTO, "args.json": ARGUMENTS}
    report = check(files, CLIP_CONFIG.replace("1.0", "0.5"))
    assert report.findings == []
    assert any("HF's Trainer clips at max_grad_norm of TrainingArguments" in note for note in report.notes)
    report = check(files, CLIP_CONFIG)
    assert [each.path for each in report.findings] == ["args.json"]


def test_accelerate_with_another_number_than_the_trainer_is_a_drift(check: Check) -> None:
    files = {"acc.yaml": ACCELERATE.format("gradient_clipping: 0.5"), "args.json": ARGUMENTS.replace("0.5", "1.0")}
    assert only_finding(check(files)).path == "acc.yaml"


def test_accelerate_alone_clips_at_its_default(check: Check) -> None:
    files = {"acc.yaml": ACCELERATE.format("gradient_clipping: auto")}
    assert only_finding(check(files, CLIP_CONFIG.replace("1.0", "0.5"))).path == "acc.yaml"


@pytest.mark.parametrize(("code", "by_default"), [
    ("from megatron.core.optimizer import OptimizerConfig\nOptimizerConfig(lr=1e-4{})\n", ["same"]),
    ("from colossalai.booster.plugin import HybridParallelPlugin\nHybridParallelPlugin(tp_size=1{})\n", []),
])  # fmt: skip
def test_the_optimizer_of_an_engine_clips_by_the_global_norm(check: Check, code: str, by_default: list[str]) -> None:
    name = "clip_grad" if "megatron" in code else "max_norm"
    assert [each.result for each in check({"a.py": code.format("")}).clips] == by_default
    assert check({"a.py": code.format(f", {name}=1.0")}).clips[0].result == "same"
    finding = only_finding(check({"a.py": code.format(f", {name}=0.3")}))
    assert [(each.about, each.found) for each in finding.differences] == [("threshold", "0.3")]
    assert only_finding(check({"a.py": code.format(f", {name}=0.0")})).differences[0].about == "rule"
    layer = code.format(f", {name}=1.0") + "torch.nn.Embedding(9, 9, max_norm=0.3)\n"
    assert check({"a.py": layer}).findings == []
