"""Write the tables in docs/formats.md from the formats and from unsupported_settings.toml."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from unified_clip._kit import markdown
from unified_clip.config.formats import FORMATS, Format
from unified_clip.config.formats.conditions import ANY, TYPE
from unified_clip.config.formats.python_source import PythonFormat
from unified_clip.facts.trainer_rows import Clip, Test

UNSUPPORTED = Path(__file__).with_name("unsupported_settings.toml")

BEGIN = "<!-- {}: `python tools/formats_table.py` writes this -->"
END = "<!-- end of {} -->"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--document", type=Path, default=Path("docs/formats.md"))
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the tables are stale")
    options = parser.parse_args(arguments)
    text = options.document.read_text(encoding="utf-8")
    new = text
    for name, table in (("files", files()), ("keys", keys()), ("not finite", not_finite()), ("known", known())):
        begin, end = BEGIN.format(name), END.format(name)
        if new.count(begin) != 1 or new.count(end) != 1:
            print(f"{options.document.name} has no place for a table: {begin} {end}", file=sys.stderr)
            return 2
        before, rest = new.split(begin)
        new = f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"
    if options.check:
        if new != text:
            print(f"{options.document.name} is stale; run python tools/formats_table.py", file=sys.stderr)
        return int(new != text)
    options.document.write_text(new, encoding="utf-8")
    return 0


def files() -> str:
    kinds = {"python": "Python source", "toml": "TOML", "yaml": "YAML", "json": "JSON"}
    rows = [
        [
            f"`{file_format.name}`",
            file_format.title,
            ", ".join(kinds.get(kind, kind) for kind in file_format.kinds)
            + " (export only)" * isinstance(file_format, PythonFormat),
            file_format.newest,
            file_format.family,
        ]
        for file_format in FORMATS.values()
    ]
    return markdown.table(["name", "trainer", "files", "newest version", "family"], rows)


def keys() -> str:
    """One row for each way to clip that sets a threshold."""
    header = ["name", "key", "clips by", "default", "special values"]
    ways = [
        (file_format, clip)
        for file_format in FORMATS.values()
        for clip in reachable(file_format.row.clip)
        if clip.key and not clip.layout.startswith("optimizer")
    ]
    return markdown.table(header, [[f"`{file_format.name}`", *way(file_format, clip)] for file_format, clip in ways])


def reachable(clips: Sequence[Clip]) -> Sequence[Clip]:
    """Leave out the ways after one that always applies. A row that is like another row inherits them."""
    always = (number for number, clip in enumerate(clips) if not clip.when and not clip.layout)
    return clips[: next(always, len(clips)) + 1]


def way(file_format: Format, clip: Clip) -> list[str]:
    where = ", ".join(f"`{key}`" for key in places(file_format, clip))
    return [
        f"{where}: {clip.applies}" if clip.applies else where,
        rules(clip),
        default(clip),
        special(file_format, clip),
    ]


def special(file_format: Format, clip: Clip) -> str:
    """Return what 0, negative numbers and null do. Values that are left out are errors."""
    zero = refused(file_format, clip, 0) or clip.zero or file_format.zero
    negative = clip.negative or ("off" if (clip.zero or file_format.zero) == "off" else "error")
    null = refused(file_format, clip, None) or {"unset": "default"}.get(clip.null, clip.null)
    has_null = clip.layout != "script" and file_format.kinds != ("toml",)
    effects = {"0": zero, "below 0": negative, "null": null if has_null else "error"}
    if zero == negative == "off":
        effects = {"0 or less": "off", "null": effects["null"]}
    return "; ".join(f"{value}: {effect}" for value, effect in effects.items() if effect != "error")


def refused(file_format: Format, clip: Clip, value: int | None) -> str:
    """Return "error", "varies" if only some versions reject the value, or '' if no rule of the row rejects it."""
    effects = []
    for refusal in (*clip.refuse, *file_format.row.refuse):
        tests = [test for test in refusal.when if isinstance(test, Test)]
        about = [test for test in tests if {("@",), *clip.key} & {*test.key}]
        if any(test.state == "null" if value is None else test.among == (value,) for test in about):
            effects.append("varies" if len(tests) > 1 else "error")
    return effects[0] if effects else ""


def places(file_format: Format, clip: Clip) -> list[str]:
    """Return the keys in the layout of a way, in the first of many similar sections."""
    layout = [layout for layout in file_format.row.layout if clip.layout in ("", layout.name)][-1]
    sections = layout.at[: 1 if len(layout.at) > 2 or ANY in layout.at[-1] else 2]
    paths = [key[1:] if key[0] == "/" else (*section, *key) for section in sections for key in clip.key]
    names = {ANY: file_format.placeholder, TYPE: file_format.placeholder}
    dashes = "--" if clip.layout == "script" else ""
    return [dashes + ".".join(names.get(part, part) for part in path) for path in paths]


RULES = {"global_norm": "global norm", "norm": "each tensor", "value": "each element", "agc": "AGC"}


def rules(clip: Clip) -> str:
    if clip.by is None or len(clip.by.rules) == 1:
        parts = [RULES[clip.rule if clip.by is None else next(iter(clip.by.rules.values()))]]
    else:
        names = {name: f"{name} (default)" if name == clip.by.default else name for name in clip.by.rules}
        named = [f"{names[name]}: {RULES[rule]}" for name, rule in clip.by.rules.items()]
        parts = [f"`{clip.by.key[-1]}` {', '.join(named)}"]
    if clip.norm_type != 2:
        parts.append(f"norm type {clip.norm_type:g}")
    if clip.norm_type_key:
        parts.append(f"norm type `{clip.norm_type_key[-1]}`")
    return "; ".join(parts)


def default(clip: Clip) -> str:
    if not isinstance(clip.default, tuple):
        return "required" if clip.default == "error" else str(clip.default)
    versions = [f"{each.value} before {each.before}" if each.before else f"then {each.value}" for each in clip.default]
    return ", ".join(versions)


def not_finite() -> str:
    return ", ".join(file_format.title for file_format in FORMATS.values() if file_format.not_finite) + "."


def known() -> str:
    settings = tomllib.loads(UNSUPPORTED.read_text(encoding="utf-8"))["setting"]
    return "; ".join(sorted((setting["trainer"] for setting in settings), key=str.lower)) + "."


if __name__ == "__main__":
    sys.exit(main())
