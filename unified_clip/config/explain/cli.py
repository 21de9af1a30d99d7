"""The command `unified-clip explain A [B]`."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._command import UsageError, add_format
from ..._command.mode_options import check_modes
from ..._kit.display import cell
from ..cli import ReadKey, add_key_options, imported

if TYPE_CHECKING:
    from ..clip_config import ClipConfig
    from .compare import ConfigComparison, ExplainedConfig

REMOVED = (
    "--gradients and --step were removed. To clip your own gradients, use Python: "
    "ClipConfig.import_from(FILE)(gradients, step=N). Remove the option."
)


def add_parser(commands: Any, read_key: ReadKey) -> None:
    parser = commands.add_parser(
        "explain",
        help="explain what a clip configuration does to a gradient, or how two configurations differ",
        description="Print what a configuration does. With two configurations, print what differs, and an example of "
        "each effect. Pass clip configurations, or trainers' configurations that `unified-clip config import` reads.",
    )
    parser.add_argument("a", type=Path, metavar="A", help="a configuration")
    parser.add_argument("b", type=Path, metavar="B", nargs="?", help="a second configuration, to compare with A")
    form = "NAME[@VERSION]"
    parser.add_argument("--from", dest="from_a", metavar=form, help="the format of A (default: inferred from the file)")
    parser.add_argument("--from-b", metavar=form, help="the format of B (default: inferred from the file)")
    parser.add_argument(
        "--recorded",
        type=Path,
        metavar="RUN.jsonl",
        help="a recorded run. Also print at how many of its steps a configuration would clip",
    )
    add_key_options(parser, "A", read_key)
    parser.add_argument("--gradients", "--step", dest="removed", help=argparse.SUPPRESS)
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
    paths = [path for path in (options.a, options.b) if path is not None]
    configs = [imported(options, options.a, options.from_a)]
    if options.b is not None:
        with naming_advice("pass --from-b {}"):
            configs.append(ClipConfig.import_from(options.b, options.from_b))
    names = [path.name if options.b is None or options.a.name != options.b.name else str(path) for path in paths]
    if options.b is None:
        result: ExplainedConfig | ConfigComparison = compare.explain(configs[0], names[0])
    else:
        result = compare.compare(configs[0], configs[1], names)
    explained = [result.a, result.b] if isinstance(result, compare.ConfigComparison) else [result]
    if options.recorded is not None:
        for explanation, config, path in zip(explained, configs, paths, strict=True):
            explanation.sentences.append(_replayed(config, path, options.recorded))
    if options.format == "json":
        print(json.dumps(compare.as_data(result), indent=1, allow_nan=False))
    else:
        _print(result, explained)
    return 0


def _replayed(config: ClipConfig, source: Path, path: Path) -> str:
    """Return a sentence about the share of recorded norms that a configuration would clip."""
    from ...suggest import Replay, suggest_threshold
    from ...tensors.types import UnreadableError
    from ..schedules import threshold_at

    unsupported = {
        f"rule = {config.rule!r}": config.rule != "global_norm",
        "groups": bool(config.groups),
        "exclude": bool(config.exclude),
        "include": config.include != ["*"],
        f"norm_type = {config.norm_type or 2:g}": config.norm_type not in (None, 2.0),
        "a threshold with a schedule": config.has_schedule,
    }
    if unfit := next((setting for setting, is_set in unsupported.items() if is_set), ""):
        advice = "Remove --recorded, or pass another configuration."
        raise UsageError(f"{source} has {unfit}, which --recorded does not support. {advice}")
    try:
        suggestion = suggest_threshold(path)
    except (OSError, ValueError) as error:
        raise UnreadableError(str(error)) from None
    norms = suggestion.norms
    thresholds: Sequence[float] = [math.inf] * len(norms)
    if config.adaptive is not None:
        thresholds = suggestion.replay(config.adaptive.make()).thresholds
    limit = math.inf if config.threshold is None else threshold_at(config.threshold, 0)
    thresholds = [min(threshold, limit) for threshold in thresholds]
    clipped = sum(norm > threshold for norm, threshold in zip(norms, thresholds, strict=True)) / len(norms)
    return f"With the norms recorded in {path.name}, this configuration {Replay(thresholds, clipped)}."


def _print(result: ExplainedConfig | ConfigComparison, explained: Sequence[ExplainedConfig]) -> None:
    from rich.console import Console

    from .compare import ConfigComparison

    console = Console()
    shared = [text for text in explained[0].sentences if len(explained) > 1 and text in explained[1].sentences]
    if isinstance(result, ConfigComparison):
        console.print(cell(result.verdict, style="bold"))
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
    for row in result.telling if isinstance(result, ConfigComparison) else ():
        console.print(cell(f"Example: {row.sentence}."))
