"""docs/config-check.md: its files and its output, and the hooks for pre-commit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml

from unified_clip import ClipConfig, cli
from unified_clip.check import check_files, files_to_check
from unified_clip.config.documents import DOCUMENT_KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "config-check.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
(REQUIRE,) = re.findall(r"```toml\n(\[check\]\nrequire.*?)```", PAGE, re.DOTALL)
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert [*FILES] == ["clip.toml", "llm/ds_config.json", "speech/train.py"]
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_command_prints_the_output_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = re.findall(r"^    unified-clip (config check .*)$", PAGE, re.MULTILINE)[0]
    assert cli.main(command.split()) == 1
    printed, missing, _ = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == printed
    (folder / "speech" / "train.py").write_text("")
    llm = folder / "llm" / "ds_config.json"
    llm.write_text(llm.read_text().replace("0.5", "1.0"))
    clip = folder / "clip.toml"
    clip.write_text(f"{clip.read_text()}\n{REQUIRE}")
    assert cli.main(command.split()) == 1
    assert capsys.readouterr().out == missing
    shutil.rmtree(folder / "llm")
    (folder / "sft").mkdir()
    (folder / "sft" / "qlora.yml").write_text("adapter: qlora\nsequence_len: 2048\n")
    clip.write_text(clip.read_text().partition("[check]")[0])
    assert cli.main(command.split()) == 0
    (line,) = re.findall(r"^    (sft/.*\n)", PAGE, re.MULTILINE)
    assert capsys.readouterr().out.startswith(line)


ARGUMENTS = '{{\n  "output_dir": "out",\n  "per_device_train_batch_size": 4,\n  "max_grad_norm": {}\n}}\n'


def test_the_lines_of_clips_are_as_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^((?:    \S+/\S+:\d+ .*\n){4})", PAGE, re.MULTILINE)
    sources = {
        "nlp/training_args.json": ARGUMENTS.format(1.0),
        "recsys/train.py": "import tensorflow as tf\n\n\ngradients, norm = tf.clip_by_global_norm(gradients, 1.0)\n",
        "vision/config.yaml": "trainer:\n  gradient_clip_val: 0\n  max_epochs: 90\n",
        "experiments/a.yaml": "output_dir: out\nper_device_train_batch_size: 4\nmax_grad_norm: 2.0\n",
        "experiments/b.yaml": "output_dir: out\nper_device_train_batch_size: 4\nmax_grad_norm: 3.0\n",
    }
    for name in FILES:
        (folder / name).unlink()
    for name, text in sources.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    entry = '[[check.ignore]]\npath = "experiments/**"\nreason = "sweeps over thresholds"\n'
    off = '[[check.ignore]]\npath = "vision/config.yaml"\nrule = "none"\nreason = "train.py clips"\n'
    (folder / "clip.toml").write_text(f"{FILES['clip.toml']}{entry}{off}")
    assert cli.main(["config", "check", "clip.toml", ".", "--nearest"]) == 0
    assert capsys.readouterr().out.splitlines()[:4] == [line.strip() for line in block.splitlines()]
    (folder / "nlp/training_args.json").write_text(ARGUMENTS.format(2.0))
    assert cli.main(["config", "check", "clip.toml", ".", "--nearest"]) == 1
    printed = capsys.readouterr().out.splitlines()
    lines = [line.strip() for line in block.splitlines()]
    assert [line for line in lines if line in printed] == lines[2:]


@pytest.mark.parametrize(
    ("value", "max_norm", "finding"),
    [
        ('"auto"', 1.0, ""),
        ('"auto"', 0.5, "train.py:2:65 drift"),
        ("1.0", 1.0, ""),
        ("0.5", 1.0, "ds.json:1:1 drift"),
        (None, 1.0, "ds.json:1:1 unknown"),
    ],
)
@pytest.mark.parametrize("place", [".", "jobs"])
def test_deepspeed_under_hugging_face(
    value: str | None, max_norm: float, finding: str, place: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "### DeepSpeed under Hugging Face" in PAGE
    for name in ("llm/ds_config.json", "speech/train.py"):
        (folder / name).unlink()
    (folder / place).mkdir(exist_ok=True)
    clip = f', "gradient_clipping": {value}' if value else ""
    (folder / "ds.json").write_text(
        f'{{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": 2}}{clip}}}'
    )
    source = f'args = TrainingArguments(output_dir="out", deepspeed="ds.json", max_grad_norm={max_norm})'
    (folder / place / "train.py").write_text(f"from transformers import TrainingArguments\n{source}\n")
    status = cli.main(["config", "check", "clip.toml", "."])
    printed = capsys.readouterr().out
    assert status == int(bool(finding))
    assert f"{finding.replace('train', f'{place}/train').removeprefix('./')} " in printed
    assert ("ds.json sets no clip" in printed) == (value == '"auto"')
    (folder / "clip.toml").write_text(f'{FILES["clip.toml"]}[check]\nrequire = ["ds.json"]\n')
    cli.main(["config", "check", "clip.toml", "."])
    assert ('missing check.require "ds.json"' in capsys.readouterr().out) == (value == '"auto"')
    (folder / "ds.json").unlink()
    assert cli.main(["config", "check", "clip.toml", place]) == 1
    assert "unknown transformers.TrainingArguments" in capsys.readouterr().out


def test_the_exceptions_of_the_page_are_valid(folder: Path) -> None:
    (table,) = re.findall(r"```toml\n(\[check.formats\].*?)```", PAGE, re.DOTALL)
    clip = folder / "clip.toml"
    clip.write_text(clip.read_text() + REQUIRE + table)
    rules = ClipConfig.load(clip).check
    assert rules is not None
    assert len(rules.ignore) == 2
    report = check_files.check(clip, [folder], files_to_check.files([folder], clip))
    assert [finding.kind for finding in report.findings] == ["unused", "unused", "drift", "unknown"]


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


def test_the_entry_for_a_key_of_own_code_compares_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    part = PAGE.partition("### A key that only your own code reads")[2]
    (text, entry) = re.findall(r"```(?:yaml|toml)\n(.*?)```", part, re.DOTALL)[:2]
    (tmp_path / "clip.toml").write_text(FILES["clip.toml"] + entry)
    source = tmp_path / tomllib.loads(entry)["check"]["key"][0]["path"].replace("**", "train.yaml")
    source.parent.mkdir(parents=True)
    for changed, status in ((text, 0), (text.replace("1.0", "9.0"), 1), (text.replace("1.0", "0"), 1)):
        source.write_text(changed)
        assert cli.main(["config", "check", "clip.toml", "."]) == status
    assert "rule: none; wanted: global_norm" in capsys.readouterr().out
