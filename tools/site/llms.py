"""llms.txt: a list of the pages of the site for language models (llmstxt.org), with a sentence about each page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .links import CODE, title


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, and ignores the tags of Python objects."""


def _variable(loader: yaml.SafeLoader, node: yaml.SequenceNode) -> str | None:
    name, default = loader.construct_sequence(node)
    return os.environ.get(name, default)


_Loader.add_constructor("!ENV", _variable)
_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def index(configuration: Path, folder: Path) -> str:
    site = yaml.load(configuration.read_text(encoding="utf-8"), _Loader)
    lines = [f"# {site['site_name']}", "", f"> {site['site_description']}"]
    for section in site["nav"]:
        ((name, entries),) = section.items()
        lines += ["", f"## {name}", ""]
        for page in pages(entries):
            text = (folder / page).read_text(encoding="utf-8")
            lines.append(f"- [{title(text)}]({site['site_url']}{address(page)}): {first_sentence(text)}".rstrip(": "))
    return "\n".join(lines) + "\n"


def pages(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    else:
        for entry in entries.values() if isinstance(entries, dict) else entries:
            yield from pages(entry)


def address(page: str) -> str:
    path = page.removesuffix(".md")
    name = path.rpartition("/")[2]
    return path[: -len(name)] if name in ("index", "README") else f"{path}/"


def first_sentence(text: str) -> str:
    for paragraph in map(str.strip, CODE.sub("", text).split("\n\n")):
        if re.match(r"[A-Z`*\[]", paragraph):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.!?]) (?=[A-Z`])", plain)[0].rstrip(":")
    return ""
