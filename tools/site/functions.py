"""The function map: a page for each function of a framework that clips."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import unified_clip
from unified_clip._kit import markdown
from unified_clip.parity.known.entries import size_in_words

from .api import PACKAGE

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
FUNCTIONS: list[dict[str, Any]] = TABLE["function"]
TITLES: Mapping[str, str] = TABLE["titles"]
GROUPS: Mapping[str, str] = TABLE["groups"]
KNOWN = PACKAGE.parent / "parity/known.toml"
WITHOUT_SIZE = {
    "raises": "it raises an error",
    "returns": "it accepts the input",
    "silent": "it gives no warning",
    "form": "shapes differ",
    "elements": "the number of elements differs",
}

INDEX = """# Function map

Each page shows what one function of a framework computes, the closest other functions, the measured
differences, and the lines with unified_clip.
"""


def pages() -> dict[str, str]:
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))["known"]
    for entry in known:
        if not any(covers(entry, function) for function in FUNCTIONS):
            raise ValueError(f"tools/site/functions.toml lacks a function: {entry['function']} of known.toml")
    return {"functions/index.md": index(), **{path(function): page(function, known) for function in FUNCTIONS}}


def path(function: Mapping[str, Any]) -> str:
    file = re.sub(r"[^\w.]+", "_", function["name"])
    return f"functions/{file}.md"


def index() -> str:
    sections = [INDEX]
    for group, title in GROUPS.items():
        rows = [
            [
                f"[`{function['name']}`]({path(function).partition('/')[2]})",
                TITLES[function["framework"]],
                f"`{function['use']}`",
            ]
            for function in FUNCTIONS
            if function["group"] == group
        ]
        sections += [
            f"## {title.capitalize()}\n",
            markdown.table(["function", "framework", "unified_clip"], rows) + "\n",
        ]
    return "\n".join(sections)


def page(function: Mapping[str, Any], known: list[dict[str, Any]]) -> str:
    other_frameworks = " and ".join(", ".join(elsewhere(function)).rsplit(", ", 1))
    sections = [f"# `{function['name']}` in {other_frameworks}", function["computes"], *function.get("differs", ())]
    sections += [NAN] if function.get("infinite_norm_gives_nan") else []
    sections += ["## With unified_clip", replacement(function)]
    sections += ["## Closest functions elsewhere", closest(function)]
    if rows := [deviation(entry) for entry in known if covers(entry, function)]:
        sections += ["## Measured differences from the exact result", MEASURED]
        sections.append(markdown.table(["input", "largest difference in the suite", "functions", "reason"], rows))
    return "\n\n".join(sections) + "\n"


MEASURED = """The parity suite measures these differences, and fails if a difference changes. Differences may be larger
with other gradients. If a row has several functions, the difference occurs with at least one of them. For eager tensors
in CPU memory, unified_clip returns the exact result, rounded once."""

SAME_RULE = """To clip without this difference, use
`ClipConfig(rule="global_norm", threshold=1.0, family="paddle")` ([which family?](../config.md#which-family))."""

NAN = "If the norm is infinite, every gradient becomes NaN."


def elsewhere(function: Mapping[str, Any]) -> list[str]:
    return [TITLES[name] for name in ("torch", "tensorflow", "paddle", "jax") if name != function["framework"]]


def replacement(function: Mapping[str, Any]) -> str:
    use = function["use"]
    if "configure" in function:
        code = f"```python\n{function['configure']}\n```"
        return f"This clip does the same on every framework ([adaptive thresholds](../adaptive.md)).\n\n{code}"
    link = (
        f"`{use}` of `unified_clip.{function['framework']}` returns the same bits as that of each other framework "
        "([reference](../api/unified_clip.md))."
    )
    if (defined := getattr(unified_clip, use).__name__) != use:
        link = f"{link} It is an alias of `{defined}`, the name in recordings and reports."
    followed = next(entry for entry in FUNCTIONS if entry["name"].rpartition(".")[2] == use)
    if any(function.get(key) != followed.get(key) for key in ("eps", "infinite_norm_gives_nan")):
        link = f"{link} `{use}` follows `{followed['name']}`. {difference(function, followed)} {SAME_RULE}"
    code = "\n".join(example(use))
    return f"{link}\n\n```python\n{code}\n```"


def example(name: str) -> Iterator[str]:
    text = inspect.cleandoc(getattr(unified_clip, name).__doc__).partition("Example:\n")[2]
    for line in filter(None, map(str.strip, text.splitlines())):
        yield line[4:] if line.startswith((">>> ", "... ")) else f"# {line}"


def closest(function: Mapping[str, Any]) -> str:
    same = [
        alternative
        for alternative in FUNCTIONS
        if alternative["group"] == function["group"] and alternative is not function
    ]
    without = [
        title
        for name, title in TITLES.items()
        if name not in {alternative["framework"] for alternative in [function, *same]}
    ]
    rows = [
        [
            f"[`{alternative['name']}`]({path(alternative).partition('/')[2]})",
            TITLES[alternative["framework"]],
            difference(function, alternative),
        ]
        for alternative in same
    ]
    table = markdown.table(["function", "framework", "difference of the rules"], rows)
    names = " and ".join(", ".join(without).rsplit(", ", 1))
    none = f"{names} {'has' if len(without) == 1 else 'have'} no such function."
    return "\n\n".join(part for part in (table, none if without else "") if part)


def difference(function: Mapping[str, Any], alternative: Mapping[str, Any]) -> str:
    own, eps = function.get("eps", 0.0), alternative.get("eps", 0.0)
    sentences = list(alternative.get("differs", ()))
    if own != eps:
        adding = alternative if eps else function
        clipped = f"With a threshold of 1, clipped gradients differ by at most {abs(own - eps):g}, relative."
        sentences = [f"`{adding['name']}` adds {max(own, eps):g} to the norm. {clipped}", *sentences]
    if function.get("infinite_norm_gives_nan") != alternative.get("infinite_norm_gives_nan"):
        zero, nan = sorted((function, alternative), key=lambda entry: bool(entry.get("infinite_norm_gives_nan")))
        sentences.append(
            f"If the norm is infinite, `{zero['name']}` makes finite gradients 0, and `{nan['name']}` makes them NaN."
        )
    return " ".join(sentences) or "none"


def covers(entry: Mapping[str, Any], function: Mapping[str, Any]) -> bool:
    pattern = ".*".join(map(re.escape, entry["function"].split("*")))
    known = function.get("known", function["name"])
    return entry["framework"] == function["framework"] and re.fullmatch(pattern, known) is not None


def deviation(entry: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys(function.get("known", function["name"]) for function in FUNCTIONS if covers(entry, function))
    size, (title, _, reason) = entry["size"], entry["reason"].partition(": ")
    if not reason:  # MLX has no titles
        title, reason = ", ".join(case.strip("*: ") for case in entry["cases"]), title
    return [
        title,
        WITHOUT_SIZE[size.partition(" ")[0]] if isinstance(size, str) else size_in_words(size),
        ", ".join(f"`{name}`" for name in names),
        reason,
    ]
