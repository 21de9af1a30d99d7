"""`unified-clip config check --accept`: clips of unknown effect that are there are no findings, new ones are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.config.check_files import CLIP_CONFIG, DEEPSPEED, TORCH

from unified_clip import cli

Run = Callable[..., tuple[int, str]]

RUN_TIME = TORCH % "args.clip"
YAML = "own:\n  grad_clip: {}\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    Path("clip.toml").write_text(CLIP_CONFIG)
    Path("a.py").write_text(RUN_TIME)
    Path("a.yaml").write_text(YAML.format(3.0))

    def call(*arguments: str) -> tuple[int, str]:
        return cli.main(["config", "check", "clip.toml", ".", *arguments]), capsys.readouterr().out

    assert call()[0] == 1
    assert call("--accept")[0] == 0
    return call


def test_accepted_clips_are_no_findings_until_one_is_new(run: Run) -> None:
    status, text = run()
    assert (status, [line.split()[:2] for line in text.splitlines()]) == (
        0, [["a.py:3", "accepted"], ["a.yaml:2", "accepted"], ["2", "clips:"]]
    )  # fmt: skip
    Path("b.py").write_text(RUN_TIME)
    status, text = run()
    assert (status, text.splitlines()[0]) == (1, "b.py:3:1 unknown torch.nn.utils.clip_grad_norm_")
    Path("b.py").unlink()
    Path("a.py").write_text(f"{RUN_TIME}{RUN_TIME.splitlines()[-1]}\n")
    assert run()[0] == 1, "a second clip of the same name in the same file"


def test_another_value_is_a_new_finding_and_the_old_entry_is_unused(run: Run) -> None:
    Path("a.yaml").write_text(YAML.format(4.0))
    status, text = run()
    assert status == 1
    assert "a.yaml:2:1 unknown own.grad_clip = 4.0\n" in text
    assert "clip.accepted.toml:9:1 unused a.yaml own.grad_clip = 3.0\n" in text
    Path("a.py").write_text(TORCH % "args.clip * 2")
    assert "a.py:3:1 unknown torch.nn.utils.clip_grad_norm_" in run()[1]
    assert run("--accept")[0] == 0
    assert run()[0] == 0


def test_an_accepted_clip_that_is_gone_fails(run: Run) -> None:
    Path("a.yaml").unlink()
    status, text = run()
    assert (status, text.partition(" a.yaml")[0]) == (1, "clip.accepted.toml:9:1 unused")
    Path("sub").mkdir()
    Path("sub/b.py").write_text(TORCH % 1.0)
    Path("a.yaml").write_text(YAML.format(3.0))
    assert cli.main(["config", "check", "clip.toml", "sub"]) == 0, "the other files were not checked"


UNREAD = {
    "two.json": '{{"gen_clip_grad": -1, "disc_clip_grad": {}}}',
    "python2.py": "import torch; print 'clip_grad_norm_', {}\n",
    "broken.yaml": "grad_clip: {}\na: [\n",
    "broken.json": '{{"grad_clip": {}\n',
    "broken.toml": "grad_clip = {}\na = [\n",
    "broken.ipynb": '{{"cells": ["clip_grad_norm_", {}\n',
    "magic.ipynb": '{{"cells": [{{"cell_type": "code", "source": "%%julia\\nclip_grad({})"}}]}}',
    "hydra.yaml": "trainer:\n  max_epochs: 9\n  gradient_clip_val: ${{limit_{}}}\n",
}


@pytest.mark.parametrize("name", UNREAD)
def test_each_number_of_an_accepted_file_counts(run: Run, name: str) -> None:
    Path(name).write_text(UNREAD[name].format(1))
    assert run("--accept")[0] == 0
    status, printed = run()
    assert (status, printed.splitlines()[-1]) == (0, "3 clips: 3 accepted.")
    Path(name).write_text(UNREAD[name].format(5))
    status, printed = run()
    found = [line.split(":")[0] for line in printed.splitlines() if " unknown " in line]
    assert (status, found) == (1, [name])


def test_entries_of_files_that_are_not_checked_stay(run: Run) -> None:
    Path("sub").mkdir()
    Path("sub/b.py").write_text(RUN_TIME)
    assert cli.main(["config", "check", "clip.toml", "sub", "--accept"]) == 0
    assert run()[0] == 0


def test_an_entry_of_a_file_that_only_a_declared_key_names_goes_with_its_clip(run: Run) -> None:
    key = '\n[[check.key]]\npath = "*.gin"\nkey = "grad_clip"\nrule = "global_norm"\n'
    Path("clip.toml").write_text(CLIP_CONFIG + key)
    Path("a.gin").write_text("grad_clip = @schedule()\n")
    assert run("--accept")[0] == 0
    Path("a.gin").write_text("grad_clip = 1.0\n")
    assert run("--accept")[0] == 0
    assert "a.gin" not in Path("clip.accepted.toml").read_text()


def test_a_clip_that_differs_is_not_accepted(run: Run) -> None:
    Path("ds.json").write_text(DEEPSPEED % "5.0")
    assert run("--accept")[0] == 1
    assert "5.0" not in Path("clip.accepted.toml").read_text()


@pytest.mark.parametrize("text", ["accepted = 1\n", '[[accepted]]\npath = "a.py"\n', "accepted = [\n"])
def test_an_invalid_file_of_accepted_clips_is_an_error_with_its_name(run: Run, text: str) -> None:
    Path("clip.accepted.toml").write_text(text)
    assert run()[0] == 2
