"""`unified-clip --version`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from support.tiers import FULL_TIER

import unified_clip
from unified_clip import _backends, _versions
from unified_clip.recorder import OLDEST

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-P", "-m", "unified_clip", "--version"]


def test_it_prints_versions_and_imports_no_framework(tmp_path: Path) -> None:
    for package in ("torch", "jax"):  # they fail if they are imported
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise AssertionError")
        (tmp_path / f"{package}-9.8.7.dist-info").mkdir()
        text = f"Metadata-Version: 2.1\nName: {package}\nVersion: 9.8.7\n"
        (tmp_path / f"{package}-9.8.7.dist-info" / "METADATA").write_text(text)
    path = os.pathsep.join([str(tmp_path), str(Path(unified_clip.__file__).parents[1])])
    environment = {**os.environ, "PYTHONPATH": path, "UNIFIED_CLIP_NATIVE": "0"}
    printed = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=True)
    lines = dict(line.split(maxsplit=1) for line in printed.stdout.splitlines())
    assert printed.stderr == ""
    assert list(lines) == ["unified_clip", "Python", "kernels", "CUDA", *_versions.PACKAGES]
    assert lines["unified_clip"] == unified_clip.__version__
    assert lines["kernels"].startswith("not compiled")
    assert (lines["torch"], lines["jax"]) == ("9.8.7", "9.8.7")
    assert re.match(r"\d+\.\d+", lines["numpy"])


def test_pyproject_requires_the_oldest_supported_releases() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(each for name in OLDEST for each in extras.get(name, ()))]
    for framework, oldest in OLDEST.items():
        names = _versions.PACKAGES[framework]
        bounds = [each for each in requirements if re.match(r"[\w-]+", each)[0].partition("[")[0] in names]
        assert bounds
        assert all(f">={oldest}" in each for each in bounds), framework


def test_the_page_has_the_oldest_releases_of_both_tiers() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    names = {"NumPy": "numpy", "PyTorch": "torch", "TensorFlow": "tensorflow", "Paddle": "paddle", "JAX": "jax"}
    rows = re.findall(rf"^\| ({'|'.join(names)}) \| ([\d.]+) \| ([\d.]*) ?\|", page, re.MULTILINE)
    assert {names[row[0]]: row[1] for row in rows} == {name: OLDEST[name] for name in names.values()}
    assert {names[row[0]]: row[2] for row in rows if row[2]} == FULL_TIER


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("2.2.2+cu121", True), ("2.3.9", True), ("2.4.0", False), ("2.4.0a0+git1", False), ("2.14.1+cu130", False),
     ("3", False), ("0.0.0", False), ("unknown", False)],
)  # fmt: skip
def test_only_an_old_release_warns_and_the_warning_names_both(version: str, is_old: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _backends.check_release("torch", version)
    assert [version in str(each.message) and OLDEST["torch"] in str(each.message) for each in caught] == [True] * is_old
