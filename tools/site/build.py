"""Write the sources of the site to build/docs: the repository's pages with links for the site, and generated pages."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import api, commands, functions, gallery, libraries, llms, notebook
from .links import Links
from .tabs import with_tabs

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build/docs"
OTHER_PAGES = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "conformance.md": "conformance/README.md",
    "examples.md": "examples/README.md",
}
"""{path on the site: page outside docs/}."""

STYLE = Path(__file__).with_name("site.css")


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT, help="the folder to write; an older one is removed")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.out, ignore_errors=True)
    links = Links(ROOT, sources(), {notebook.NOTEBOOK: "notebook.md"})
    for page, text in {**written_pages(links), **generated_pages()}.items():
        write(options.out / page, text)
    for path in (*assets(), *links.outside):
        copy(path, options.out / links.target(path))
    shutil.copy(STYLE, options.out)
    write(options.out / "llms.txt", llms.index(ROOT / "mkdocs.yml", options.out))
    out: Path = options.out
    return out


def sources() -> dict[str, Path]:
    """Return {path on the site: file} for the written pages."""
    docs = {path.relative_to(ROOT / "docs").as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    return docs | {page: ROOT / file for page, file in OTHER_PAGES.items()}


def written_pages(links: Links) -> dict[str, str]:
    return {page: with_tabs(links.mend(page, path.read_text(encoding="utf-8"))) for page, path in sources().items()}


def generated_pages() -> Mapping[str, str]:
    return {
        **api.pages(),
        **functions.pages(),
        "commands.md": commands.page(),
        "gallery.md": gallery.page(),
        "libraries.md": libraries.page(),
        "notebook.md": notebook.page(),
    }


def assets() -> list[Path]:
    return [
        path
        for path in sorted((ROOT / "docs").rglob("*"))
        if path.is_file() and path.suffix not in (".md", ".ipynb", ".pyc") and path.name[0] != "."
    ]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
