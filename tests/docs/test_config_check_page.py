"""docs/config-check.md: its tutorial of four teams, its examples, and the jobs and hooks for CI."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from unified_clip import ClipConfig, cli
from unified_clip.check import check_files, files_to_check
from unified_clip.config.documents import DOCUMENT_KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "config-check.md").read_text(encoding="utf-8")
TEAMS = re.findall(r"`([\w/]+\.\w+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
CHECK, *EXPORTS = (command.split() for command in re.findall(r"^    unified-clip (.*)$", PAGE, re.MULTILINE)[:4])

NLP, VISION, RESEARCH, RECSYS = (
    "nlp/training_args.json",
    "vision/config.yaml",
    "research/optimizer.py",
    "recsys/train.py",
)
FILES = {
    "clip.toml": 'rule = "global_norm"\nthreshold = 1.0\nfamily = "pytorch"\n',
    "llm/ds_config.json": """{
  "train_micro_batch_size_per_gpu": 4,
  "zero_optimization": {"stage": 2},
  "gradient_clipping": 0.5
}
""",
    "speech/train.py": """import torch


def step(model, optimizer, loss, args):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
    optimizer.step()
""",
}
"""A repository with a clip that differs, and with a clip of unknown effect."""

HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


# -- the tutorial


@pytest.fixture
def teams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert [path for path, _ in TEAMS] == [NLP, VISION, RESEARCH, RECSYS, "clip.toml", RECSYS, "nlp/train.py"]
    for path, text in TEAMS[:-2]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_steps_print_the_output_on_the_page(teams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(CHECK) == 1
    printed = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)[0]
    assert capsys.readouterr().out == printed
    outputs = []
    for export in EXPORTS:
        assert cli.main(export) == 0
        outputs.append(capsys.readouterr().out)
    assert "  gradient_clip_algorithm: norm\n" in outputs[0]
    assert outputs[1] == '{\n  "max_grad_norm": 1.0\n}\n'
    assert json.loads(outputs[2])["global_clipnorm"] == 1.0
    (teams / "vision" / "config.yaml").write_text(outputs[0])
    optimizer = teams / "research" / "optimizer.py"
    optimizer.write_text(optimizer.read_text().replace("0.5", "1.0"))
    assert cli.main(CHECK) == 0
    lines = re.findall(r"^    ((?:\w+/\S+):\d+ .*)$", PAGE, re.MULTILINE)
    expected = [re.sub(r"(config.yaml):\d+", r"\1:2", line) for line in lines]  # the exported file is shorter
    assert capsys.readouterr().out.splitlines()[:4] == expected
    train = teams / "recsys" / "train.py"
    train.write_text(TEAMS[-2][1])
    assert cli.main(CHECK) == 1
    assert 'clip.toml:8:1 unused check.nearest "recsys/**"' in capsys.readouterr().out
    clip = teams / "clip.toml"
    clip.write_text(re.sub("nearest = .*", 'nearest = ["research/**"]', clip.read_text()))
    assert cli.main(CHECK) == 0
    assert "recsys/train.py:6 same unified_clip.ClipConfig.load (pytorch)\n" in capsys.readouterr().out
    train.write_text(train.read_text().replace("= clip(", "= ("))
    assert cli.main(CHECK) == 1
    assert "No checked code reads clip, so this configuration clips nothing." in capsys.readouterr().out


CHANGES = [
    (
        *(NLP, '"max_grad_norm": 1.0', '"max_grad_norm": 0.5'),
        "nlp/training_args.json:4:1 drift Hugging Face's TrainingArguments: max_grad_norm",
    ),
    (
        *(RESEARCH, "optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))", "optax.adamw(3e-4)"),
        'clip.toml:6:1 missing check.require "research/**"',
    ),
    (
        *(RECSYS, "gradients, 1.0", "gradients, clip_norm"),
        "recsys/train.py:8:23 unknown tensorflow.clip_by_global_norm",
    ),
    (
        *(VISION, "gradient_clip_val", "gradient_clip_vall"),
        "vision/config.yaml:3:1 unknown Lightning by default: trainer.gradient_clip_val is not set",
    ),
    (
        *("recsys/finetune.py", "    gradients, norm = tf.clip_by_global_norm(gradients, 1.0)\n", ""),
        'recsys/finetune.py:7:1 missing check.each "recsys/*.py"',
    ),
    (
        *(
            RECSYS,
            "clip(tape.gradient(loss, model.trainable_variables))",
            "tape.gradient(loss, model.trainable_variables)",
        ),
        "recsys/train.py:6:8 unknown unified_clip.ClipConfig.load",
    ),
]
"""(file, text, what replaces it, the line of the report)."""


def test_each_change_is_reported(teams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (teams / VISION).write_text((teams / VISION).read_text().replace("value", "norm"))
    (teams / RESEARCH).write_text((teams / RESEARCH).read_text().replace("0.5", "1.0"))
    for path, old, new, line in CHANGES:
        if old.startswith("clip("):
            (teams / path).write_text(TEAMS[-2][1])
            clip = teams / "clip.toml"
            clip.write_text(re.sub("nearest = .*", 'nearest = ["research/**"]', clip.read_text()))
        is_new = not (teams / path).exists()
        before = (teams / (RECSYS if is_new else path)).read_text()
        assert old in before
        (teams / path).write_text(before.replace(old, new))
        assert cli.main(CHECK) == 1
        assert line in capsys.readouterr().out.splitlines()
        if is_new:
            (teams / path).unlink()
        else:
            (teams / path).write_text(before)
        assert cli.main(CHECK) == 0
        capsys.readouterr()


def test_a_trainer_whose_clip_is_off_passes(teams: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = TEAMS[-1][1]
    (rules,) = re.findall(r"```toml\n(require = .*?)```", PAGE, re.DOTALL)
    clip, arguments, train = teams / "clip.toml", teams / NLP, teams / "nlp" / "train.py"
    (teams / VISION).write_text((teams / VISION).read_text().replace("value", "norm"))
    (teams / RESEARCH).write_text((teams / RESEARCH).read_text().replace("0.5", "1.0"))
    train.write_text(script)
    off = arguments.read_text().replace('"max_grad_norm": 1.0', '"max_grad_norm": 0')
    arguments.write_text(off)
    assert cli.main(CHECK) == 1
    assert f"{NLP}:4:1 drift" in capsys.readouterr().out
    require, _, entry = rules.partition("\n\n")
    clip.write_text(re.sub(r"require.*\n", f"{require}\n", clip.read_text()) + f"\n{entry}")
    assert cli.main(CHECK) == 0
    changes = [
        (arguments, off.replace(": 0", ": 0.3"), f"{NLP}:4:1 drift"),
        (arguments, off.replace(',\n  "max_grad_norm": 0', ""), "clip.toml:10:1 unused"),
        (arguments, off.replace("grad_norm", "gard_norm"), f"{NLP}:4:1 unknown"),
        (train, script.replace("callbacks=[ClipCallback(clip)]", ""), "nlp/train.py:8:8 unknown"),
    ]
    for path, text, line in changes:
        before = path.read_text()
        path.write_text(text)
        assert cli.main(CHECK) == 1
        assert line in capsys.readouterr().out
        path.write_text(before)


# -- the other examples


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_exceptions_of_the_page_are_valid(folder: Path) -> None:
    (entries,) = re.findall(r"```toml\n(\[\[check.ignore\]\].*?)```", PAGE, re.DOTALL)
    (formats,) = re.findall(r"```toml\n(\[check.formats\].*?)```", PAGE, re.DOTALL)
    clip = folder / "clip.toml"
    clip.write_text(clip.read_text() + entries + formats)
    rules = ClipConfig.load(clip).check
    assert rules is not None
    assert len(rules.ignore) == 3
    report = check_files.check(clip, [folder], files_to_check.files([folder], clip))
    assert [finding.kind for finding in report.findings] == ["unused"] * 3 + ["drift", "unknown"]


def test_the_hooks_declare_the_packages_that_their_commands_import() -> None:
    assert {hook["id"] for hook in HOOKS} == set(re.findall(r"- id: (\S+)", PAGE))
    assert set(HOOKS[0]["types_or"]) == {"python", "jupyter", "shell", *DOCUMENT_KINDS.values()}, (
        "a change of any file that is read"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = {package for extra in ("config", "cli", "port") for package in extras[extra]}
    for hook in HOOKS:
        arguments = [*hook["entry"].split()[1:], *hook.get("args", []), "--help"]
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        assert set(hook["additional_dependencies"]) == {
            module for module in needed if not module.startswith("unified_clip")
        }


def test_the_hook_of_port_checks_the_files_that_pre_commit_passes(folder: Path) -> None:
    (hook,) = (hook for hook in HOOKS if hook["id"] == "unified-clip-port-check")
    assert hook.get("pass_filenames", True)
    command = [*hook["entry"].split()[1:], *hook.get("args", [])]
    (folder / "empty.py").write_text("")
    (folder / "stub.pyi").write_text("x: int\n")
    assert cli.main([*command, "empty.py", "stub.pyi"]) == 0
    assert cli.main([*command, "empty.py", "speech/train.py"]) == 1


def test_the_job_for_gitlab_writes_a_code_quality_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```yaml\n(clip:\n.*?)```", PAGE, re.DOTALL)
    job = yaml.safe_load(block)["clip"]
    install, command = map(shlex.split, job["script"])
    assert install[:2] == ["pip", "install"]
    assert cli.main(command[1:]) == 1
    assert capsys.readouterr().out.endswith("2 clips: 1 not as in clip.toml, 1 unknown.\n"), "the log is readable"
    assert job["artifacts"]["when"] == "always", "a job with findings fails"
    issues = json.loads((folder / job["artifacts"]["reports"]["codequality"]).read_text())
    assert [(issue["location"], issue["severity"]) for issue in issues] == [
        ({"path": "llm/ds_config.json", "lines": {"begin": 4}}, "major"),
        ({"path": "speech/train.py", "lines": {"begin": 6}}, "minor"),
    ]
    assert len({issue["fingerprint"] for issue in issues}) == 2
    (folder / "clip.json").unlink()
    speech = folder / "speech" / "train.py"
    speech.write_text("\n" + speech.read_text())
    assert cli.main(command[1:]) == 1
    moved = json.loads((folder / "clip.json").read_text())
    assert [issue["fingerprint"] for issue in moved] == [issue["fingerprint"] for issue in issues], "only a line moved"
