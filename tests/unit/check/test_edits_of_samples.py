"""The edit of each sample file: the file passes with the printed keys, and with an entry of `check.ignore`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from unified_clip.check import check_files, files_to_check
from unified_clip.check.model import Finding
from unified_clip.config import documents
from unified_clip.config.documents import DOCUMENT_KINDS
from unified_clip.errors import ConfigError

SAMPLES = Path(__file__).parents[2] / "data" / "formats"
NAMES = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
CLIP = 'rule = "global_norm"\nthreshold = 0.75\n'
ADVICE = ("Or", "To ", "Change ", "Use ")

HYDRA = "# @package"
OTHER_KEYS = (
    "accelerate: file_", "gpt_neox: 160m_extra", "hf: zero3_same", "lightning: hydra/", "rllib: two_alike",
    "stable_baselines3: tuned", "verl: megatron", "verl: ppo",
)  # fmt: skip
"""In these files, another key has to change too. With the printed keys, the check still has a finding."""

HAS_TAG = "tagged.yaml"


def merged(data: Any, change: Any) -> Any:
    if not isinstance(data, dict) or not isinstance(change, dict):
        return change
    return {**data, **{key: merged(data.get(key), value) for key, value in change.items()}}


def without(data: Any, keys: Sequence[str]) -> Any:
    if isinstance(data, list):
        return [without(each, keys[1:]) if str(index) == keys[0] else each for index, each in enumerate(data)]
    if len(keys) == 1:
        return {key: value for key, value in data.items() if str(key) != keys[0]}
    return {key: without(value, keys[1:]) if str(key) == keys[0] else value for key, value in data.items()}


def keys_of(edit: str, kind: str) -> tuple[Any, list[str]] | None:
    lines = edit.splitlines()
    end = next((index for index, line in enumerate(lines) if line.startswith(ADVICE)), len(lines))
    removed = [line for line in lines[:end] if line.startswith("Remove ")]
    text = "\n".join(line for line in lines[:end] if line not in removed)
    if not text or "does not support" in text:
        return None
    try:
        return documents.parse(text, kind, "edit").data, [
            each for line in removed for each in line[7:-1].split(" and ")
        ]
    except ConfigError as error:
        raise AssertionError(f"the edit is neither advice nor keys: {edit}") from error


def apply(finding: Finding) -> bool:
    edit, file = finding.edit, Path(finding.path)
    if edit.startswith("In "):
        first, _, edit = edit.partition("\n")
        file = Path(first.removeprefix("In ").removesuffix(", set:"))
    kind, text = DOCUMENT_KINDS[file.suffix], file.read_text()
    if (keys := keys_of(edit, kind)) is None:
        return False
    data = merged(documents.parse(text, kind, file.name).data, keys[0])
    for path in keys[1]:
        data = without(data, path.split("."))
    header = [line for line in text.splitlines(keepends=True) if line.startswith(HYDRA)]
    file.write_text("".join(header) + documents.dump(data, kind))
    return True


def findings(file: Path) -> list[Finding]:
    clip = Path("clip.toml")
    return check_files.check(clip, [file], files_to_check.files([file], clip), nearest=True).findings


@pytest.mark.parametrize("name", NAMES)
def test_the_edit_of_each_sample_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SAMPLES / name, "samples")
    Path("samples/expected.toml").unlink()
    originals = {file: file.read_bytes() for file in sorted(Path("samples").rglob("*")) if file.is_file()}
    for file in originals:
        Path("clip.toml").write_text(CLIP)
        before = (
            [each for each in findings(file) if not each.clip.startswith("PATH")]
            if file.suffix in DOCUMENT_KINDS
            else []
        )
        if not before or file.name == HAS_TAG:
            continue
        Path("clip.toml").write_text(f'{CLIP}\n[[check.ignore]]\npath = "{file}"\nreason = "..."\n')
        assert [each for each in findings(file) if not each.clip.startswith("PATH")] == [], file
        Path("clip.toml").write_text(CLIP)
        is_threshold = [each.about for each in before[0].differences] == ["threshold"]
        if is_threshold and "by default" not in before[0].clip and apply(before[0]):
            remaining = findings(file)
            is_enough = not f"{name}: {file.relative_to('samples')}".startswith(OTHER_KEYS)
            assert not (remaining and is_enough), f"{file}: {before[0].does} {before[0].edit}"
        for changed, content in originals.items():
            changed.write_bytes(content)
