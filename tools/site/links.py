"""Rewrite the links of the repository's pages for the site: to pages, copied files, and files on the repository's
host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = os.environ.get("REPOSITORY_URL", "")
"""The address of the repository. It is unknown before the repository is hosted."""

LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)"
)
CODE = re.compile(r"^```[\s\S]*?^```|^(?: {4}.*\n)+", re.MULTILINE)


class BrokenLinkError(ValueError):
    """A link leads to a missing file, or to a missing heading of a page."""


class Links:
    """Rewrites the links of pages, and collects the files outside docs/ that pages show.

    Args:
        root: The folder of the repository.
        sources: {path on the site: file of the page}.
        generated: {file: path on the site of the page that is made from the file}.
    """

    def __init__(self, root: Path, sources: Mapping[str, Path], generated: Mapping[Path, str]) -> None:
        self.root, self.sources = root, sources
        self.pages = {path: page for page, path in sources.items()} | dict(generated)
        self.outside: set[Path] = set()

    def mend(self, page: str, text: str) -> str:
        return outside_code(text, lambda prose: self._mend(page, prose))

    def _mend(self, page: str, text: str) -> str:
        return LINK.sub(lambda link: self._link(page, link), text)

    def _link(self, page: str, link: re.Match[str]) -> str:
        name, target, anchor = link["text"], link["target"], link["anchor"] or ""
        name = self._mend(page, name) if "![" in name else name
        if "://" in target:
            return link[0]
        source = self.sources[page]
        path = Path(os.path.normpath(source.parent / target)) if target else source
        if path.is_dir() and (path / "README.md") in self.pages:
            path /= "README.md"
        if not path.exists():
            raise BrokenLinkError(f"{source}: {target} does not exist")
        if path in self.pages:
            if anchor and anchor[1:] not in anchors(path.read_text(encoding="utf-8")):
                raise BrokenLinkError(f"{source}: {path.name} has no heading {anchor}")
            name = self._title(path) if re.fullmatch(r"`?[\w/.-]+\.md`?", name) and not anchor else name
        elif link["image"]:
            self.outside.add(path)
        elif not path.is_relative_to(self.root / "docs") or path.is_dir():
            file = path.relative_to(self.root).as_posix()
            return f"[{name}]({REPOSITORY}/blob/main/{file}{anchor})" if REPOSITORY else name
        relative = os.path.relpath(self.target(path), Path(page).parent)
        return f"{link['image']}[{name}]({relative if target else ''}{anchor})"

    def _title(self, path: Path) -> str:
        return title(path.read_text(encoding="utf-8"))

    def target(self, path: Path) -> str:
        if path in self.pages:
            return self.pages[path]
        inside = path.is_relative_to(self.root / "docs")
        return path.relative_to(self.root / "docs" if inside else self.root).as_posix()


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return a page with everything changed but its code."""
    pieces, end = [], 0
    for code in CODE.finditer(text):
        pieces += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, change(text[end:])])


def title(text: str) -> str:
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    if not heading:
        raise ValueError(f"a page has no title: {text[:80]}")
    return heading[1]


def anchors(text: str) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE)}


def slug(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w -]", "", plain).strip().lower().replace(" ", "-")
