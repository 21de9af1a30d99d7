"""The command `unified-clip explain A [B]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._command import UsageError, add_format
from ..._command.mode_options import check_modes
from ..._kit.display import cell
from ..cli import ReadKey, add_key_options, imported

if TYPE_CHECKING:
    from .compare import ConfigComparison, ExplainedConfig

REMOVED = (
    "--gradients, --step and --recorded were removed. In Python, clip your own gradients by "
    "ClipConfig.import_from(FILE)(gradients, step=N), and try a rule on recorded norms by "
    "suggest_threshold(RUN).replay(rule). Remove the option."
)


def add_parser(commands: Any, read_key: ReadKey) -> None:
    parser = commands.add_parser(
        "explain",
        help="explain what a clip configuration does to a gradient, or how two configurations differ",
        description="Print what a configuration does. With two configurations, print what differs. Pass clip "
        "configurations, or trainers' configurations that `unified-clip config import` reads.",
    )
    parser.add_argument("a", type=Path, metavar="A", help="a configuration")
    parser.add_argument("b", type=Path, metavar="B", nargs="?", help="a second configuration, to compare with A")
    form = "NAME[@VERSION]"
    parser.add_argument("--from", dest="from_a", metavar=form, help="the format of A (default: inferred from the file)")
    parser.add_argument("--from-b", metavar=form, help="the format of B (default: inferred from the file)")
    add_key_options(parser, "A", read_key)
    parser.add_argument("--gradients", "--step", "--recorded", dest="removed", help=argparse.SUPPRESS)
    add_format(parser, "text", "json", old=["json"])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from ..clip_config import ClipConfig
    from ..formats.base import naming_advice
    from . import compare

    if options.removed is not None:
        raise UsageError(REMOVED)
    second = "a second configuration B"
    check_modes(options, {second: ("from_b",)}, second if options.b is not None else "")
    a = imported(options, options.a, options.from_a)
    if options.b is None:
        result: ExplainedConfig | ConfigComparison = compare.explain(a, options.a.name)
    else:
        with naming_advice("pass --from-b {}"):
            b = ClipConfig.import_from(options.b, options.from_b)
        paths = [options.a, options.b]
        names = [path.name if options.a.name != options.b.name else str(path) for path in paths]
        result = compare.compare(a, b, names)
    if options.format == "json":
        print(json.dumps(compare.as_data(result), indent=1, allow_nan=False))
    else:
        _print(result)
    return 0


def _print(result: ExplainedConfig | ConfigComparison) -> None:
    from rich.console import Console

    from .compare import ConfigComparison

    console = Console()
    explained: Sequence[ExplainedConfig] = [result.a, result.b] if isinstance(result, ConfigComparison) else [result]
    shared = [text for text in explained[0].sentences if len(explained) > 1 and text in explained[1].sentences]
    if isinstance(result, ConfigComparison):
        console.print(cell(result.summary, style="bold"))
        printed = {*result.a.sentences, *result.b.sentences}
        for setting in result.differences:
            if printed.isdisjoint((setting.a, setting.b)):
                console.print(cell(f"  {setting.about}: {setting.a} ({result.a.name}), {setting.b} ({result.b.name})"))
    parts = [(each.name, [text for text in each.sentences if text not in shared], each.notes) for each in explained]
    if shared:
        parts.insert(0, (f"{explained[0].name} and {explained[-1].name}", shared, []))
    for name, sentences, notes in parts:
        if sentences or notes:
            console.print(cell(name, style="bold"))
        for sentence in sentences:
            console.print(cell(f"  {sentence}"))
        for note in notes:
            console.print(cell(f"  Note: {note}", style="yellow"))
