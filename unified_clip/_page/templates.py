"""Render a page from the templates of a package."""

from __future__ import annotations

import functools

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


@functools.cache
def environment(package: str) -> Environment:
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "web"), PackageLoader("unified_clip._page", "web")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
