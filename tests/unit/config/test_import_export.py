"""`unified-clip config import` and `config export`: output, notes, and settings that a trainer does not support."""

from __future__ import annotations

import re
from errno import ENOSPC
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.config.clip_configs import Write
from support.config.format_samples import DATA

from unified_clip import ClipConfig, NotRepresentableError
from unified_clip.cli import main
from unified_clip.config.formats import FORMATS
from unified_clip.config.formats.engines import except_under

ZERO = DATA / "deepspeed" / "zero2.json"


def test_import_prints_toml_and_notes_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    path = DATA / "deepspeed" / "zero2_default.json"
    assert main(["config", "import", str(path), "--from", "deepspeed@0.19.3"]) == 0
    out, err = capsys.readouterr()
    assert ClipConfig.loads(out) == ClipConfig.import_from(path, "deepspeed@0.19.3")
    assert (
        err.splitlines()[0]
        == "note: The file does not set gradient_clipping. By default, DeepSpeed 0.19.3 clips at 1.0."
    )


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            'exclude = ["*.bias"]',
            "Cannot export to Lightning: it does not support `exclude`. Remove it. This changes the clip.",
        ),
        (
            'exclude = ["*.bias"]\nnonfinite = "skip"',
            'Cannot export to Lightning: it does not support `exclude` or `nonfinite = "skip"`. Remove them. '
            "This changes the clip.",
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
        "Or clip in Python, except under DeepSpeed, FSDP 1 or XLA. Write `clip = ClipConfig.load(FILE)`, then pass "
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
            "`min` and `max`. If `min` is -c and `max` is c, set `threshold` to c instead.",
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
            '`nonfinite = "raise"` with `rule = "value"`. Remove `nonfinite`. This changes the clip. Or clip in Python',
        ),
    ],
)
def test_export_names_the_code_to_clip_in_python(settings: dict[str, object], to: str, message: str) -> None:
    with pytest.raises(NotRepresentableError) as caught:
        ClipConfig(**settings).export_to(to)
    assert str(caught.value).startswith(f"Cannot export to {FORMATS[to].title}: it does not support {message}")
    python = f" Or clip in Python{except_under(to)}. Write `clip = ClipConfig.load(FILE)`, then {FORMATS[to].instead}."
    assert str(caught.value).endswith(python)


OPTAX_EPS = {"convention": "optax", "eps": 0.5, "clip_factor": 0.25}


@pytest.mark.parametrize(
    ("table", "to", "text"),
    [
        ({"convention": "composer", "clip_factor": 0.5}, "composer", "clipping_threshold: 0.5"),
        ({"eps": 0, "smallest_norm": 0}, "composer", "clipping_threshold: 0.01\n    clipping_type: adaptive"),
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
        ({}, {}, "timm", "with `clip_mode: agc`, timm never clips the last two parameters of the model. Set"),
        (OPTAX_EPS, {}, "composer", "it does not support `adaptive.convention = 'optax'`. Set `adaptive.conv"),
        ({"convention": "composer"}, {}, "optax", "it does not support `adaptive.convention = 'composer'`. Set"),
        ({}, {}, "composer", "it always uses `adaptive.eps = 0`, but your configuration has 0.001. Set `ad"),
        (
            {"convention": "composer", "smallest_norm": 0.5},
            {},
            "composer",
            "it always uses `adaptive.smallest_norm = 0`, but your configuration has 0.5. Remove `adaptive.",
        ),
        (OPTAX_EPS, {"threshold": 2.0}, "optax", "it does not support `threshold` together with adaptive clipping. "),
        (OPTAX_EPS, {"exclude": ["*.bias"]}, "optax", "it does not support `exclude`. Remove it"),
        (OPTAX_EPS, {"eps": 1e-6}, "optax", "its adaptive clipping adds no eps to the norm, but your configuration ad"),
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
    suggested = " ".join(trainer.instead for trainer in FORMATS.values())
    modules, methods = (
        set(re.findall(pattern, suggested)) for pattern in (r"`(unified_clip\.[\w.]+)`", r"clip\.(\w+)\(")
    )
    assert len(modules) == 2
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
        "To choose another family, set `family` in this file.\n"
    )
    assert capsys.readouterr().err == (note if noted else "")


def test_export_notes_the_eps_of_a_configuration_without_a_family(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("clip.toml", 'rule = "global_norm"\nthreshold = 0.5\neps = 0.0\n')
    assert main(["config", "export", str(file), "--to", "paddle"]) == 0
    assert "Exported with the default, 'pytorch' (eps = 0)." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["import", str(ZERO), "--from", "gin"], "'gin' is not a format"),
        (["import", str(ZERO), "--out", "clip.txt"], "the suffix is not one of"),
        (["import", str(ZERO), "--out", "nowhere/clip.toml"], "nowhere/clip.toml cannot be written: No such file"),
        (["export", str(ZERO), "--to", "deepspeed", "--out", "no/ds.json"], "no/ds.json cannot be written"),
        (["export", str(ZERO), "--to", "deepspeed", "--out", "ds.yaml"], "is exported as json, not as yaml. Leave out"),
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


@pytest.mark.parametrize(
    ("to", "name", "text"),
    [
        ("hf", "args.json", '{\n  "max_grad_norm": 0.5\n}\n'),
        ("hf", "args.yaml", "max_grad_norm: 0.5\n"),
        ("hf", "args.txt", "max_grad_norm: 0.5\n"),
        ("megatron", "args.sh", "--clip-grad 0.5\n"),
    ],
)
def test_export_writes_the_kind_of_file_that_the_suffix_names(
    to: str, name: str, text: str, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip, out = write("clip.toml", 'rule = "global_norm"\nthreshold = 0.5\n'), tmp_path / name
    assert main(["config", "export", str(clip), "--to", to, "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8").endswith(text)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("note: clip.toml sets no family")
    assert {*tmp_path.iterdir()} == {clip, out}, "no other file is left"


@pytest.mark.parametrize("command", ["import", "export"])
@pytest.mark.parametrize("is_link", [False, True])
def test_an_existing_file_is_not_overwritten(
    command: str, is_link: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "hf.yaml", tmp_path / "out.yaml"
    path.write_text("max_grad_norm: 0.3\n", encoding="utf-8")
    if is_link:
        out.symlink_to(tmp_path / "missing.yaml")
    arguments = ["--to", "lightning"] if command == "export" else []
    for existing in (path, out) if is_link else (path,):
        assert main(["config", command, str(path), "--from", "hf", *arguments, "--out", str(existing)]) == 2
        assert f"UC206: {existing} exists. Pass another file to --out." in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "max_grad_norm: 0.3\n"
    assert not out.exists()


def test_a_file_that_cannot_be_written_whole_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hf.yaml"
    path.write_text("max_grad_norm: 0.3\n", encoding="utf-8")

    def write_the_beginning(file: Path, content: bytes) -> None:
        file.write_text(content[:5].decode())
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_the_beginning)
    assert main(["config", "export", str(path), "--from", "hf", "--to", "hf", "--out", str(tmp_path / "new.yaml")]) == 2
    assert "new.yaml cannot be written: No space left on device. Free disk space" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == [path]
