"""`unified-clip config check`: which clips agree with a configuration, which differ, and which are unknown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, TORCH, Check, only_finding
from support.config.format_samples import SAMPLES, Sample
from support.tiers import sampled

from unified_clip import ClipConfig
from unified_clip.check import check_files, files_to_check
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
    files = files_to_check.files([sample.path], clip)
    assert check_files.check(clip, [sample.path], files).findings == []
    other_settings = ClipConfig(rule="value", min=-7.0, max=8.0, check=rules)
    other_settings.save(clip)
    finding = only_finding(check_files.check(clip, [sample.path], files))
    assert finding.kind == "drift"
    assert finding.differences


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
    assert "This edit is recommended" in finding.edit.splitlines()[0]
    assert finding.edit.endswith(
        "The check then does not compare the threshold of this clip with the clip configuration."
    )


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
    assert difference.about == "the result if the norm is not finite"
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
        assert "names the function but does not call it" in finding.does


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
    assert "in the directory of this source or a parent directory" in finding.does
    assert check({"a.py": source.replace('"{}"', 'path="clip.toml"')}, CLIP_CONFIG, "a.py").findings == []
    finding = only_finding(check({"a.py": source.replace('"{}"', "**options")}, CLIP_CONFIG, "a.py"))
    assert "pass it as the first argument" in finding.does


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
    assert "Cannot find the file of ClipConfig.load(" in finding.does
    nearest = PATHS.format('str(Path("clip.toml"))')
    assert only_finding(check({"team/a.py": nearest, **nearer}, CLIP_CONFIG, "team/a.py")).kind == "drift"


@pytest.mark.parametrize("path", ["args.clip", "Path(args.clip)", 'os.environ["CLIP"]', "Path(__file__).parents[99]"])
def test_a_path_known_at_run_time_only_gets_advice_about_paths(check: Check, path: str) -> None:
    finding = only_finding(check({"a.py": PATHS.format(path)}, CLIP_CONFIG, "a.py"))
    assert finding.kind == "unknown"
    assert "Write a path relative to the source, such as ClipConfig.load(Path(__file__).parent" in finding.does


def test_other_python_source_is_no_trainers_configuration(check: Check) -> None:
    library = "optimizer = make()\n__all__ = [name for name in globals()]\n\n\nclass Data:\n    dataset = 1\n"
    assert check({"a.py": library, "b.py": TORCH % "1.0"}).counts.trainers == 0
    parser = "optim_wrapper = None\n\n\ndef add(group):\n    group.add_argument('--clip-grad', default=5.0)\n"
    assert only_finding(check({"a.py": parser}, CLIP_CONFIG, "a.py")).clip.startswith("mmengine"), (
        "and not Megatron-LM's options"
    )


@pytest.mark.parametrize("name", ["clipvalue", "clip_value", "clip-value", "CLIP_VALUE", "clip_by_value"])
def test_a_clip_by_value_for_no_known_trainer_is_unknown(check: Check, name: str) -> None:
    files = {"own.yaml": f"optimizer:\n  {name}: 0.5\n", "own.toml": f"{name} = 0.5\n"}
    if name != "clipvalue":  # Keras reads it in JSON
        files["own.json"] = f'{{"{name}": 0.5}}'
    if name.islower() and "-" not in name:
        files["own.py"] = f"settings = dict({name}=0.5)\n"
    findings = check({**files, "ds.json": DEEPSPEED % "1.0"}).findings
    assert {(each.kind, each.path) for each in findings} == {("unknown", file) for file in files}


def test_other_settings_named_clip_are_no_clips_of_gradients(check: Check) -> None:
    image = "import tensorflow as tf\n\nimage = tf.clip_by_value(image, clip_value_min=0, clip_value_max=1)\n"
    own = "ppo: {clip: 0.2, clip_range: 0.2}\nimage: {clip_values: [0, 1], clip_value_min: 0, clip_by_value: false}\n"
    assert check({"image.py": image, "own.yaml": own, "ds.json": DEEPSPEED % "1.0"}).findings == []


def test_the_name_of_a_clip_has_the_key_with_a_value(check: Check) -> None:
    keras = '{"class_name": "Adam", "config": {\n"learning_rate": 0.1,\n"clipnorm": null,\n"global_clipnorm": 5.0}}\n'
    lightning = "trainer:\n  gradient_clip_algorithm: norm\n  gradient_clip_val: 5.0\n"
    findings = check({"a.json": keras, "b.yaml": lightning}).findings
    assert [(each.line, each.clip) for each in findings] == [
        (4, "Keras: config.global_clipnorm"),
        (3, "Lightning: trainer.gradient_clip_val"),
    ]


def test_a_setting_of_ml_collections_is_unknown_even_beside_a_clip(check: Check) -> None:
    config = "import ml_collections\n\nconfig = ml_collections.ConfigDict()\nconfig.clip_gradient = 5.0\n"
    findings = check({"a.py": config + TORCH % "1.0"}).findings
    assert [(each.kind, each.clip) for each in findings] == [("unknown", "clip_gradient = 5.0")]
