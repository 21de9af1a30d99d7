"""Read the options of command lines in shell scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

COMMENT = re.compile(r"(^|\s)#.*")
OPTION = re.compile(r"(?:--|-(?=\w*_))([a-zA-Z][\w.-]*)(?:=(.*))?", re.DOTALL)
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf", re.IGNORECASE)


@lru_cache(maxsize=4)  # several formats read the same script
def script_options(text: str) -> Sequence[tuple[int, str, Any]]:
    """Return (line, name, value) of each `--option` of a script. The value is None if no word follows the option."""
    options: list[tuple[int, str, Any]] = []
    for line, word in _words(text):
        if match := OPTION.fullmatch(word):
            options.append((line, match[1], option_value(match[2])))
        elif word and options and options[-1][2] is None:
            options[-1] = (*options[-1][:2], option_value(word))
    return options


def _words(text: str) -> Iterator[tuple[int, str]]:
    for line, code in enumerate(text.splitlines(), 1):
        for word in re.split(r"[\s()\"';\\]+", COMMENT.sub("", code)):
            yield line, word


def option_value(word: str | None) -> Any:
    return float(word) if word is not None and NUMBER.fullmatch(word) else word
