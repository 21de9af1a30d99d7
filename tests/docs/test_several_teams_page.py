"""docs/several-teams.md: its files, its commands and their output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unified_clip import cli

PAGE = (Path(__file__).parents[2] / "docs" / "several-teams.md").read_text(encoding="utf-8")
FILES = re.findall(r"`([\w/]+\.\w+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
CHECK, *EXPORTS = (command.split() for command in re.findall(r"^    unified-clip (.*)$", PAGE, re.MULTILINE))

NLP, VISION, RESEARCH, RECSYS = (
    "nlp/training_args.json",
    "vision/config.yaml",
    "research/optimizer.py",
    "recsys/train.py",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert [path for path, _ in FILES] == [NLP, VISION, RESEARCH, RECSYS, "clip.toml", RECSYS, "nlp/train.py"]
    for path, text in FILES[:-2]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_the_steps_print_the_output_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(CHECK) == 1
    (printed,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == printed
    outputs = []
    for export in EXPORTS:
        assert cli.main(export) == 0
        outputs.append(capsys.readouterr().out)
    assert "  gradient_clip_algorithm: norm\n" in outputs[0]
    assert outputs[1] == '{\n  "max_grad_norm": 1.0\n}\n'
    assert "optax.clip_by_global_norm(1.0)" in outputs[2]
    (folder / "vision" / "config.yaml").write_text(outputs[0])
    optimizer = folder / "research" / "optimizer.py"
    optimizer.write_text(optimizer.read_text().replace("0.5", "1.0"))
    assert cli.main(CHECK) == 0
    lines = re.findall(r"^    ((?:\w+/\S+):\d+ .*)$", PAGE, re.MULTILINE)
    expected = [re.sub(r"(config.yaml):\d+", r"\1:2", line) for line in lines]  # the exported file is shorter
    assert capsys.readouterr().out.splitlines()[:4] == expected
    train = folder / "recsys" / "train.py"
    train.write_text(FILES[-2][1])
    assert cli.main(CHECK) == 0
    assert "recsys/train.py:6 same unified_clip.ClipConfig.load (pytorch)\n" in capsys.readouterr().out
    train.write_text(train.read_text().replace("= clip(", "= ("))
    assert cli.main(CHECK) == 1
    assert "No checked code reads clip, so this configuration clips nothing." in capsys.readouterr().out


CHANGES = [
    (NLP, '"max_grad_norm": 1.0', '"max_grad_norm": 0.5'),
    (VISION, "gradient_clip_val", "gradient_clip_vall"),
    (RESEARCH, "optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))", "optax.adamw(3e-4)"),
    (RECSYS, "gradients, 1.0", "gradients, clip_norm"),
    ("recsys/finetune.py", "    gradients, norm = tf.clip_by_global_norm(gradients, 1.0)\n", ""),
    (RECSYS, "clip(tape.gradient(loss, model.trainable_variables))", "tape.gradient(loss, model.trainable_variables)"),
]


def test_each_change_of_the_table_is_reported_as_on_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^\| \w+: .* \| `(.*)` \|$", PAGE, re.MULTILINE)
    (folder / VISION).write_text((folder / VISION).read_text().replace("value", "norm"))
    (folder / RESEARCH).write_text((folder / RESEARCH).read_text().replace("0.5", "1.0"))
    for (path, old, new), line in zip(CHANGES, lines, strict=True):
        if old.startswith("clip("):
            (folder / path).write_text(FILES[-2][1])
        is_new = not (folder / path).exists()
        before = (folder / (RECSYS if is_new else path)).read_text()
        assert old in before
        (folder / path).write_text(before.replace(old, new))
        assert cli.main(CHECK) == 1
        assert line in capsys.readouterr().out.splitlines()
        if is_new:
            (folder / path).unlink()
        else:
            (folder / path).write_text(before)
        assert cli.main(CHECK) == 0
        capsys.readouterr()


def test_a_trainer_whose_clip_is_off_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = FILES[-1][1]
    (rules,) = re.findall(r"```toml\n(require.*?)```", PAGE, re.DOTALL)
    clip, arguments, train = folder / "clip.toml", folder / NLP, folder / "nlp" / "train.py"
    (folder / VISION).write_text((folder / VISION).read_text().replace("value", "norm"))
    (folder / RESEARCH).write_text((folder / RESEARCH).read_text().replace("0.5", "1.0"))
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
