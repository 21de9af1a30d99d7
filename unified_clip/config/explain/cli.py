"""`unified-clip explain A [B]`: a table on a terminal, or JSON."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._display import cell, complain
from ..._limits import LimitError, array_header, check_expanded
from ..._modes import misplaced
from ...errors import ConfigError

if TYPE_CHECKING:
    from .compare import Comparison, Explanation, Worked
    from .examples import Gradients


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="explain what a clip configuration does to a gradient, or how two differ",
        description="Explain a clip configuration, or a trainer's configuration that `unified-clip config import` "
        "reads, with example numbers. With two, print what differs and by how much. "
        "Exit status: 0 success, even if they differ; 2 a file or the command is wrong.",
    )
    parser.add_argument("a", type=Path, metavar="A", help="a configuration")
    parser.add_argument("b", type=Path, metavar="B", nargs="?", help="another one")
    form = "FORMAT[@VERSION]"
    parser.add_argument("--from", dest="from_a", metavar=form, help="the format of A (default: inferred from the file)")
    parser.add_argument("--from-b", metavar=form, help="the format of B (default: inferred from the file)")
    parser.add_argument(
        "--gradients", type=Path, help="an .npz file of gradients to clip (default: examples around the threshold)"
    )
    parser.add_argument("--step", type=int, default=0, help="the step for a schedule (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command. Return the exit status."""
    from ..clip_config import ClipConfig
    from . import compare

    try:
        second = "a second configuration B"
        if problem := misplaced(options, {second: ("from_b",)}, second if options.b is not None else ""):
            raise ConfigError(problem)
        if options.step < 0:
            raise ConfigError(f"--step is {options.step}. Steps count from 0.")
        a = ClipConfig.import_from(options.a, options.from_a)
        gradients = _gradients(options.gradients)
        if options.b is None:
            _print(compare.explain(a, options.a.name, gradients, options.step), options.json)
            return 0
        b = ClipConfig.import_from(options.b, options.from_b)
        names = _names(options.a, options.b)
        _print(compare.compare(a, b, names, gradients, options.step), options.json)
    except (ConfigError, TypeError, ValueError) as error:
        complain(str(error))
        return 2
    return 0


def _names(a: Path, b: Path) -> list[str]:
    return [a.name, b.name] if a.name != b.name else [str(a), str(b)]


def _gradients(path: Path | None) -> Gradients | None:
    if path is None:
        return None
    import numpy as np

    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(path):
                raise ValueError("it is no .npz file, or was cut short")
            found = np.load(file, allow_pickle=False)
            check_expanded(sum(info.file_size for info in found.zip.infolist()), path.stat().st_size)
            for info in found.zip.infolist():
                _check_header(found.zip, info)
            gradients = {name: _gradient(found, name) for name in found.files}
        if not gradients:
            raise ValueError("it holds none")
    except Exception as error:  # NumPy and zipfile raise almost anything for damaged bytes
        raise ConfigError(f"{path}: no gradients can be read: {error}; give a file that numpy.savez wrote") from None
    return gradients


def _check_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    with archive.open(info) as member:
        try:
            array_header(member)
        except LimitError as error:
            raise ValueError(f"{info.filename!r}: {error}") from None


def _gradient(found: Any, name: str) -> Any:
    try:
        array = found[name]
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
    if array.dtype.kind not in "fc":
        raise ValueError(f"{name!r} is of {array.dtype}, and gradients are floats")
    return array


def _print(found: Explanation | Comparison, as_json: bool) -> None:
    from . import compare

    if as_json:
        print(json.dumps(compare.as_data(found), indent=1, allow_nan=False))
    elif isinstance(found, compare.Comparison):
        _show_comparison(found)
    else:
        _show(found)


def _show(found: Explanation) -> None:
    from rich.console import Console

    console = Console()
    console.print(cell(found.name, style="bold"))
    for sentence in found.sentences:
        console.print(cell(f"  {sentence}"))
    for note in found.notes:
        console.print(cell(f"  Note: {note}", style="yellow"))
    console.print(_table(found.worked))


def _table(worked: list[Worked]) -> Any:
    from rich.table import Table

    table = Table()
    for title in ("worked on", "norm", "coefficient", "norm after", "becomes"):
        table.add_column(title)
    for each in worked:
        style = None if each.outcome == "unchanged" else "cyan"
        becomes = "; ".join(
            f"{name} {' '.join(f'{x:.6g}' for x in values)}" for name, values in (each.results or {}).items()
        )
        coef, after = _format_number(each.coef), _format_number(each.norm_clipped)
        table.add_row(cell(each.of), _format_number(each.norm), coef, after, cell(becomes or each.outcome), style=style)
    return table


def _format_number(number: float | None) -> str:
    from . import describe

    return "" if number is None else describe.measured(number)


def _show_comparison(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    _show(found.a)
    _show(found.b)
    console = Console()
    if found.differences:
        table = Table("what differs")
        for name in (found.a.name, found.b.name):
            table.add_column(cell(name))
        for each in found.differences:
            table.add_row(cell(each.about), cell(each.a, style="red"), cell(each.b, style="green"))
        console.print(table)
    table = Table("worked on", "norms", "norms after", "apart")
    for both in found.compared:
        norms = f"{_format_number(both.a.norm)} / {_format_number(both.b.norm)}"
        after = " / ".join(_format_number(each.norm_clipped) or each.outcome for each in (both.a, both.b))
        apart = cell("identical", style="green") if both.distance == 0 else cell(f"{both.distance:.2g}", style="red")
        table.add_row(cell(both.of), norms, after, apart)
    console.print(table)
    console.print(cell(found.verdict, style="bold"))
