"""`ClipConfig.import_from`, `export_to` and `unified-clip config`: which format a file is of, and what is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.config.format_samples import DATA

from unified_clip import ClipConfig, ClipWarning, ConfigError, NotRepresentableError
from unified_clip.cli import main
from unified_clip.config.documents import KINDS
from unified_clip.config.formats import FORMATS, convert
from unified_clip.config.formats.base import OwnFormat
from unified_clip.config.formats.engines import except_under

ZERO = DATA / "deepspeed" / "zero2.json"
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


def test_the_advised_infinity_fits_the_kind_of_the_file(write: Write) -> None:
    for name, text, infinity in (
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config:\n  gradient_clipping: {}\n", ".inf"),
        ("a.json", '{{"distributed_type": "DEEPSPEED", "deepspeed_config": {{"gradient_clipping": {}}}}}', "Infinity"),
    ):
        with pytest.raises(ConfigError, match=f"Set {re.escape(infinity)} to clip nothing"):
            ClipConfig.import_from(write(name, text.format(0)), "accelerate")
        assert ClipConfig.import_from(write(name, text.format(infinity)), "accelerate").threshold == float("inf")


# -- which format


def test_a_clip_configuration_is_recognised(write: Write) -> None:
    path = write("clip.yaml", "rule: global_norm\nthreshold: 1.0\nexclude: ['*.bias']\n")
    assert ClipConfig.import_from(path) == ClipConfig.load(path) == ClipConfig.import_from(path, "unified_clip")


def samples_that_are_recognised() -> list[Path]:
    """Return one file of each trainer."""
    paths = {path.parent: path for path in sorted(DATA.rglob("*.*")) if path.is_file() and convert._import_advice(path)}
    return list(paths.values())


@pytest.mark.nightly
def test_loading_a_trainers_own_file_names_the_command_that_imports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = samples_that_are_recognised()
    assert {path.parent.name for path in paths} >= {"deepspeed", "lightning", "optax", "megatron"}
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
            ConfigError, match=r"^'nothing' is not a format\. Pass one of accelerate, .*unified_clip\.$"
        ):
            attempt()


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '{"lr": 0.1}'), ("a.toml", ""), ("a.yaml", "- 1"), ("a.sh", "ls")]
)
def test_a_file_that_no_format_recognises_is_rejected(write: Write, name: str, text: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{name}: cannot infer the format\. To name the format, pass from_='NAME.*mmengine"
    ):
        ClipConfig.import_from(write(name, text))


def test_python_source_with_clips_has_other_commands(write: Write) -> None:
    path = write("train.py", "import torch\n\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n")
    with pytest.raises(ConfigError, match=rf"unified-clip config check clip.toml {path}. To list them: .* port {path}"):
        ClipConfig.import_from(path)


def test_a_file_with_only_a_clip_key_is_rejected_with_the_formats_that_have_it(write: Write) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^a\.json: .* has a clip key of Hugging Face's TrainingArguments or LLaMA-Factory or PaddleNLP.*\. "
        r".* pass from_='NAME', where NAME is one of hf, llama_factory, paddlenlp.*\. "
        r".* max_grad_norm \(line 1\) looks like its clip setting\.$",
    ):
        ClipConfig.import_from(write("a.json", '{"max_grad_norm": 1.0}'))


def test_the_clip_setting_of_an_unknown_trainer_is_named(write: Write) -> None:
    with pytest.raises(
        ConfigError, match=r"unified_clip\. If no .*\. runner\.gradient_clipping \(line 2\) looks like .*\.$"
    ):
        ClipConfig.import_from(write("a.yaml", "runner:\n  gradient_clipping: 1\n"))


def test_a_file_that_two_formats_recognise_is_rejected_with_both(write: Write) -> None:
    path = write("train.yaml", "max_grad_norm: 1.0\neval_strategy: steps\ntrainer:\n  max_epochs: 3\n")
    with pytest.raises(
        ConfigError, match=r"^train\.yaml may be a file of hf or lightning\. If it is a file of hf, pass from_='hf'\."
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
    has_own = not set(FORMATS[name].kinds) <= set(KINDS.values())
    assert isinstance(FORMATS[name], OwnFormat) == has_own


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", '{"gradient_clipping": }', r"^a\.json, line 1: "),
        ("a.py", "optim_wrapper = dict(", r"^a\.py, line 1: this is not Python: "),
        ("a.yaml", "a: [1", r"^a\.yaml, line 1"),
    ],
)
def test_an_unreadable_file_is_rejected(write: Write, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClipConfig.import_from(write(name, text), {"json": "deepspeed", "py": "mmengine", "yaml": "hf"}[name[2:]])


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    for from_ in (None, "hf"):
        with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
            ClipConfig.import_from(tmp_path / "a.json", from_)


def test_an_invalid_version_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^'new' is not a version of a trainer\. Pass one such as"):
        ClipConfig.import_from(ZERO, "deepspeed@new")


def test_a_python_file_is_never_run(write: Write) -> None:
    path = write("config.py", "raise SystemExit\noptim_wrapper = dict(clip_grad=dict(max_norm=2))\nopen('/nowhere')\n")
    assert ClipConfig.import_from(path).threshold == 2.0


def test_export_accepts_a_version_without_a_format() -> None:
    with pytest.raises(NotRepresentableError, match=r"Cannot export to torchtitan: .*0\.3\.0"):
        ClipConfig(rule="global_norm", threshold=1.0).export_to("torchtitan", "0.3.0")
    with pytest.raises(NotRepresentableError, match=r"0\.3\.0"):
        ClipConfig(rule="global_norm", threshold=1.0).export_to("torchtitan@0.3.1")


def test_norm_has_different_meanings_in_detectron2_and_lightning() -> None:
    """detectron2's norm is Lightning's norm in name only."""
    config = ClipConfig.import_from(DATA / "detectron2" / "norm.yaml")
    with pytest.raises(NotRepresentableError, match="Cannot export to Lightning: it does not support the rule 'norm'"):
        config.export_to("lightning")
    with pytest.raises(
        NotRepresentableError, match=r"rule 'global_norm'\. Set `rule` to .norm. or .value., .*`CLIP_TYPE: full_model`"
    ):
        ClipConfig.import_from(DATA / "lightning" / "norm.yaml").export_to("detectron2")


@pytest.mark.parametrize(
    "settings",
    [
        {"norm_type": float("inf")},
        {"include": ["head.*"]},
        {"family": "tensorflow"},
        {"threshold": None, "adaptive": {"rule": "zclip"}},
        {"threshold": {"schedule": "linear", "start": 1.0, "end": 2.0, "steps": 3}},
    ],
)
def test_a_clip_that_full_model_changes_is_not_advised_to_be_written_by_hand(settings: dict[str, Any]) -> None:
    with pytest.raises(NotRepresentableError, match=r"Or clip in Python: ") as caught:
        ClipConfig(**{"rule": "global_norm", "threshold": 1.0, **settings}).export_to("detectron2")
    assert "full_model" not in str(caught.value)


# -- the command line


def test_import_prints_toml_and_notes_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "deepspeed" / "zero2_default.json"
    assert main(["config", "import", str(path), "--from", "deepspeed@0.19.3"]) == 0
    out, err = capsys.readouterr()
    assert ClipConfig.loads(out) == ClipConfig.import_from(path, "deepspeed@0.19.3")
    assert (
        err.splitlines()[0]
        == "note: The file does not set gradient_clipping. By default, DeepSpeed clips at 1.0 since 0.19.3."
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            'exclude = ["*.bias"]',
            "Cannot export to Lightning: it does not support `exclude`. Remove it, which changes the clip.",
        ),
        (
            'exclude = ["*.bias"]\nnonfinite = "skip"',
            'Cannot export to Lightning: it does not support `exclude` or `nonfinite = "skip"`. Remove them, which '
            "changes the clip.",
        ),
        (
            'threshold = {schedule = "linear", start = 2.0, end = 1.0, steps = 9}',
            "Cannot export to Lightning: it does not support a schedule. Set `threshold` to a number.",
        ),
    ],
)
def test_export_names_every_key_that_the_trainer_does_not_support(
    keys: str, message: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    threshold = "" if "threshold" in keys else "threshold = 1.0\n"
    path = write("clip.toml", f'rule = "global_norm"\n{threshold}{keys}\n')
    assert main(["config", "export", str(path), "--to", "lightning"]) == 2
    python = (
        "Or clip in Python, except under DeepSpeed or XLA: `clip = ClipConfig.load(FILE)`, then pass "
        "`ClipCallback(clip)` of "
        "`unified_clip.integrations.lightning_callback` to the Trainer."
    )
    assert capsys.readouterr() == ("", f"unified-clip: error UC107: {message} {python}\n")


@pytest.mark.parametrize(
    ("settings", "to", "message"),
    [
        (
            {"rule": "norm", "threshold": 1.0},
            "lightning",
            'the rule \'norm\'. Set `rule` to "global_norm" or "value", or export to an',
        ),
        (
            {"rule": "value", "min": -1.0, "max": 2.0},
            "lightning",
            "`min` and `max`. Set `threshold` to c instead, for bounds of",
        ),
        (
            {"rule": "global_norm", "threshold": 1.0, "norm_type": 1.0},
            "torchtitan",
            "`norm_type = 1`. Set `norm_type` to 2, or export",
        ),
        (
            {"rule": "value", "min": -1.0, "max": 2.0},
            "maxtext",
            "the rule 'value'. Set `rule` to \"global_norm\", or export to ano",
        ),
        (
            {"rule": "value", "threshold": 1.0, "nonfinite": "raise"},
            "mmengine",
            '`nonfinite = "raise"` with the rule value. Remove `nonfinite`, which changes the clip. Or clip in Python',
        ),
    ],
)
def test_export_names_the_code_to_clip_in_python(settings: dict[str, object], to: str, message: str) -> None:
    with pytest.raises(NotRepresentableError) as caught:
        ClipConfig(**settings).export_to(to)
    assert str(caught.value).startswith(f"Cannot export to {FORMATS[to].title}: it does not support {message}")
    python = f" Or clip in Python{except_under(to)}: `clip = ClipConfig.load(FILE)`, then {FORMATS[to].instead}."
    assert str(caught.value).endswith(python)


OPTAX_EPS = {"convention": "optax", "eps": 0.5, "clip_factor": 0.25}


@pytest.mark.parametrize(
    ("table", "to", "text"),
    [
        ({"convention": "composer", "clip_factor": 0.5}, "composer", "clipping_threshold: 0.5"),
        ({"eps": 0, "smallest_norm": 0}, "composer", "adaptive\n    clipping_threshold: 0.01"),
        ({"convention": "optax", "eps": 1e-3}, "optax", "optax.adaptive_grad_clip(0.01)  #"),
        (OPTAX_EPS, "optax", "optax.adaptive_grad_clip(0.25, eps=0.5)  #"),
    ],
)  # fmt: skip
def test_agc_is_exported_if_the_trainers_rule_is_the_same(table: dict[str, object], to: str, text: str) -> None:
    config = ClipConfig(rule="norm", eps=0.0, adaptive={"rule": "agc", **table})
    assert text in config.export_to(to)


@pytest.mark.parametrize(
    ("table", "settings", "to", "message"),
    [
        ({}, {}, "timm", "with `clip_mode: agc`, it never clips the last two parameters of the model, and no key"),
        (
            OPTAX_EPS,
            {},
            "composer",
            "its adaptive clipping has other units than the convention 'optax'. Set `adaptive.conv",
        ),
        (
            {"convention": "composer"},
            {},
            "optax",
            "its adaptive clipping has other units than the convention 'composer'.",
        ),
        ({}, {}, "composer", "its adaptive clipping has `adaptive.eps = 0`, and this configuration has 0.001. Set `ad"),
        (
            {"convention": "composer", "smallest_norm": 0.5},
            {},
            "composer",
            "its adaptive clipping has `adaptive.smallest_norm = 0`, and this configuration has 0.5. Remove `adaptive.",
        ),
        (OPTAX_EPS, {"threshold": 2.0}, "optax", "its adaptive clipping has no largest threshold. Remove `threshold`"),
        (OPTAX_EPS, {"exclude": ["*.bias"]}, "optax", "it does not support `exclude`. Remove it"),
        (OPTAX_EPS, {"eps": 1e-6}, "optax", "its adaptive clipping adds no eps to the norm, and this configuration ad"),
    ],
)
def test_agc_is_not_exported_if_the_trainers_rule_differs(
    table: dict[str, object], settings: dict[str, object], to: str, message: str
) -> None:
    config = ClipConfig(**{"rule": "norm", "eps": 0.0, "adaptive": {"rule": "agc", **table}, **settings})
    with pytest.raises(NotRepresentableError) as caught:
        config.export_to(to)
    assert str(caught.value).startswith(f"Cannot export to {FORMATS[to].title}: {message}")


def test_each_suggested_clip_exists() -> None:
    """Of the modules and methods that messages suggest in place of an export."""
    suggested = " ".join(trainer.instead for trainer in FORMATS.values())
    modules, methods = (
        set(re.findall(pattern, suggested)) for pattern in (r"`(unified_clip\.[\w.]+)`", r"clip\.(\w+)\(")
    )
    assert len(modules) == 3
    assert methods == {"attach_to", "as_paddle", "as_optax"}
    assert all(find_spec(module) for module in modules)
    assert all(callable(getattr(ClipConfig, method)) for method in methods)


@pytest.mark.parametrize("suffix", ["toml", "yaml", "json"])
def test_import_writes_a_file_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    out = tmp_path / f"clip.{suffix}"
    assert main(["config", "import", str(ZERO), "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert ClipConfig.load(out) == ClipConfig.import_from(ZERO)


def test_export_prints_what_the_trainer_reads(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("clip.toml", 'rule = "global_norm"\nthreshold = 0.5\n')
    assert main(["config", "export", str(path), "--to", "deepspeed@0.19.2"]) == 0
    assert capsys.readouterr().out == '{\n  "gradient_clipping": 0.5\n}\n'


@pytest.mark.parametrize(
    ("name", "hint"), [("tensorflow", "pass keras"), ("jax", "pass optax"), ("Transformers", "pass hf")]
)
def test_a_framework_is_no_format_and_has_a_hint(
    name: str, hint: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write("clip.toml", 'rule = "none"\n'))
    assert main(["config", "export", path, "--to", name]) == 2
    assert f"'{name}' is not a format. For " in (error := capsys.readouterr().err)
    assert hint in error


def test_export_as_another_kind_of_file(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write("clip.toml", 'rule = "global_norm"\nthreshold = 0.5\nfamily = "pytorch"\n'))
    assert main(["config", "export", path, "--to", "hf", "--as", "json"]) == 0
    assert capsys.readouterr().out == '{\n  "max_grad_norm": 0.5\n}\n'
    assert main(["config", "export", path, "--to", "unified_clip", "--as", "yaml"]) == 0
    assert "threshold: 0.5\n" in capsys.readouterr().out
    assert main(["config", "export", path, "--to", "hf", "--as", "toml"]) == 2
    assert "TrainingArguments is exported as yaml or json, not as toml. Leave out --as" in capsys.readouterr().err
    assert main(["config", "export", path, "--to", "megatron", "--as", "yaml"]) == 2  # its export is an option
    assert "Megatron-LM is exported as shell scripts, not as yaml. Leave out --as" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "to", "noted"),
    [
        ('rule = "global_norm"\nthreshold = 0.5\n', "deepspeed@0.19.2", True),
        ('rule = "global_norm"\nthreshold = 0.5\nfamily = "pytorch"\n', "deepspeed", False),
        ('rule = "value"\nthreshold = 0.5\n', "lightning", False),
        ('rule = "none"\n', "deepspeed", False),
        ('rule = "global_norm"\nthreshold = inf\n', "deepspeed", False),
        ('rule = "global_norm"\nthreshold = inf\n', "maxtext", False),
        ('rule = "global_norm"\nthreshold = 0.5\n', "unified_clip", False),  # which sets none either
    ],
)
def test_export_notes_that_the_default_family_applies(
    text: str, to: str, noted: bool, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "export", str(write("clip.toml", text)), "--to", to]) == 0
    note = (
        "note: clip.toml sets no family. Exported with the default, 'pytorch' (eps = 1e-06). "
        "To choose another family, set the key family.\n"
    )
    assert capsys.readouterr().err == (note if noted else "")


def test_export_notes_the_eps_of_a_configuration_without_a_family(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("clip.toml", 'rule = "global_norm"\nthreshold = 0.5\neps = 0.0\n')
    assert main(["config", "export", str(file), "--to", "paddle"]) == 0
    assert "Exported with the default, 'pytorch' (eps = 0)." in capsys.readouterr().err


BOUND = (
    "Before rounding, coefficients differ by at most 1e-06 / n (relative; n is the norm). With threshold = 0.5, this is"
)
"""The difference between PyTorch's rule and one without eps."""

INFINITE = (
    "If the norm is infinite, TensorFlow's rule makes every gradient NaN. The other rule makes finite gradients 0 and "
    "infinite ones NaN."
)

OTHER_FAMILIES = [
    ("", "optax", "'paddle'", "This configuration's family is 'pytorch', the default", f"{BOUND} at most 2e-06."),
    ('family = "tensorflow"', "optax", "'paddle'", "This configuration's family is 'tensorflow'", INFINITE),
    ('family = "paddle"', "hf", "'pytorch'", "This configuration's family is 'paddle'", f"{BOUND} at most 2e-06."),
    ("", "keras", "'tensorflow'", "This configuration's family is 'pytorch', the default",
     f"{BOUND} at most 2e-06. {INFINITE}"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "to", "family", "own_rule", "difference"), OTHER_FAMILIES)
def test_export_to_another_family_is_an_error_with_the_remedy(
    keys: str, to: str, family: str, own_rule: str, difference: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("clip.toml", f'rule = "global_norm"\nthreshold = 0.5\n{keys}\n')
    assert main(["config", "export", str(path), "--to", to]) == 2
    out, error = capsys.readouterr()
    remedy = f"Set `family` to {family}. Or export the nearest rule: pass --nearest, or nearest=True in Python."
    message = f"its family is {family}. {own_rule}. {remedy} {difference}"
    assert out == ""
    assert error == f"unified-clip: error UC107: Cannot export to {FORMATS[to].title}: {message}\n"


@pytest.mark.parametrize(("keys", "to", "family", "own_rule", "difference"), OTHER_FAMILIES)
def test_nearest_exports_the_rule_of_the_other_family_and_prints_the_difference(
    keys: str, to: str, family: str, own_rule: str, difference: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("clip.toml", f'rule = "global_norm"\nthreshold = 0.5\n{keys}\n')
    assert main(["config", "export", str(path), "--to", to, "--nearest"]) == 0
    out, error = capsys.readouterr()
    eps = "1e-06" if family == "'pytorch'" else "0"
    assert (
        error == f"note: Exported the nearest rule that the format supports, {family} with eps = {eps}. {difference}\n"
    )
    assert main(["config", "export", str(write("same.toml", f"{TEXT}\nfamily = {family}\n")), "--to", to]) == 0
    assert capsys.readouterr().out == out


TEXT = 'rule = "global_norm"\nthreshold = 0.5'


def test_nearest_in_python_warns_of_the_difference() -> None:
    config = ClipConfig(rule="norm", threshold=0.5, eps=1e-8)
    with pytest.raises(
        NotRepresentableError, match=r"does not support `eps = 1e-08`\. Remove `eps`\. Or .*=True.* 9.9e-"
    ):
        config.export_to("detectron2")
    with pytest.warns(ClipWarning, match=r"'pytorch' with eps = 1e-06\. .* 9\.9e-07 / n .* at most 2e-06\.$"):
        text = config.export_to("detectron2", nearest=True)
    assert text == config.model_copy(update={"eps": None}).export_to("detectron2")


def test_nearest_replaces_no_other_setting(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("clip.toml", f'{TEXT}\nnonfinite = "skip"\n')
    assert main(["config", "export", str(path), "--to", "optax", "--nearest"]) == 2
    assert 'does not support `nonfinite = "skip"`' in capsys.readouterr().err


@pytest.mark.parametrize("nearest", [False, True])
def test_a_family_with_the_same_effect_is_exported(nearest: bool) -> None:
    """Per tensor, TensorFlow's and Paddle's rules are the same. So are Paddle's with eps = 1e-6 and PyTorch's."""
    config = ClipConfig(rule="norm", threshold=0.5, family="tensorflow")
    assert config.export_to("paddleclas", nearest=nearest) == "Optimizer:\n  clip_norm: 0.5\n"
    config = ClipConfig(rule="global_norm", threshold=0.5, family="paddle", eps=1e-6)
    assert config.export_to("deepspeed", nearest=nearest) == '{\n  "gradient_clipping": 0.5\n}\n'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "nowhere.toml"], "cannot read nowhere.toml"),
        (["import", str(ZERO), "--from", "gin"], "'gin' is not a format"),
        (["import", str(ZERO), "--out", "clip.txt"], "the suffix is not one of"),
        (["import", str(ZERO), "--out", "nowhere/clip.toml"], "nowhere/clip.toml cannot be written: No such file"),
        (["export", str(DATA / "timm" / "vit_value.yaml"), "--to", "hf"], "it does not support the rule 'value'"),
    ],
)
def test_a_rejected_command_has_status_2_and_prints_nothing(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]


def test_a_file_without_keys_of_the_passed_format_is_rejected_with_the_format_that_it_resembles(
    tmp_path: Path,
) -> None:
    """Or it would be found to say nothing, and defaults would be taken for what it means."""
    (tmp_path / "clip.yaml").write_text("rule: global_norm\nthreshold: 0.3\n", encoding="utf-8")
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "gradient_clipping": 0.5}', encoding="utf-8")
    (tmp_path / "ds.yaml").write_text("SOLVER:\n  CLIP_GRADIENTS: {ENABLED: true}\n", encoding="utf-8")
    with pytest.raises(
        ConfigError,
        match=r"^clip\.yaml: no key shows that .* The file looks like unified_clip, not like hf\. If it is a file of",
    ):
        ClipConfig.import_from(tmp_path / "clip.yaml", "hf")
    with pytest.raises(
        ConfigError, match=r"line 1, gradient_clipping: Keras has no .* looks like deepspeed, not like keras"
    ):
        ClipConfig.import_from(tmp_path / "ds.json", "keras@3.15")
    with pytest.raises(ConfigError, match=r"looks like detectron2, not like lightning"):
        ClipConfig.import_from(tmp_path / "ds.yaml", "lightning")


def test_the_file_to_import_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hf.yaml"
    path.write_text("max_grad_norm: 0.3\n", encoding="utf-8")
    assert main(["config", "import", str(path), "--from", "hf", "--out", str(path)]) == 2
    assert "the file to import. Pass another file to --out." in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "max_grad_norm: 0.3\n"
