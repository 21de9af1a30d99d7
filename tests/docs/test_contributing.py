"""CONTRIBUTING.md names files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Layout of the code")[2].partition("\n## ")[0]
)
TREE = re.findall(r"^ {4}( *)(\S.*)$", SECTION, re.MULTILINE)
PACKAGE = [*(ROOT / "unified_clip").rglob("*.*")]


def files_at(path: str) -> list[Path]:
    """Return the files with a path from the root, or with the end of a path in the package. `*` is a wildcard."""
    return [*ROOT.glob(path), *(file for file in PACKAGE if file.match(path))]


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
    paths = re.findall(r"`((?:[\w<>*.-]+/)*[\w*.-]+\.(?:py|hpp|toml|json|md))`", SECTION)
    assert len(paths) > 20
    assert [path for path in paths if not files_at(path)] == []


NAME_AND_FILE = re.compile(r"`(\w+(?:\.\w+)?)`(?:, `\w+`)*(?:,? and `\w+`)?\s+(?:in|of)\s+`((?:[\w.]+/)*\w+\.py)`")


def test_names_are_defined_in_the_files_of_the_table() -> None:
    pairs = NAME_AND_FILE.findall(SECTION)
    assert len(pairs) > 40
    assert [pair for pair in pairs if not defines(*pair)] == []


def defines(name: str, path: str) -> bool:
    definitions = (rf"^\s*(?:(?:async )?def|class|type) {part}\b|^\s*{part}\s*[:=]" for part in name.split("."))
    patterns = [re.compile(part, re.MULTILINE) for part in definitions]
    return any(all(pattern.search(file.read_text(encoding="utf-8")) for pattern in patterns) for file in files_at(path))


def test_the_architecture_page_names_files_and_classes_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", page)
    assert len(paths) > 15
    assert [path for path in paths if not (ROOT / "unified_clip" / path).exists()] == []
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "unified_clip").glob("_*/**/*.py")]
    classes = set(re.findall(r"`([A-Z]\w+)`", page)) - {"ClipConfig"}
    assert len(classes) > 5
    assert [name for name in classes if not any(f"class {name}" in source for source in sources)] == []
