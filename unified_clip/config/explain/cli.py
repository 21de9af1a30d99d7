"""The command `unified-clip explain A [B]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._command import CodedError, UsageError, add_format
from ..._command.mode_options import check_modes
from ..._kit.atomic_files import FileError
from ..._kit.display import cell

if TYPE_CHECKING:
    from rich.table import Table

    from .compare import ConfigComparison, ExplainedConfig
    from .examples import Gradients

NUMBERS = ("norm", "coefficient", "norm after")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="explain what a clip configuration does to a gradient, or how two configurations differ",
        description="Print what a configuration does, with examples. With two configurations, print what differs and "
        "by how much. Pass clip configurations, or trainers' configurations that `unified-clip config import` reads.",
    )
    parser.add_argument("a", type=Path, metavar="A", help="a configuration")
    parser.add_argument("b", type=Path, metavar="B", nargs="?", help="a second configuration, to compare with A")
    form = "NAME[@VERSION]"
    parser.add_argument("--from", dest="from_a", metavar=form, help="the format of A (default: inferred from the file)")
    parser.add_argument("--from-b", metavar=form, help="the format of B (default: inferred from the file)")
    parser.add_argument(
        "--gradients",
        type=Path,
        metavar="FILE",
        help="an .npz file of gradients to clip (default: examples below, at and above the threshold)",
    )
    parser.add_argument(
        "--recorded",
        type=Path,
        metavar="RUN.jsonl",
        help="a recorded run. Also print at how many of its steps a configuration would clip",
    )
    parser.add_argument("--step", type=int, metavar="N", help="the step for a threshold with a schedule (default: 0)")
    add_format(parser, "text", "json", old=["json"])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from . import compare

    result = _result(options)
    if options.format == "json":
        print(json.dumps(compare.as_data(result), indent=1, allow_nan=False))
    elif isinstance(result, compare.ConfigComparison):
        _print_comparison(result)
    else:
        _print_explanation(result)
    return 0


def _result(options: argparse.Namespace) -> ExplainedConfig | ConfigComparison:
    from ...tensors.types import UnreadableError
    from ..clip_config import ClipConfig
    from ..formats.base import naming_advice
    from . import compare, recorded

    second = "a second configuration B"
    check_modes(options, {second: ("from_b",)}, second if options.b is not None else "")
    if options.step is not None and options.step < 0:
        raise UsageError(f"--step is {options.step}. Pass 0 or more.", "UC203")
    paths = [path for path in (options.a, options.b) if path is not None]
    formats = [(options.from_a, "pass --from {}"), (options.from_b, "pass --from-b {}")]
    configs = []
    for path, (format_, way) in zip(paths, formats, strict=False):
        with naming_advice(way):
            configs.append(ClipConfig.import_from(path, format_))
    if options.step is not None and not any(config.has_schedule for config in configs):
        raise UsageError("--step needs a threshold with a schedule, but no threshold has a schedule. Remove --step.")
    gradients = None if options.gradients is None else _read_gradients(options.gradients)
    runs = [] if options.recorded is None else zip(configs, paths, strict=True)
    replays = [recorded.describe(config, path, options.recorded) for config, path in runs]
    try:
        if options.b is None:
            explanation = compare.explain(configs[0], options.a.name, gradients, options.step or 0)
            explanation.sentences.extend(replays)
            return explanation
        names = [str(path) if options.a.name == options.b.name else path.name for path in paths]
        a, b = configs
        comparison = compare.compare(a, b, names, gradients, options.step or 0)
        for one, sentence in zip((comparison.a, comparison.b), replays, strict=False):
            one.sentences.append(sentence)
        return comparison
    except CodedError:
        raise
    except (TypeError, ValueError) as error:  # gradients that this configuration cannot clip
        raise UnreadableError(str(error)) from None


def _read_gradients(path: Path) -> Gradients:
    from ..._kit.limits import LimitError
    from ...tensors.files import npz
    from ...tensors.files.entries import select
    from ...tensors.types import Dense, UnreadableError, to_numpy

    try:
        items = list(npz.items(path))
        for item in items:
            if not item.dtype.startswith(("float", "complex", "bfloat")):
                raise UnreadableError(f"{item.name!r} has dtype {item.dtype}. Save gradients as floats")
        tensors = select(items, (), path.stat().st_size)
        gradients = {name: to_numpy(tensor) for name, tensor in tensors if isinstance(tensor, Dense)}
        if not gradients:
            raise UnreadableError("the file has no arrays. Save gradients with numpy.savez")
    except (UnreadableError, LimitError) as error:
        raise UnreadableError(f"{path}: cannot read gradients: {error}.", error.code) from None
    except FileError:
        raise
    except Exception as error:  # NumPy and zipfile raise almost anything for damaged bytes
        raise UnreadableError(f"{path}: cannot read gradients: {error}. Pass a file that numpy.savez wrote.") from None
    return gradients


def _print_explanation(explanation: ExplainedConfig, said: Collection[str] = ()) -> None:
    """Print an explanation, without sentences that are `said` already."""
    from rich.console import Console

    console = Console()
    console.print(cell(explanation.name, style="bold"))
    for sentence in (each for each in explanation.sentences if each not in said):
        console.print(cell(f"  {sentence}"))
    for note in explanation.notes:
        console.print(cell(f"  Note: {note}", style="yellow"))
    table = _table("example", "norm", "coefficient", "norm after", "becomes")
    for row in explanation.worked:
        becomes = "; ".join(
            f"{name} {' '.join(f'{x:.6g}' for x in values)}" for name, values in (row.results or {}).items()
        )
        numbers = map(_format_number, (row.norm, row.coef, row.norm_clipped))
        style = None if row.outcome == "unchanged" else "cyan"
        table.add_row(cell(row.of), *numbers, cell(becomes or row.outcome), style=style)
    console.print(table)


def _print_comparison(comparison: ConfigComparison) -> None:
    from rich.console import Console

    console = Console()
    console.print(cell(comparison.verdict, style="bold"))
    if comparison.differences:
        table = _table("what differs", comparison.a.name, comparison.b.name)
        for setting in comparison.differences:
            table.add_row(cell(setting.about), cell(setting.a, style="red"), cell(setting.b, style="green"))
        console.print(table)
    shared = [sentence for sentence in comparison.a.sentences if sentence in comparison.b.sentences]
    if shared:
        console.print(cell(f"{comparison.a.name} and {comparison.b.name}", style="bold"))
    for sentence in shared:
        console.print(cell(f"  {sentence}"))
    for explanation in (comparison.a, comparison.b):
        _print_explanation(explanation, said=shared)
    table = _table("example", "norms", "norms after", "difference")
    for row in comparison.compared:
        norms = f"{_format_number(row.a.norm)} / {_format_number(row.b.norm)}"
        after = " / ".join(_format_number(worked.norm_clipped) or worked.outcome for worked in (row.a, row.b))
        is_same = row.distance == 0
        distance = cell("identical" if is_same else f"{row.distance:.2g}", style="green" if is_same else "red")
        table.add_row(cell(row.of), norms, after, distance)
    console.print(table)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table()
    for column in columns:
        is_number = column in NUMBERS
        table.add_column(cell(column), overflow="ellipsis" if is_number else "fold", no_wrap=is_number)
    return table


def _format_number(number: float | None) -> str:
    from . import describe

    return "" if number is None else describe.number_text(number)
