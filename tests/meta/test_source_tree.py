"""A clone without compiled kernels warns if an installed copy has them, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiers import not_editable

import unified_clip

PACKAGE = Path(unified_clip.__file__).parent
KERNELS = "unified_clip/_native/_kernels.cpython-399-any.so"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clone")
    ignored = shutil.ignore_patterns("__pycache__", "_kernels.*")
    shutil.copytree(PACKAGE, root / "unified_clip", ignore=ignored)
    (root / "pyproject.toml").touch()
    return root


@pytest.fixture
def site(tmp_path: Path) -> Path:
    information = tmp_path / "unified_clip-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: unified_clip\nVersion: 0.1.0\n")
    (information / "RECORD").write_text(f"unified_clip/__init__.py,,\n{KERNELS},,\n")
    (tmp_path / KERNELS).parent.mkdir(parents=True)
    (tmp_path / KERNELS).touch()
    return tmp_path


def printed(clone: Path, site: Path, code: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "UNIFIED_CLIP_NATIVE"}
    environment |= {"PYTHONPATH": str(site), **variables}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=True).stderr


@not_editable
def test_the_clone_warns_that_the_installed_copy_is_faster(clone: Path, site: Path) -> None:
    warned = printed(clone, site, "import unified_clip; assert not unified_clip.native_available()")
    assert "UserWarning" in warned
    assert f"imported from the clone {clone}, which has no compiled kernels" in warned
    assert f"The copy installed in {site} has them" in warned
    assert f"pip install --no-deps -e {clone}" in warned
    assert printed(clone, site, "import unified_clip.numpy").count("UserWarning") == 1


def test_no_warning_if_no_installed_copy_is_compiled(clone: Path, site: Path) -> None:
    (site / KERNELS).unlink()
    assert printed(clone, site, "import unified_clip.numpy") == ""
    (site / "unified_clip-0.1.0.dist-info" / "RECORD").write_text("unified_clip/__init__.py,,\n")
    assert printed(clone, site, "import unified_clip.numpy") == ""
    (site / "unified_clip-0.1.0.dist-info" / "RECORD").unlink()
    assert printed(clone, site, "import unified_clip.numpy") == ""
