"""Write unified_clip/port/report/differences.json from the parity suite's list of known differences."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unified_clip.parity.known import entries
from unified_clip.parity.suite.schema import TOLERANCE
from unified_clip.port import catalog
from unified_clip.port.report import differences
from unified_clip.recorder.lines import plain_json

SIZED = ("value", "touched")
"""The kinds of differences in numbers. Ports do not depend on differences in errors, warnings and shapes."""

FILE = Path(__file__).parents[1] / "unified_clip" / "port" / "report" / "differences.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--known", type=Path, default=Path("parity/known.toml"), help="the suite's list")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is stale")
    options = parser.parse_args(arguments)
    ported = {differences.framework_of(function) for function in catalog.names("measured")}
    largest = merged(
        [entry(known) for known in entries.read(options.known) if known.framework in ported and not known.parts[0]]
    )
    data = {"rounding": TOLERANCE, "known": [plain_json(difference) for difference in largest]}
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if not options.check:
        options.file.write_text(text, encoding="utf-8")
    elif options.file.read_text(encoding="utf-8") != text:
        print(f"{options.file.name} is stale. Run: python tools/port_differences.py", file=sys.stderr)
        return 1
    return 0


def entry(known: entries.KnownDifference) -> dict[str, Any]:
    size = known.parts[1]
    when, _, why = known.reason.partition(": ")
    return {
        "framework": known.framework,
        "function": known.function,
        "size": size,
        "by": entries.size_in_words(size),
        "when": when,
        "why": why,
        "versions": "",
    }


def merged(differences: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    largest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for difference in differences:
        key = tuple(value for name, value in difference.items() if name not in ("size", "by"))
        if key not in largest or difference["size"] > largest[key]["size"]:
            largest[key] = difference
    return list(largest.values())


if __name__ == "__main__":
    sys.exit(main())
