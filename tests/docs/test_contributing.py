"""CONTRIBUTING.md names files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Layout of the code")[2].partition("\n## A")[0]
)
TREE = re.findall(r"^ {4}( *)(\S.*)$", SECTION, re.MULTILINE)


def exists(path: str) -> bool:
    """Return whether a path from the root, or from the package, exists."""
    return (ROOT / path).exists() or (ROOT / "unified_clip" / path).exists()


def listed() -> list[Path]:
    paths, folders = [], [ROOT]
    for indent, line in TREE:
        del folders[len(indent) // 2 + 1 :]
        names = re.findall(r"(?:^| {1,2})([\w.]+(?:\.py|/))(?= |$)", line.partition("   ")[0])
        paths += [folders[-1] / name for name in names]
        folders.append(paths[-1])
    return paths


def test_the_tree_names_files_that_exist() -> None:
    assert len(listed()) > 40
    assert [path for path in listed() if not path.exists()] == []


def test_every_package_is_in_the_tree() -> None:
    packages = {path.parent for path in (ROOT / "unified_clip").rglob("__init__.py")}
    assert packages - set(listed()) == set()


def test_the_table_of_changes_names_files_that_exist() -> None:
    paths = re.findall(r"`((?:[\w.]+/)+|(?:[\w.]+/)*[\w.]+\.(?:py|toml|md|yml))`", SECTION)
    assert len(paths) > 20
    assert [path for path in paths if not exists(path)] == []


def test_the_architecture_page_names_files_and_classes_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", page)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / "unified_clip" / path).exists()] == []
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "unified_clip").glob("_*/**/*.py")]
    classes = set(re.findall(r"`([A-Z]\w+)`", page)) - {"ClipConfig"}
    assert len(classes) > 5
    assert [name for name in classes if not any(f"class {name}" in source for source in sources)] == []
