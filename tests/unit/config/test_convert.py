"""Formats of trainers' files: which one a file has, and files that no format or several formats recognise."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.config.clip_configs import Write
from support.config.format_samples import DATA

from unified_clip import ClipConfig, ConfigError, NotRepresentableError
from unified_clip.cli import main
from unified_clip.config.documents import DOCUMENT_KINDS
from unified_clip.config.formats import FORMATS, convert
from unified_clip.config.formats.base import OwnFormat

ZERO = DATA / "deepspeed" / "zero2.json"


def test_the_advised_infinity_fits_the_kind_of_the_file(write: Write) -> None:
    for name, text, infinity in (
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: {}\n", ".inf"),
        ("a.json", '{{"distributed_type": "DEEPSPEED", "deepspeed_config": {{"gradient_clipping": {}}}}}', "Infinity"),
    ):
        with pytest.raises(ConfigError, match=f"Set {re.escape(infinity)} to clip nothing"):
            ClipConfig.import_from(write(name, text.format(0)), "accelerate")
        assert ClipConfig.import_from(write(name, text.format(infinity)), "accelerate").threshold == float("inf")


def test_a_clip_configuration_is_recognised(write: Write) -> None:
    path = write("clip.yaml", "rule: global_norm\nthreshold: 1.0\nexclude: ['*.bias']\n")
    assert ClipConfig.import_from(path) == ClipConfig.load(path) == ClipConfig.import_from(path, "unified_clip")


def samples_that_are_recognised() -> list[Path]:
    paths = {path.parent: path for path in sorted(DATA.rglob("*.*")) if path.is_file() and convert._import_advice(path)}
    return list(paths.values())


@pytest.mark.nightly
def test_loading_a_trainers_own_file_names_the_command_that_imports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = samples_that_are_recognised()
    assert {path.parent.name for path in paths} >= {"deepspeed", "lightning", "mmengine", "megatron"}
    for path in paths:
        with pytest.raises(ConfigError, match=r"is a configuration of .*, not of unified_clip\. Import it: ") as caught:
            ClipConfig.load(path)
        command, _, call = str(caught.value).partition("Import it: ")[2].partition(", or ")
        out = tmp_path / "clip.toml"
        arguments = shlex.split(command.replace("clip.toml", shlex.quote(str(out))))
        status = main(arguments[1:])
        assert "nothing in it tells" not in capsys.readouterr().err
        if status == 0:  # others hold what cannot be imported, which the command explains
            assert ClipConfig.load(out) == eval(call, {"ClipConfig": ClipConfig})


def test_loading_a_file_of_two_trainers_names_one_of_them(write: Write) -> None:
    path = write("train.yaml", "max_grad_norm: 1.0\neval_strategy: steps\ntrainer:\n  max_epochs: 3\n")
    with pytest.raises(ConfigError, match=r" --from hf --out clip\.toml, or ClipConfig\.import_from\('.*', 'hf'\)$"):
        ClipConfig.load(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("clip.toml", 'rule = "global_norm"\ngradient_clipping = 1.0\n', "line 2, gradient_clipping: there is no such"),
        ("clip.toml", "colour = 1\n", "line 1, colour: there is no such key"),
        ("clip.toml", "colour = \n", "line 1: this is not TOML: Invalid value. Correct it."),
        ("absent.py", "", "is not one of .toml"),
    ],
)
def test_loading_another_file_names_its_error(write: Write, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ClipConfig.load(write(name, text))
    assert "Import it" not in str(caught.value)


def test_a_clip_configuration_can_be_exported_as_such(write: Write) -> None:
    config = ClipConfig(rule="value", min=-1.0, max=2.0)
    assert ClipConfig.loads(config.export_to("unified_clip")) == config


def test_errors_in_a_clip_configuration_name_the_line(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"^clip\.toml, line 2, treshold: .*Did you mean threshold"):
        ClipConfig.import_from(write("clip.toml", 'rule = "global_norm"\ntreshold = 1.0\n'))


def test_an_unknown_format_is_rejected_with_the_known_formats() -> None:
    for attempt in (
        lambda: ClipConfig.import_from(ZERO, "nothing@1"),
        lambda: ClipConfig(rule="none").export_to("nothing"),
    ):
        with pytest.raises(
            ConfigError, match=r"^'nothing' is not a format\. Pass one of accelerate, .*unified_clip\. For another"
        ):
            attempt()


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '{"lr": 0.1}'), ("a.toml", ""), ("a.yaml", "- 1"), ("a.sh", "ls")]
)
def test_a_file_that_no_format_recognises_is_rejected(write: Write, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: cannot infer the format\. .*docs/formats\.md, pass from_='NAME'"):
        ClipConfig.import_from(write(name, text))


@pytest.mark.parametrize("text", ["train:\n  grad_clip: 1.0\n", "train:\n  gradient_clipping: 1.0\n"])
def test_the_clip_key_of_an_unknown_file_comes_before_the_names_of_formats(write: Write, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ClipConfig.import_from(write("a.yaml", text))
    message = str(raised.value)
    assert re.search(r"cannot infer the format\. train\.\w+ \(line 2\) looks like a clip setting", message)
    assert len(re.findall(rf"\b({'|'.join(FORMATS)})\b", message)) < 8


@pytest.mark.parametrize("code", ["clip_grad_norm_(model.parameters(), 1.0)", "TrainingArguments(output_dir='a')"])
def test_python_source_has_other_commands(write: Write, code: str) -> None:
    path = write("train.py", f"{code}\n")
    with pytest.raises(ConfigError) as raised:
        ClipConfig.import_from(path)
    text = str(raised.value)
    assert f"unified-clip config check clip.toml {path}. To list the clips: unified-clip port {path}. If the" in text
    assert text.endswith("where NAME is one of mmcv, mmengine.")


def test_a_file_with_only_a_clip_key_is_rejected_with_the_formats_that_have_it(write: Write) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^a\.json: .*\. max_grad_norm \(line 1\) looks like a clip setting\. This key controls clipping in "
        r"Hugging Face's TrainingArguments or LLaMA-Factory or PaddleNLP.*\. .* pass from_='NAME', where NAME is one "
        r"of hf, llama_factory, paddlenlp.*\. If your own code reads this key, pass --key .*\.$",
    ):
        ClipConfig.import_from(write("a.json", '{"max_grad_norm": 1.0}'))


def test_a_file_that_two_formats_recognise_is_rejected_with_both(write: Write) -> None:
    path = write("train.yaml", "max_grad_norm: 1.0\neval_strategy: steps\ntrainer:\n  max_epochs: 3\n")
    with pytest.raises(
        ConfigError,
        match=r"^train\.yaml might have the format hf or lightning\. If the format is hf, pass from_='hf'\.",
    ):
        ClipConfig.import_from(path)
    assert ClipConfig.import_from(path, "hf").threshold == 1.0


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        ("config import train.json", "pass --from deepspeed@"),
        ("config export train.json --to hf", "pass --from deepspeed@"),
        ("explain train.json", "pass --from deepspeed@"),
        ("explain clip.toml train.json", "pass --from-b deepspeed@"),
    ],
)
def test_advice_to_name_a_format_has_the_option_of_the_command(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, advice: str
) -> None:
    write("train.json", '{"zero_optimization": {"stage": 2}}')
    monkeypatch.chdir(write("clip.toml", 'rule = "none"').parent)
    assert main(command.split()) == 2
    assert advice in capsys.readouterr().err
    option, name = advice.removeprefix("pass ").split()
    assert main([*command.split(), option, f"{name}0.19.3"]) == 0, "the advice works"


@pytest.mark.parametrize("name", ["hf", "torchtitan", "mmengine"])
def test_a_file_with_a_suffix_that_a_format_does_not_have_is_rejected(write: Write, name: str) -> None:
    suffix = {"hf": "toml", "torchtitan": "json", "mmengine": "yaml"}[name]
    with pytest.raises(ConfigError, match=rf"^train\.{suffix}: {FORMATS[name].title} reads "):
        ClipConfig.import_from(write(f"train.{suffix}", ""), name)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_with_files_of_its_own_reads_and_writes_them(name: str) -> None:
    has_own = not set(FORMATS[name].kinds) <= set(DOCUMENT_KINDS.values())
    assert isinstance(FORMATS[name], OwnFormat) == has_own


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"gradient_clipping": }', r"^a\.json, line 1: "),
        ("a.py", "optim_wrapper = dict(", r"^a\.py: Line 1 is not valid Python: "),
        ("a.yaml", "a: [1", r"^a\.yaml, line 1"),
    ],
)
def test_an_unreadable_file_is_rejected(write: Write, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClipConfig.import_from(write(name, text), {"json": "deepspeed", "py": "mmengine", "yaml": "hf"}[name[2:]])


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    for from_ in (None, "hf"):
        with pytest.raises(ConfigError, match=r"cannot be read: No such file"):
            ClipConfig.import_from(tmp_path / "a.json", from_)


def test_an_invalid_version_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^'new' is not a version of a trainer\. Pass a version such as"):
        ClipConfig.import_from(ZERO, "deepspeed@new")


def test_a_python_file_is_never_run(write: Write) -> None:
    path = write("config.py", "raise SystemExit\noptim_wrapper = dict(clip_grad=dict(max_norm=2))\nopen('/nowhere')\n")
    assert ClipConfig.import_from(path).threshold == 2.0


def test_export_accepts_a_version_without_a_format() -> None:
    with pytest.raises(NotRepresentableError, match=r"Cannot export to torchtitan: .*0\.3\.0"):
        ClipConfig(rule="global_norm", threshold=1.0).export_to("torchtitan", "0.3.0")
    with pytest.raises(NotRepresentableError, match=r"0\.3\.0"):
        ClipConfig(rule="global_norm", threshold=1.0).export_to("torchtitan@0.3.1")


@pytest.mark.parametrize(
    ("text", "name", "is_number"),
    [
        ("output_dir: o\nmax_grad_norm: 1e-3\n", "hf", False),
        ("output_dir: o\nmax_grad_norm: !!float 1e-3\n", "hf", True),
        ("output_dir: o\nmax_grad_norm: 1.0e-3\n", "hf", True),
        ("sequence_len: 8\nmax_grad_norm: 1e-3\n", "axolotl", True),
        ("finetuning_type: lora\nmax_grad_norm: 1e-3\n", "llama_factory", True),
        ("trainer:\n  gradient_clip_val: 1e-3\n", "lightning", True),
    ],
)
def test_a_number_of_yaml_1_2_is_rejected_if_the_trainer_reads_text(
    write: Write, text: str, name: str, is_number: bool
) -> None:
    path = write("a.yaml", text)
    if is_number:
        assert ClipConfig.import_from(path, name).threshold == 0.001
        return
    with pytest.raises(ConfigError, match=r"PyYAML reads 1e-3 as text, .* Write 0\.001\."):
        ClipConfig.import_from(path, name)


def test_norm_has_different_meanings_in_detectron2_and_lightning() -> None:
    """In detectron2, "norm" means a norm per tensor. In Lightning, it means the total norm."""
    config = ClipConfig.import_from(DATA / "detectron2" / "norm.yaml")
    with pytest.raises(NotRepresentableError, match="Cannot export to Lightning: it does not support the rule 'norm'"):
        config.export_to("lightning")
    with pytest.raises(NotRepresentableError, match=r"rule 'global_norm'\. Set `rule` to .norm. or .value., "):
        ClipConfig.import_from(DATA / "lightning" / "norm.yaml").export_to("detectron2")


def test_a_file_without_keys_of_the_passed_format_is_rejected_with_the_format_that_it_resembles(
    tmp_path: Path,
) -> None:
    """Otherwise, the defaults of the passed format would count as its settings."""
    (tmp_path / "clip.yaml").write_text("rule: global_norm\nthreshold: 0.3\n", encoding="utf-8")
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "gradient_clipping": 0.5}', encoding="utf-8")
    (tmp_path / "ds.yaml").write_text("SOLVER:\n  CLIP_GRADIENTS: {ENABLED: true}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError,
        match=r"^clip\.yaml: no key shows that .* The file looks like unified_clip, not like hf\. If the format is",
    ):
        ClipConfig.import_from(tmp_path / "clip.yaml", "hf")
    misplaced = r"line 1, gradient_clipping: Keras does not read this key.* looks like deepspeed, not like keras"
    with pytest.raises(ConfigError, match=misplaced):
        ClipConfig.import_from(tmp_path / "ds.json", "keras@3.15")
    with pytest.raises(ConfigError, match=r"looks like detectron2, not like lightning"):
        ClipConfig.import_from(tmp_path / "ds.yaml", "lightning")
