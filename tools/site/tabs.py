"""Convert the sections between two marks of a page to tabs for the site. On GitHub, the sections are not changed."""

from __future__ import annotations

import re
import textwrap

TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end of tabs -->\n", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{2,} (.+)\n", re.MULTILINE)


def with_tabs(text: str) -> str:
    return TABS.sub(lambda marked: _tabs(marked[1]), text)


def _tabs(text: str) -> str:
    before, *headings_and_texts = HEADING.split(text)
    if before.strip() or not headings_and_texts:
        raise ValueError(f"text between '<!-- tabs -->' and the first heading: {text[:80]}")
    tabs = zip(headings_and_texts[::2], headings_and_texts[1::2], strict=True)
    return "".join(f'=== "{name}"\n\n{textwrap.indent(body.strip(), "    ")}\n\n' for name, body in tabs)
