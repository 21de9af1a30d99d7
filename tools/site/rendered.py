"""`python -m tools.site.rendered`: check the built site. Print the problems, and exit with 1 if there are any.

Each function and class of the API reference has a signature, an example, and descriptions of its parameters and errors.
A method needs no example. Each link leads to a page or a heading of the site, or to another site by https.
"""

from __future__ import annotations

import ast
import html
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

SITE = Path(__file__).parents[2] / "build/site"
OBJECT = re.compile(r'<div class="doc doc-object doc-(\w+)">\s*<h\d id="([^"]+)" class="doc doc-heading">')
SIGNATURE = re.compile(r'<div class="doc-signature highlight">(.*?)</pre>', re.DOTALL)
TITLE = '<span class="doc-section-title">'
SECTION = re.compile(rf"{TITLE}(\w+):</span>(.*?)(?={TITLE}|\Z)", re.DOTALL)
PARAMETER = re.compile(r'<li class="doc-section-item field-body">\s*<b><code>([^<]+)</code></b>')
TARGET = re.compile(r'(?:href|src)="([^"]*)"')
IDENTIFIER = re.compile(r'\sid="([^"]*)"')
NO_ERROR = "Raise no error."
RESULTS = (".RecordingComparison",)
"""Classes that users do not create themselves."""

ADDRESSES = tuple(filter(None, map(os.environ.get, ("SITE_URL", "REPOSITORY_URL"))))
"""Addresses of the project itself, whose new pages do not exist yet."""

GENERATED = ("lite", "assets", "search")
"""Folders of the site that other tools write: JupyterLite and the theme."""


class Described(NamedTuple):
    kind: str
    name: str
    signature: str
    sections: dict[str, str]
    text: str

    def problems(self) -> Iterator[str]:
        if self.kind not in ("function", "class") or self.name.endswith(("Error", "Warning", *RESULTS)):
            return
        if not self.signature:
            if self.kind == "function":
                yield "has no signature"
            return
        names = parameters(self.signature)
        entries = PARAMETER.findall(self.sections.get("Parameters", ""))
        described = {name.strip(" *") for entry in entries for name in entry.split(",")}
        is_method = self.name.split(".")[-2][:1].isupper()
        if is_method:  # its summary may name them
            described |= set(re.findall(r"<code>(\w+)</code>", self.text.partition(TITLE)[0]))
        if missing := [name for name in names if name not in described]:
            yield f"has parameters without a description: {', '.join(missing)}"
        if (names or not is_method) and "Raises" not in self.sections and NO_ERROR not in self.text:
            yield "has no section of errors"
        if not is_method and "<code" not in self.sections.get("Examples", ""):
            yield "has no example"


def main(site: Path = SITE) -> int:
    pages = read(site)
    all_problems = list(problems(pages, site))
    links = {link for text in pages.values() for link in targets(text) if urlsplit(link).netloc}
    outside = [link for link in sorted(links) if not link.startswith(ADDRESSES)]
    print(*all_problems, *outside, sep="\n")
    print(f"{len(pages)} pages, {len(outside)} links to other sites, {len(all_problems)} problems")
    return 1 if all_problems or not pages else 0


def read(site: Path) -> dict[Path, str]:
    paths = (path for path in sorted(site.rglob("*.html")) if path.relative_to(site).parts[0] not in GENERATED)
    return {path: path.read_text(encoding="utf-8") for path in paths}


def problems(pages: dict[Path, str], site: Path) -> Iterator[str]:
    for path, page in pages.items():
        yield from (f"{documented.name} {problem}" for documented in objects(page) for problem in documented.problems())
        yield from broken_links(path, pages, site)


def objects(page: str) -> Iterator[Described]:
    matches = list(OBJECT.finditer(page))
    ends = [match.start() for match in matches[1:]] + [len(page)]
    for this, end in zip(matches, ends, strict=False):
        text = page[this.end() : end]
        signature = SIGNATURE.search(text)
        plain = html.unescape(re.sub(r"<[^>]*>", "", signature[1])) if signature else ""
        yield Described(this[1], this[2], plain, dict(SECTION.findall(text)), text)


def parameters(signature: str) -> list[str]:
    (function,) = ast.parse(f"def {signature.strip()}: ...").body
    assert isinstance(function, ast.FunctionDef)
    named = function.args
    return [argument.arg for argument in (*named.posonlyargs, *named.args, *named.kwonlyargs)]


def broken_links(path: Path, pages: dict[Path, str], site: Path) -> Iterator[str]:
    for link in dict.fromkeys(targets(pages[path])):
        url = urlsplit(link)
        place = path.relative_to(site).as_posix()
        if url.netloc or url.scheme:
            if url.scheme not in ("https", "data", "mailto") or re.search(r"[\s<>]|\.$", link):
                yield f"{place}: the link {link} is not an address that begins with https://"
            continue
        target = (path.parent / unquote(url.path)).resolve() if url.path else path
        if url.path.startswith("/"):
            continue  # the page for missing addresses has absolute links
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            yield f"{place}: the link {link} leads to no file"
        elif url.fragment and target in pages and unquote(url.fragment) not in identifiers(pages[target]):
            yield f"{place}: the link {link} leads to no heading"


def targets(page: str) -> list[str]:
    return list(map(html.unescape, TARGET.findall(page)))


def identifiers(page: str) -> set[str]:
    return set(map(html.unescape, IDENTIFIER.findall(page)))


if __name__ == "__main__":
    sys.exit(main())
