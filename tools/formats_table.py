"""Write the tables in docs/formats.md from the formats and from unsupported_settings.toml."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from unified_clip import ClipConfig
from unified_clip._kit import markdown
from unified_clip.config.explain import describe
from unified_clip.config.explain.describe import FAMILY_TITLES
from unified_clip.config.formats import FORMATS

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
    for name, table in (("files", files()), ("families", families()), ("known", known())):
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
            ", ".join(kinds.get(kind, kind) for kind in file_format.kinds),
            file_format.newest,
        ]
        for file_format in FORMATS.values()
    ]
    return markdown.table(["name", "trainer", "files", "version for export"], rows)


def families() -> str:
    rows = []
    for family, title in FAMILY_TITLES.items():
        trainers = [file_format.title for file_format in FORMATS.values() if file_format.family == family]
        settings = ClipConfig(rule="global_norm", threshold=1.0, family=family)
        eps = f"{settings.as_clip_rule(1.0).convention.eps:g}"
        rows.append([f"`{family}`: {title}", eps, describe.nonfinite(settings), ", ".join(trainers)])
    rules = markdown.table(["family", "eps", "a norm that is not finite", "trainers"], rows)
    titles: dict[str, list[str]] = {}
    for file_format in FORMATS.values():
        if file_format.not_finite:
            titles.setdefault(file_format.not_finite, []).append(file_format.title)
    nonfinite_rows = [[", ".join(trainers), text] for text, trainers in titles.items()]
    return f"{rules}\n\n{markdown.table(['trainer', 'a norm that is not finite'], nonfinite_rows)}"


def known() -> str:
    settings = tomllib.loads(UNSUPPORTED.read_text(encoding="utf-8"))["setting"]
    rows = [
        [
            setting["trainer"],
            setting["key"],
            setting.get("default", ""),
            setting["meaning"],
            setting.get("why", "no format for this trainer"),
        ]
        for setting in sorted(settings, key=lambda setting: setting["trainer"].lower())
    ]
    return markdown.table(["trainer", "setting", "default", "meaning", "why it is not imported"], rows)


if __name__ == "__main__":
    sys.exit(main())
