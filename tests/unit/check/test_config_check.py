"""`unified-clip config check`: which clips differ from a configuration, which are unknown, and what is ignored."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, IGNORE, TORCH, Check, only_finding
from support.config.format_samples import SAMPLES, Sample
from support.tiers import sampled

from unified_clip import ClipConfig, cli
from unified_clip.check import check_files, model
from unified_clip.check.model import CheckReport
from unified_clip.check.python.calls import unified_clip_calls
from unified_clip.config.check_rules import CheckRules
from unified_clip.config.formats.python_source import PythonFormat
from unified_clip.errors import ConfigError
from unified_clip.port.catalog import positional_parameters

DATA = Path(__file__).parents[2] / "data" / "check"
REPOSITORY = DATA / "repository"
# -- a whole repository


def test_all_planted_drifts_are_found_and_no_right_file_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    paths = [Path()]
    report = check_files.check(Path("clip.toml"), paths, check_files.files(paths, Path("clip.toml")))
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
    assert report.headline == "34 clips: 12 not as in clip.toml, 2 ignored."


def imported(sample: Sample) -> bool:
    return sample.settings is not None and not isinstance(sample.format, PythonFormat)


@pytest.mark.parametrize("sample", sampled([each for each in SAMPLES if imported(each)], 3), ids=str)
def test_every_trainers_file_agrees_with_its_own_settings_and_with_no_others(sample: Sample, tmp_path: Path) -> None:
    clip = tmp_path / "clip.toml"
    rules = CheckRules(formats={os.path.relpath(sample.path.resolve(), tmp_path.resolve()): sample.from_})
    same_settings = ClipConfig(**(sample.settings or {}), check=rules)
    same_settings.save(clip)
    files = check_files.files([sample.path], clip)
    assert check_files.check(clip, [sample.path], files).findings == []
    other_settings = ClipConfig(rule="value", min=-7.0, max=8.0, check=rules)
    other_settings.save(clip)
    finding = only_finding(check_files.check(clip, [sample.path], files))
    assert finding.kind == "drift"
    assert finding.differences


# -- Python source


def call_of(name: str, limits: dict[str, float]) -> str:
    first = positional_parameters(name)[0]
    arguments = [*([] if first in limits else ["tensors"]), *(f"{key}={value}" for key, value in limits.items())]
    return f"import unified_clip as uc\n\nresult = uc.{name}({', '.join(arguments)})\n"


@pytest.mark.parametrize("name", sorted(unified_clip_calls._own_functions()))
def test_unified_clips_own_functions_are_compared(check: Check, name: str) -> None:
    function = unified_clip_calls._own_functions()[name]
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
    assert finding.does == "The threshold, args.max_norm, is only known at run time."


LOOPS = [
    "for p in model.parameters():\n    {}(p, 1.0)\n",
    "for p in model.parameters():\n    {}([p], max_norm=1.0)\n",
    "for _, p in model.named_parameters():\n    {}(parameters=p, max_norm=1.0)\n",
    "for group in optimizer.param_groups:\n    {}(group['params'], 1.0)\n",
    "[{}(p, 1.0) for p in model.parameters()]\n",
]
ALIKE = [
    "for _ in range(3):\n    {}(model.parameters(), 1.0)\n",
    "for net in (gan.generator, gan.critic):\n    {}(net.parameters(), 1.0)\n",
    "for p in model.parameters():\n    p.grad.mul_(2)\n{}(model.parameters(), 1.0)\n",
]
FUNCTIONS = ["import torch\n\ntorch.nn.utils.clip_grad_norm_", "import unified_clip as uc\n\nuc.clip_grad_norm_"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_call_in_a_loop_over_parameters_clips_by_another_norm(check: Check, function: str) -> None:
    imports, name = function.split("\n\n")
    for index, loop in enumerate(LOOPS):
        finding = only_finding(check({"a.py": f"{imports}\n\n{loop.format(name)}"}))
        assert (finding.kind, finding.line) == ("unknown", 3 if index == len(LOOPS) - 1 else 4)
        assert finding.does.startswith("The call is in a loop over ")
    for loop in ALIKE:
        assert check({"a.py": f"{imports}\n\n{loop.format(name)}"}).findings == []


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_error_for_a_norm_that_is_not_finite_is_compared(check: Check, function: str) -> None:
    raising = {"a.py": f"{function}(model.parameters(), 1.0, error_if_nonfinite=True)\n"}
    (difference,) = only_finding(check(raising)).differences
    assert difference.about == "a norm that is not finite"
    assert check(raising, CLIP_CONFIG + 'nonfinite = "raise"\n').findings == []
    assert check({"a.py": f"{function}(model.parameters(), 1.0, error_if_nonfinite=False)\n"}).findings == []
    unknown = only_finding(check({"a.py": f"{function}(model.parameters(), 1.0, error_if_nonfinite=args.strict)\n"}))
    assert unknown.kind == "unknown"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_is_passed_on_is_unknown(check: Check, function: str) -> None:
    imports, name = function.split("\n\n")
    for use in (
        f"clip = {name}\n",
        f"clip = functools.partial({name}, max_norm=5.0)\n",
        f"step = functools.partial(train, clip={name})\n",
        f"clips = {{'norm': {name}}}\n",
        f"def train(clip={name}): ...\n",
    ):
        finding = only_finding(check({"a.py": f"import functools\n{imports}\n{use}"}))
        assert (finding.kind, finding.line) == ("unknown", 3)
        assert "the function is not called here" in finding.does


HF = "from transformers import HfArgumentParser, TrainingArguments\n\n"
LIGHTNING = "import lightning as L\n\n"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (HF + "args = TrainingArguments('out')\nargs.max_grad_norm = 5.0\n", "drift"),
        (HF + "settings['max_grad_norm'] = 5.0\n", "drift"),
        (HF + "args = TrainingArguments(**settings)\n", "unknown"),
        (HF + "parser = HfArgumentParser((TrainingArguments,))\n", "unknown"),
        (HF + "class Arguments(TrainingArguments):\n    max_grad_norm: float = 5.0\n", "unknown"),
        (LIGHTNING + "L.Trainer(gradient_clip_val=1.0, gradient_clip_algorithm='value')\n", "drift"),
        (LIGHTNING + "L.Trainer(gradient_clip_val=1.0, gradient_clip_algorithm=args.by)\n", "unknown"),
        (LIGHTNING + "{'gradient_clip_val': 1.0, 'gradient_clip_algorithm': 'value'}\n", "drift"),
    ],
)
def test_a_trainers_argument_is_not_taken_for_its_default(check: Check, source: str, kind: str) -> None:
    assert only_finding(check({"a.py": source})).kind == kind


def test_trainers_arguments_that_agree_are_not_reported(check: Check) -> None:
    source = HF + "args = TrainingArguments('out')\nargs.max_grad_norm = 1.0\n"
    lightning = "L.Trainer(gradient_clip_val=1.0)\nL.Trainer(gradient_clip_val=1, gradient_clip_algorithm='norm')\n"
    report = check({"a.py": source, "b.py": LIGHTNING + lightning})
    assert (report.findings, report.counts.clips) == ([], 4)


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
        (HF + "settings['max_grad_norm'] = 5.0\n", "Set the threshold to 1. Change the clip to match clip.toml"),
        (
            "from unified_clip import ClipConfig\n\nclip = ClipConfig(rule='none')\ngradients = clip(gradients)\n",
            "then clip.attach_to(optimizer, model)",
        ),
        ("import tensorflow as tf\n\ntf.clip_by_global_norm(grads, 5.0)\n", "then clip(gradients)."),
    ],
)
def test_the_edit_is_for_the_framework_of_the_clip(check: Check, source: str, edit: str) -> None:
    assert edit in only_finding(check({"a.py": source})).edit


def test_a_trainer_that_is_switched_off_in_source_differs(check: Check) -> None:
    source = "from transformers import TrainingArguments\n\nTrainingArguments('out', max_grad_norm=0)\n"
    assert only_finding(check({"a.py": source})).kind == "drift"
    callback = 'from unified_clip import ClipConfig\n\nTrainer(clip=ClipConfig.load("clip.toml"))\n'
    assert check({"a.py": source + callback}).findings == []


def test_the_file_that_source_loads_is_compared(check: Check) -> None:
    source = 'from unified_clip import ClipConfig\n\nclip = ClipConfig.load("{}")\ngrads = clip(grads)\n'
    assert check({"a.py": source.format("clip.toml")}).findings == []
    report = check({"a.py": source.format("other.toml"), "other.toml": 'rule = "none"\n'})
    assert [(each.path, each.kind) for each in report.findings] == [("a.py", "drift"), ("other.toml", "drift")]
    finding = only_finding(check({"a.py": source.format("gone.toml")}, CLIP_CONFIG, "a.py"))
    assert finding.kind == "unknown"
    assert "in the directory of this source, or above it" in finding.does
    assert check({"a.py": source.replace('"{}"', 'path="clip.toml"')}, CLIP_CONFIG, "a.py").findings == []
    finding = only_finding(check({"a.py": source.replace('"{}"', "**options")}, CLIP_CONFIG, "a.py"))
    assert "Pass its path as the first argument" in finding.does


PATHS = """
import os
import sys
import pathlib
from os.path import dirname
from pathlib import Path
from unified_clip import ClipConfig

HERE = Path(__file__).resolve().parent
clip = ClipConfig.load({})
grads = clip(grads)
"""


@pytest.mark.parametrize("path", [
    'Path(__file__).parents[1] / "clip.toml"',
    'pathlib.Path(__file__).resolve().parents[1] / "clip.toml"',
    'Path(__file__).parent / ".." / "clip.toml"',
    'Path(__file__).absolute().parent.parent.joinpath("clip.toml")',
    'HERE.parent / "clip.toml"',
    'os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clip.toml")',
    'dirname(dirname(os.path.realpath(__file__))) + "/clip.toml"',
    'f"{dirname(__file__)}/../clip.toml"',
])  # fmt: skip
def test_a_path_relative_to_the_source_is_followed(check: Check, path: str) -> None:
    nearer = {"team/clip.toml": 'rule = "none"\n'}
    assert check({"team/a.py": PATHS.format(path), **nearer}, CLIP_CONFIG, "team/a.py").findings == []
    finding = only_finding(
        check({"team/a.py": PATHS.format(path.replace("clip.toml", "gone.toml"))}, CLIP_CONFIG, "team/a.py")
    )
    assert "cannot find the file of ClipConfig.load(" in finding.does
    nearest = PATHS.format('str(Path("clip.toml"))')
    assert only_finding(check({"team/a.py": nearest, **nearer}, CLIP_CONFIG, "team/a.py")).kind == "drift"


@pytest.mark.parametrize("path", ["args.clip", "Path(args.clip)", 'os.environ["CLIP"]', "Path(__file__).parents[99]"])
def test_a_path_known_at_run_time_only_gets_advice_about_paths(check: Check, path: str) -> None:
    finding = only_finding(check({"a.py": PATHS.format(path)}, CLIP_CONFIG, "a.py"))
    assert finding.kind == "unknown"
    assert "Write a path relative to the source, such as ClipConfig.load(Path(__file__).parent" in finding.does


def test_another_family_differs_unless_nearest_is_enough(run: Any) -> None:
    source = "import paddle\n\nclip = paddle.nn.ClipGradByGlobalNorm(1.0)\n"
    status, out, _ = run("clip.toml", ".", a_py=source)
    assert status == 1
    assert "eps: 0; wanted: 1e-06" in out
    assert "edit:\n    To accept differences of this size, pass --nearest, or add the file to check.nearest.\n" in out
    assert "\n    Or to clip by clip.toml: " in out
    status, out, _ = run("clip.toml", ".", "--nearest", a_py=source)
    assert status == 0
    assert out.startswith(
        "a.py:3 near paddle.nn.ClipGradByGlobalNorm (paddle)\nnote: a.py:3 paddle.nn.ClipGradByGlobal"
    )
    assert run("clip.toml", ".", "--nearest", a_py=source.replace("1.0", "1.1"))[0] == 1


def test_other_python_source_is_no_trainers_configuration(check: Check) -> None:
    library = "optimizer = make()\n__all__ = [name for name in globals()]\n\n\nclass Data:\n    dataset = 1\n"
    assert check({"a.py": library, "b.py": TORCH % "1.0"}).counts.trainers == 0
    parser = "optim_wrapper = None\n\n\ndef add(group):\n    group.add_argument('--clip-grad', default=5.0)\n"
    assert only_finding(check({"a.py": parser}, CLIP_CONFIG, "a.py")).clip.startswith("mmengine"), (
        "and not Megatron-LM's options"
    )


# -- what is unknown


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("own.yaml", "train:\n  grad_clip: 5.0\n", "no known trainer has such a file"),
        ("list.yaml", "train:\n  grad_clip: [0, 5.0]\n", "no known trainer has such a file"),
        ("table.yaml", "train:\n  grad_clip: {by: norm, limit: 5.0}\n", "no known trainer has such a file"),
        ("args.json", '{"output_dir": "o", "num_train_epochs": 3}', 'Set "**/args.json" in check.formats'),
        ("ds.json", '{"zero_optimization": {"stage": 2}}', ', set "**/ds.json" to "deepspeed@'),
        ("broken.yaml", "max_grad_norm: [1.0\n", "this is not YAML"),
        ("misplaced.yaml", "output_dir: o\neval_strategy: no\ntraining:\n  max_grad_norm: 1.0\n", "does not read this"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_not_the_same(check: Check, name: str, text: str, why: str) -> None:
    finding = only_finding(check({name: text}))
    assert finding.kind == "unknown"
    assert why in finding.does


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("zero.json", '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto"}'),
        ("fsdp.yaml", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config: {}\n"),
        ("debug.yaml", "# @package _global_\ntrainer:\n  max_epochs: 3\n  limit_train_batches: 0.01\n"),
        ("ddp.yaml", "# @package _global_\ndefaults:\n- override /trainer: ddp\ntrainer: {max_epochs: 3}\n"),
    ],
)
def test_a_file_that_leaves_the_clip_to_others_is_a_note(check: Check, name: str, text: str) -> None:
    report = check({name: text, "train.py": TORCH % "1.0"})
    assert report.findings == []
    assert [note.partition(":")[0] for note in report.notes] == [f"{name} sets no clip"]
    finding = only_finding(check({name: text}, CLIP_CONFIG, name))
    assert finding.kind == "missing"
    assert f" {name} leaves its clip to another file or to the training script" in finding.does


def test_formats_that_cannot_be_inferred_are_named_in_the_configuration(check: Check) -> None:
    files = {"configs/ds.json": '{"zero_optimization": {"stage": 2}}'}
    assert only_finding(check(files)).kind == "unknown"
    formats = '\n[check.formats]\n"configs/*.json" = "deepspeed@0.19.6"\n'
    assert check(files, CLIP_CONFIG + formats).findings == []
    assert only_finding(check(files, CLIP_CONFIG + formats.replace("0.19.6", "0.18.0"))).kind == "drift"


def test_a_large_file_is_unknown_if_its_text_names_a_clip(check: Check) -> None:
    data = '{"clip": "' + "x" * check_files.MAX_BYTES + '"}'
    report = check({"a.py": TORCH % "1.0", "data.json": data})
    assert (report.counts.unread, report.findings) == (1, [])
    assert report.notes == ["data.json is not read. It is larger than 1 MiB. Its text names no clip."]
    finding = only_finding(check({"a.py": TORCH % "1.0", "run.json": data.replace("clip", "grad_clip")}))
    assert (finding.kind, finding.path) == ("unknown", "run.json")
    assert finding.does.startswith("The file is not read. It is larger than 1 MiB. Split the file, or compare")


@pytest.mark.parametrize("name", ["gradient_clip_val", "CLIP_GRADIENTS", "clipnorm", "max_grad_norm", "ClipGradByNorm"])
def test_names_of_clips_are_found_in_files_that_are_not_read(check: Check, name: str) -> None:
    finding = only_finding(check({"notes.txt": f"{name} 1.0"}, CLIP_CONFIG, "notes.txt"))
    assert (finding.kind, finding.path) == ("unknown", "notes.txt")
    assert only_finding(check({"empty.txt": ""}, CLIP_CONFIG, "empty.txt")).kind == "missing"
    assert only_finding(check({"notes.txt": "a video clip"}, CLIP_CONFIG, "notes.txt")).kind == "missing"


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        ("DS.JSON", "DeepSpeed: gradient_clipping"),
        ("Train.PY", "torch.nn.utils.clip_grad_norm_"),
        ("hf.YAML", "max_grad_norm = 2.0"),
        ("Run.SH", "max_grad_norm = 2.0"),
    ],
)
def test_suffixes_in_upper_case_are_read(check: Check, name: str, clip: str) -> None:
    texts = {"DS.JSON": DEEPSPEED % "2.0", "Train.PY": TORCH % "2.0", "hf.YAML": "do_train: true\nmax_grad_norm: 2.0\n"}
    assert only_finding(check({name: texts.get(name, "python train.py --max_grad_norm 2.0\n")})).clip == clip


def test_a_clip_in_a_list_has_the_place_of_its_entry(check: Check) -> None:
    finding = only_finding(check({"sweep.json": '[{"lr": 1},\n {"grad_clip": 2.0}]'}))
    assert (finding.line, finding.clip) == (2, "entry 2, grad_clip = 2.0")


BOTH = '{"zero_optimization": {"stage": 2}, %s"output_dir": "o", "eval_strategy": "no", "max_grad_norm": 1.0}'


def test_a_file_of_two_formats_is_unknown_unless_both_mean_the_same(check: Check) -> None:
    assert check({"both.json": BOTH % '"gradient_clipping": 1.0, '}).findings == []
    for clip in ('"gradient_clipping": 2.0, ', ""):  # they differ, or DeepSpeed's depends on the version
        finding = only_finding(check({"both.json": BOTH % clip}))
        assert (finding.kind, finding.line) == ("unknown", 1)
        assert finding.does.startswith("The file may be of the formats deepspeed or hf. ")


def test_arguments_of_hugging_face_are_recognised_by_their_common_keys(check: Check) -> None:
    common = "output_dir: o\nlearning_rate: 1.0e-5\nnum_train_epochs: 1\nper_device_train_batch_size: 2\n"
    finding = only_finding(check({"sft.yaml": f"{common}max_grad_norm: 2.0\n"}))
    assert (finding.kind, finding.clip) == ("drift", "Hugging Face's TrainingArguments: max_grad_norm")
    assert check({"sft.yaml": common}).findings == [], "its default is 1"
    both = only_finding(check({"sft.yaml": f"{common}finetuning_type: lora\nmax_grad_norm: 2.0\n"}))
    assert both.clip == "LLaMA-Factory: max_grad_norm"
    paddle = check(
        {"sft.yaml": f"{common}tensor_parallel_degree: 2\nmax_grad_norm: 1.0\n"},
        CLIP_CONFIG.replace("pytorch", "paddle"),
    )
    assert paddle.findings == [], "PaddleNLP's own key decides"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (TORCH % "1.0" + "def (\n", 4, "Line 4 is not valid Python"),
        (TORCH % "1.0" + "print 'done'\n", 4, "Line 4 is not valid in Python 3, and the file seems to be Python 2."),
    ],
)
def test_source_that_is_not_valid_and_names_a_clip_is_unknown(check: Check, text: str, line: int, why: str) -> None:
    finding = only_finding(check({"a.py": TORCH % "1.0", "bad.py": text, "other.py": "def (\n"}))
    assert (finding.kind, finding.path, finding.line) == ("unknown", "bad.py", line)
    assert finding.does.startswith(why)


def test_calls_in_a_trainers_python_file_are_compared_too(check: Check) -> None:
    trainer = "optim_wrapper = dict(type='OptimWrapper', clip_grad=dict(max_norm=1.0))\n"
    assert check({"a.py": trainer}).findings == []
    assert check({"a.py": trainer.replace("dict(max_norm=1.0)", "{'max_norm': 1.0}")}).findings == []
    finding = only_finding(check({"a.py": trainer + TORCH % "5.0"}))
    assert (finding.line, finding.clip) == (4, "torch.nn.utils.clip_grad_norm_")


@pytest.mark.parametrize("target", ["self.json", "gone.json"])
def test_a_link_that_cannot_be_read_is_unknown(check: Check, tmp_path: Path, target: str) -> None:
    (tmp_path / "self.json").symlink_to(target)
    report = check({"a.py": TORCH % "1.0"})
    assert (only_finding(report).kind, only_finding(report).path, report.counts.unread) == ("unknown", "self.json", 1)
    assert only_finding(report).does.startswith("The file is not read. The reason: ")


def test_options_with_hyphens_are_read(check: Check) -> None:
    assert only_finding(check({"run.sh": "python train.py --max-grad-norm 0.5\n"})).kind == "unknown"


def test_a_file_in_utf_16_is_unknown(check: Check, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(DEEPSPEED % 2.0, encoding="utf-16")
    finding = only_finding(check({"a.py": TORCH % "1.0"}))
    assert (finding.kind, finding.path) == ("unknown", "ds.json")
    assert finding.does.endswith("Save the file as UTF-8.")


def test_options_in_shell_scripts_are_read(check: Check) -> None:
    megatron = "torchrun pretrain_gpt.py --micro-batch-size 2 --train-iters 100 --clip-grad {}\n"
    assert check({"pretrain.sh": megatron.format(1.0)}).findings == []
    finding = only_finding(check({"pretrain.sh": "#!/bin/sh\n" + megatron.format(0.5)}))
    assert (finding.kind, finding.line) == ("drift", 2)
    finding = only_finding(check({"pretrain.sh": "echo\npython train.py --lr 0.1 \\\n  --max_grad_norm=0.5\n"}))
    assert (finding.kind, finding.line, finding.clip) == ("unknown", 3, "max_grad_norm = 0.5")
    assert "A command line or a script sets this key" in finding.does


DETECTRON2 = "SOLVER:\n  IMS_PER_BATCH: 16\n"
CLIP = "  CLIP_GRADIENTS: {ENABLED: true, CLIP_TYPE: full_model, CLIP_VALUE: 1.0}\n"


def test_an_inherited_clip_is_reported_once_where_it_stands(check: Check) -> None:
    files = {
        "base.yaml": DETECTRON2 + CLIP.replace("1.0", "5.0"),
        "a.yaml": "_BASE_: base.yaml\n" + DETECTRON2,
        "b.yaml": "_BASE_: base.yaml\n" + DETECTRON2,
        "c.yaml": "_BASE_: base.yaml\n" + DETECTRON2 + CLIP,
    }
    report = check(files)
    assert [(each.path, each.line) for each in report.findings] == [("base.yaml", 3)]
    assert (report.counts.trainers, report.counts.bases, report.counts.clips) == (4, 1, 2)


def test_a_base_file_without_a_clip_is_part_of_the_files_that_inherit_from_it(check: Check) -> None:
    files = {"base.yaml": DETECTRON2, "a.yaml": "_BASE_: base.yaml\n" + DETECTRON2 + CLIP}
    assert check(files).findings == []
    finding = only_finding(check(files | {"b.yaml": "_BASE_: base.yaml\n" + DETECTRON2}))
    assert (finding.path, finding.kind) == ("b.yaml", "drift")
    assert only_finding(check({"base.yaml": DETECTRON2}, CLIP_CONFIG, "base.yaml")).path == "base.yaml"


# -- what is ignored


def test_ignored_findings_are_listed_with_their_reason(check: Check) -> None:
    files = {"runs/a/ds.json": DEEPSPEED % "2.0", "ds.json": DEEPSPEED % "1.0"}
    report = check(files, CLIP_CONFIG + IGNORE.format("runs/**"))
    assert report.findings == []
    assert [(each.path, each.ignored) for each in report.ignored] == [("runs/a/ds.json", "a sweep")]
    assert (
        only_finding(check(files, CLIP_CONFIG + IGNORE.format("runs/*.json") + IGNORE.format("runs/**"))).kind
        == "unused"
    )


def test_a_rule_without_effect_is_a_finding(check: Check) -> None:
    files = {"ds.json": DEEPSPEED % "1.0", "other/a.py": TORCH % "1.0"}
    finding = only_finding(check(files, CLIP_CONFIG + IGNORE.format("gone/**")))
    assert (finding.kind, finding.path, finding.line) == ("unused", "clip.toml", 5)
    assert check(files, CLIP_CONFIG + IGNORE.format("gone/**"), "other").findings == [], (
        "gone/ was not part of the check"
    )
    finding = only_finding(check(files, CLIP_CONFIG + IGNORE.format("other/*"), "other"))
    assert finding.edit == "If no other file needs the entry: remove the entry, or correct its path.", "only some files"


def test_a_format_for_no_file_is_a_finding(check: Check) -> None:
    files = {"configs/ds.json": '{"zero_optimization": {"stage": 2}}', "other/a.py": TORCH % "1.0"}
    formats = '\n[check.formats]\n"configs/*.json" = "deepspeed@0.19.6"\n'
    finding = only_finding(check(files, f'{CLIP_CONFIG}{formats}"runs/*" = "hf"\n'))
    assert (finding.kind, finding.line, finding.clip) == ("unused", 7, 'check.formats."runs/*"')
    second = only_finding(check(files, f'{CLIP_CONFIG}{formats}"**/ds.json" = "hf"\n'))
    assert (second.kind, second.clip) == ("unused", 'check.formats."**/ds.json"')
    assert (finding.does, finding.edit[:16]) == ("No checked file matches 'runs/*'.", "Remove the patte")
    assert (second.does[:18], second.edit[:16]) == ("An earlier pattern", "Move this patter")
    assert check(files, CLIP_CONFIG + formats, "other").findings == [], "configs/ was not part of the check"


def test_an_unknown_format_is_an_error_even_without_a_file(check: Check) -> None:
    with pytest.raises(ConfigError, match=r"clip.toml, line 6, check.formats.runs/\*: 'deepsped' is not a format"):
        check({"a.py": TORCH % "1.0"}, CLIP_CONFIG + '\n[check.formats]\n"runs/*" = "deepsped"\n')


@pytest.mark.parametrize("path", ["a/", "a"])
def test_a_rule_for_a_directory_advises_its_files(check: Check, path: str) -> None:
    report = check({"a/x.py": TORCH % "1.0"}, CLIP_CONFIG + IGNORE.format(path))
    assert only_finding(report).edit == 'Write "a/**" for all files below this directory, or remove the entry.'
    assert "correct its path" in only_finding(check({"a/x.py": TORCH % "1.0"}, CLIP_CONFIG + IGNORE.format("b/"))).edit


@pytest.mark.parametrize("path", ["a", "a?x.py", "*.py"])
def test_a_rule_covers_whole_paths_only(check: Check, path: str) -> None:
    report = check({"a/x.py": TORCH % "2.0"}, CLIP_CONFIG + IGNORE.format(path))
    assert [each.kind for each in report.findings] == ["drift", "unused"]


def test_a_rule_can_name_the_clip(check: Check) -> None:
    both = (TORCH % "2.0") + "torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)\n"
    rule = IGNORE.format("*.py").replace("reason", 'clip = "clip_grad_value_"\nreason')
    assert only_finding(check({"a.py": both}, CLIP_CONFIG + rule)).clip == "torch.nn.utils.clip_grad_norm_"


# -- the command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, **files: str) -> tuple[int, str, str]:
        for name, text in {
            "clip.toml": CLIP_CONFIG,
            **{key.replace("_", "."): text for key, text in files.items()},
        }.items():
            Path(name).write_text(text)
        return cli.main(["config", "check", *arguments]), *capsys.readouterr()

    return call


def test_the_status_is_0_if_all_clips_are_the_same_and_1_if_not(run: Any) -> None:
    status, out, _ = run("clip.toml", ".", ds_json=DEEPSPEED % "1.0")
    line = "ds.json:1 same DeepSpeed: gradient_clipping (pytorch)\n"
    assert status == 0
    assert (
        out.startswith(f"{line}note: ds.json:1 DeepSpeed: gradient_clipping: With fp16, "),
        out.endswith("\n1 clip: 1 as in clip.toml.\n"),
    ) == (True, True)
    status, out, _ = run("clip.toml", ".", ds_json=DEEPSPEED % "0.5")
    assert status == 1
    assert out.splitlines()[:2] == ["ds.json:1:1 drift DeepSpeed: gradient_clipping", "  threshold: 0.5; wanted: 1"]


def test_steps_whose_norm_is_not_finite_are_a_note_for_all_files_of_a_kind(check: Check) -> None:
    bf16 = DEEPSPEED.replace("{", '{"bf16": {"enabled": true}, ', 1)
    files = {f"{name}.json": bf16 % "1.0" for name in "ab"} | {"c.json": bf16 % "0.5"}
    report = check(files)
    assert [each.about for each in only_finding(report).differences] == ["threshold"]
    (note,) = report.notes
    assert note.startswith(
        "a.json:1 and 2 more DeepSpeed: gradient_clipping: With bf16, DeepSpeed skips steps whose norm "
    )
    assert note.endswith("By default, DeepSpeed makes these steps without a clip. clip.toml clips them by its rule.")


def test_a_success_has_a_line_for_each_clip_or_for_each_kind_if_there_are_many(run: Any) -> None:
    value = "import torch\n\ntorch.nn.utils.clip_grad_value_(model.parameters(), 0.1)\n"
    sources = {"a_py": (TORCH % "1.0") * 2, "c_py": value, "clip_toml": CLIP_CONFIG + IGNORE.format("c.py")}
    lines = [f"a.py:{line} same torch.nn.utils.clip_grad_norm_ (pytorch)" for line in (3, 6)]
    lines += ["c.py:3 ignored torch.nn.utils.clip_grad_value_: a sweep", "3 clips: 2 as in clip.toml, 1 ignored."]
    for format_ in ("text", "github"):
        assert run("clip.toml", ".", "--format", format_, **sources)[1].splitlines() == lines
    status, out, _ = run("clip.toml", ".", b_py=(TORCH % "1.0") * 18, **sources)
    assert (status, out.splitlines()) == (
        0,
        [
            "20 x same torch.nn.utils.clip_grad_norm_ (pytorch), files: 2",
            "c.py:3 ignored torch.nn.utils.clip_grad_value_: a sweep",
            "21 clips: 20 as in clip.toml, 1 ignored.",
        ],
    )


def test_the_json_has_every_clip_with_its_result(run: Any) -> None:
    family = "import paddle\n\nclip = paddle.nn.ClipGradByGlobalNorm(1.0)\n"
    sources = {"a_py": TORCH % "2.0", "b_py": TORCH % "args.norm", "c_py": family, "d_json": DEEPSPEED % "1.0"}
    clips = json.loads(run("clip.toml", ".", "--nearest", "--format", "json", **sources)[1])["clips"]
    assert [(each["path"], each["result"], each["format"], each["family"]) for each in clips] == [
        ("a.py", "drift", "", "pytorch"),
        ("b.py", "unknown", "", ""),
        ("c.py", "near", "", "paddle"),
        ("d.json", "same", "deepspeed", "pytorch"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("clip.toml", "gone"), "gone: no such file or directory"),
        (("gone.toml", "."), "cannot read gone.toml"),
        (("a.yaml", "."), "there is no such key"),
    ],
)
def test_a_check_that_compares_nothing_fails(run: Any, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = run(*arguments, a_yaml="a: 1\n")
    assert (status, out) == (2, "")
    assert message in err


def test_the_json_follows_its_schema(run: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[3] / "docs" / "check.schema.json").read_text())
    _, out, _ = run("clip.toml", ".", "--format", "json", a_py=TORCH % "2.0")
    jsonschema.Draft202012Validator(schema).validate(json.loads(out))
    assert json.loads(model.json_schema(CheckReport, "unified_clip config check report")) == schema


def test_sarif_has_every_finding_and_suppresses_ignored_ones(run: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    clip = CLIP_CONFIG + IGNORE.format("a.py")
    _, out, _ = run("clip.toml", ".", "--format", "sarif", clip_toml=clip, a_py=TORCH % "2.0", b_py=TORCH % "3.0")
    log = json.loads(out)
    schema = json.loads((DATA / "sarif_subset.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(log)
    first, second = log["runs"][0]["results"]
    assert first["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "b.py"},
        "region": {"startLine": 3, "startColumn": 1},
    }
    assert (first["level"], first["ruleId"], first.get("suppressions")) == ("error", "clip-drift", None)
    assert second["suppressions"] == [{"kind": "external", "justification": "a sweep"}]


def test_annotations_of_github_escape_what_would_end_them(run: Any) -> None:
    _, out, _ = run("clip.toml", ".", "--format", "github", **{"a,b:c_py": TORCH % "2.0"})
    annotation, headline = out.splitlines()
    assert annotation.startswith("::error file=a%2Cb%3Ac.py,line=3,col=1,title=A clip differs")
    assert "%0Athreshold: 2; wanted: 1%0A" in annotation
    assert headline == "1 clip: 1 not as in clip.toml."


@pytest.mark.parametrize("threshold", ["1.0", "2.0"])
@pytest.mark.parametrize("format_", ["text", "github"])
def test_a_file_that_is_named_like_a_log_command_is_none(run: Any, format_: str, threshold: str) -> None:
    _, out, _ = run("clip.toml", ".", "--format", format_, **{"::stop-commands::x_py": TORCH % threshold})
    commands = [line for line in out.splitlines() if line.lstrip().startswith("::")]
    assert len(commands) == (format_ == "github" and threshold == "2.0")
    assert not any(line.startswith("::stop") for line in commands)
    assert r"\x3a:stop-commands::x.py:3" in out or commands


def test_a_file_has_no_colours_of_the_terminal(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    _, out, _ = run("clip.toml", ".", "--out", "r.txt", a_py=TORCH % "2.0")
    assert "\x1b[" in out
    assert "\x1b" not in Path("r.txt").read_text()
    assert Path("r.txt").read_text().startswith("a.py:3:1 drift torch.nn.utils.clip_grad_norm_\n")


def test_the_result_can_be_written_to_a_file(run: Any, tmp_path: Path) -> None:
    status, out, err = run("clip.toml", ".", "--format", "json", "--out", "check.json", a_py=TORCH % "2.0")
    assert (status, err) == (1, "")
    assert out.startswith("a.py:3:1 drift torch.nn.utils.clip_grad_norm_"), "the log of a CI job shows the findings"
    assert out.endswith("\n1 clip: 1 not as in clip.toml.\n")
    assert json.loads((tmp_path / "check.json").read_text())["counts"]["clips"] == 1
    for file in ("a.py", "clip.toml"):
        before = Path(file).read_text()
        status, _, err = run("clip.toml", "a.py", "--out", file)
        assert (status, Path(file).read_text()) == (2, before)
        assert "which is one of the files that the check reads" in err
    status, _, err = run("clip.toml", ".", "--out", "no/such/dir", a_py=TORCH % "2.0")
    assert status == 2
    assert "no/such/dir" in err


def test_an_inherited_clip_is_one_clip_of_the_trainer_that_inherits_it(check: Check) -> None:
    files = {
        "base.yaml": "trainer:\n  gradient_clip_val: 2.0\n  max_epochs: 3\n",
        "nemo.yaml": "defaults:\n  - base\n  - _self_\nmodel: {}\nexp_manager: {}\ntrainer:\n  max_steps: 9\n",
    }
    assert [(each.path, each.clip) for each in check(files).findings] == [
        ("base.yaml", "NeMo: trainer.gradient_clip_val")
    ]
