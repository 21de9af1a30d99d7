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
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page, and clip.toml with its exceptions."""
    monkeypatch.chdir(tmp_path)
    for path, text in re.findall(r"```(?:toml|python|json)\n# (\S+\.\w+)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    assert len(list(tmp_path.rglob("*.*"))) == 3
    return tmp_path


def test_the_command_prints_the_output_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"^    unified-clip (config check .*)$", PAGE, re.MULTILINE)
    assert cli.main(command.split()) == 1
    printed, missing, explicit, no_key, _ = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == printed
    (folder / "speech" / "train.py").write_text("")
    llm = folder / "llm" / "ds_config.json"
    llm.write_text(llm.read_text().replace("0.5", "1.0"))
    clip = folder / "clip.toml"
    (required,) = re.findall(r"# beginning of the table check\n(.*?)```", PAGE, re.DOTALL)
    clip.write_text(f"# clip.toml\n{clip.read_text()}\n{required}")
    assert cli.main(command.split()) == 1
    assert capsys.readouterr().out == missing
    shutil.rmtree(folder / "llm")
    (folder / "sft").mkdir()
    (folder / "sft" / "qlora.yml").write_text("adapter: qlora\nsequence_len: 2048\n")
    clip.write_text(clip.read_text().partition("[check]")[0])
    assert cli.main(command.split()) == 0
    (line,) = re.findall(r"^    (sft/.*\n)", PAGE, re.MULTILINE)
    assert capsys.readouterr().out.startswith(line)
    (table,) = re.findall(r"```toml\n(\[check\]\nexplicit.*?)```", PAGE, re.DOTALL)
    clip.write_text(clip.read_text() + table)
    assert cli.main(command.split()) == 1
    assert capsys.readouterr().out == explicit
    (folder / "conf").mkdir()
    (folder / "conf" / "data.yaml").write_text("batch_size: 8\n")
    clip.write_text(clip.read_text().replace('"**"', '"conf/*"'))
    assert cli.main(command.split()) == 1
    assert capsys.readouterr().out == no_key


def test_the_exceptions_of_the_page_are_valid(folder: Path) -> None:
    (table,) = re.findall(r"# the end of clip.toml\n(.*?)```", PAGE, re.DOTALL)
    clip = folder / "clip.toml"
    (required,) = re.findall(r"# beginning of the table check\n(.*?)```", PAGE, re.DOTALL)
    clip.write_text(clip.read_text() + required + table)
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
        arguments = [*hook["entry"].split()[1:], *hook["args"], "--help"]
        with pytest.raises(SystemExit, match="0"):
            cli.main(arguments)
        assert set(hook["additional_dependencies"]) == {
            module for module in needed if not module.startswith("unified_clip")
        }


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


def test_the_entry_for_a_key_of_own_code_approves_only_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    part = PAGE.partition("### A key that only your own code reads")[2]
    (text, entry) = re.findall(r"```(?:yaml|toml)\n(.*?)```", part, re.DOTALL)[:2]
    (shared,) = re.findall(r"```toml\n# clip.toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "clip.toml").write_text(shared + entry)
    source = tmp_path / tomllib.loads(entry)["check"]["ignore"][0]["path"]
    source.parent.mkdir(parents=True)
    for changed, status in ((text, 0), (text.replace("1.0", "9.0"), 1), (text.replace("norm", "value"), 1)):
        source.write_text(changed)
        assert cli.main(["config", "check", "clip.toml", "."]) == status
    assert "approves only" in capsys.readouterr().out
