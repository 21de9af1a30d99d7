"""Read the options of command lines in shell scripts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from .document import Document
from .keys import Key, format_value

COMMENT = re.compile(r"(^|\s)#.*")
OPTION = re.compile(r"(?:--|-(?=\w*_))([a-zA-Z][\w.-]*)(?:=(.*))?", re.DOTALL)
ASSIGNED = re.compile(r"^[ \t]*(?:export\s+|local\s+|readonly\s+)?(\w+)=[\"']?([^\s;'\"]*)", re.MULTILINE)
CHANGED = re.compile(r"\b(?:for|read(?:\s+-\w+)*)\s+(\w+)\b|(?<![\w.-])(\w+)[:+]?=(?![\"']?\$\{?\2\b)")
"""Matches a variable that `for`, `read` or an assignment sets, but not an option such as `--clip=`."""

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf", re.IGNORECASE)

ARRAY = re.compile(r"^[ \t]*(?:local\s+|declare\s+-a\s+)?(\w+)\+?=\((?:[^()]|\([^()]*\))*\)", re.MULTILINE)
"""Matches an array, such as ARGS=(--clip-grad 1.0)."""

COMMAND = re.compile(r"\.py\b|\b(python\d?|torchrun|accelerate|deepspeed)\s")


def without_unused_arrays(text: str) -> str:
    """Remove the arrays that a script does not expand.

    If the script runs no command, keep all arrays, because other scripts can use them.
    """

    code = COMMENT.sub("", text)

    def used(array: re.Match[str]) -> str:
        is_expanded = re.search(rf"\$\{{?{array[1]}\b", code)
        return array[0] if is_expanded else "\n" * array[0].count("\n")

    return ARRAY.sub(used, text) if COMMAND.search(ARRAY.sub("", text)) else text


@lru_cache(maxsize=4)  # several formats read the same script
def script_options(text: str) -> Sequence[tuple[int, str, Any]]:
    """Return the line, name and value of each `--option`. The value is None if no word follows the option."""
    options: list[tuple[int, str, Any]] = []
    text = without_unused_arrays(text)
    numbers = assigned_numbers(text)
    for line, word in _words(text):
        if match := OPTION.fullmatch(word):
            options.append((line, match[1], option_value(match[2], numbers)))
        elif word and options and options[-1][2] is None:
            options[-1] = (*options[-1][:2], option_value(word, numbers))
    return options


def parse(text: str, name: str, *, has_underscores: bool = False) -> Document:
    """Return the value of each `--option` of a script. An option with several values becomes a list.

    has_underscores: Name the option `--clip-grad` "clip_grad", as the key in files.
    """
    options: dict[str, list[Any]] = {}
    places: dict[tuple[Key, ...], int] = {}
    for line, option, value in script_options(text):
        if "." in option:
            continue
        option = option.replace("-", "_") if has_underscores else option
        options.setdefault(option, []).append(value)
        places[option,] = line
    data = {option: values[0] if len(set(values)) == 1 else values for option, values in options.items()}
    return Document(name, text, "args", data, places)


def dump(data: Any) -> str:
    """Write keys as options, such as `--clip-grad 1.0`. A nested key becomes an override, such as `a.b=1.0`."""
    return " ".join(_words_of(data)) + "\n"


def _words_of(data: Any, table: str = "") -> Iterator[str]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _words_of(value, f"{table}{key}.")
        else:
            yield f"{table}{key}={format_value(value)}" if table else f"{option(key)} {value}"


def option(key: Key) -> str:
    return f"--{str(key).replace('_', '-')}"


def without_comments(text: str) -> str:
    return "\n".join(COMMENT.sub(r"\1", line) for line in text.splitlines())


def _words(text: str) -> Iterator[tuple[int, str]]:
    for line, code in enumerate(text.splitlines(), 1):
        for word in re.split(r"[\s()\"';\\]+", COMMENT.sub("", code)):
            yield line, word


def assigned_numbers(text: str) -> Mapping[str, str]:
    changed = Counter(first or second for first, second in CHANGED.findall(text))
    return {name: value for name, value in ASSIGNED.findall(text) if changed[name] == 1 and NUMBER.fullmatch(value)}


def option_value(word: str | None, numbers: Mapping[str, str]) -> Any:
    """Convert a number, or a `$NAME` in `numbers`, to a float. Return any other word unchanged."""
    if word is not None and (match := VARIABLE.fullmatch(word)):
        word = numbers.get(match[1] or match[2], word)
    return float(word) if word is not None and NUMBER.fullmatch(word) else word
