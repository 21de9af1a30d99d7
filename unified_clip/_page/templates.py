"""Render a page from the templates of a package."""

from __future__ import annotations

import functools
import re

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape


@functools.cache
def environment(package: str) -> Environment:
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(package, "web"), PackageLoader("unified_clip._page", "web")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["with_code"] = _with_code
    return templates


def _with_code(sentence: str) -> Markup:
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence))))
