"""docs/contract.md lists the public modules, and other pages use no private ones."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECTION = (DOCS / "contract.md").read_text(encoding="utf-8").partition("## Public modules")[2]
PUBLIC = set(re.findall(r"`(unified_clip[\w.]*)`", SECTION))
PAGES = [ROOT / "README.md", *(path for path in DOCS.rglob("*.md") if path.name != "contract.md")]


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_public_modules_exist() -> None:
    assert len(PUBLIC) > 10
    assert [name for name in sorted(PUBLIC) if not is_module(name)] == []


def test_pages_import_public_modules_only() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    imported = set(re.findall(r"^\s*(?:from|import) (unified_clip[\w.]*)", code, re.MULTILINE))
    assert len(imported) > 5
    assert imported - PUBLIC == set()
