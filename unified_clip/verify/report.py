"""Print the result of `unified-clip verify` as a table and sentences, or return it as data for JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from .._kit.display import cell
from ..compare.report import model
from ..compare.report.sentences import explain, logged_sentences
from ..recorder.lines import plain_json
from ..recording.rounding import ROUNDING
from ..tensors.types import Stage
from .compare import Verification
from .step_comparison import StepComparison
from .step_pairing import ParameterDistance

MAX_ROWS = 12

FIRST_ROWS = 3
MOST_PARAMETERS = 3

WIDTH = 200

VERDICTS = {
    "": "same",
    "no clip": "no clip call",
    "norm": "norm differs",
    "coefficient": "coefficient differs",
    "tensors": "tensors differ",
    "update": "update differs",
}

TENSOR_STAGES: dict[Stage, str] = {"tensors": "the clipped gradients", "update": "the updates"}


def show(result: Verification) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    has_losses = any(loss is not None for row in result.rows for loss in row.losses)
    columns = ["loss old", "loss new"] if has_losses else []
    table = Table(
        "step", *columns, "norm old", "norm new", "coefficient old", "coefficient new", "tensors", "update", "verdict"
    )
    for row in _rows_to_print(result):
        table.add_row(*(["..."] * len(table.columns) if row is None else _cells(row, result.max_ulp, has_losses)))
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    for line in sentences(result):
        console.print(cell(line), soft_wrap=True)


def sentences(result: Verification) -> list[str]:
    lines = []
    for run, counts in zip((result.old, result.new), result.calls, strict=True):
        calls = ", ".join(f"{call} ({count})" for call, count in counts.items())
        calls = f"with the clip calls {calls}" if calls else "without a clip call"
        lines.append(f"{run.script.side.capitalize()} is {run.script}, {calls}.")
    lines += [
        f"{run.script} yields unclipped gradients. The results of its clip calls were compared instead."
        for run in result.unclipped
    ]
    lines += [
        f"{run.script} calls {call} {count} time{'s' * (count > 1)} on tensors that are not gradients. These calls "
        "were not compared."
        for run, call, count in result.not_gradients
    ]
    lines += [
        *_without_clip(result),
        *_stages(result),
        *_noise(result),
        *_losses(result),
        *_units(result),
    ]
    if result.is_same:
        allowed = f", up to {result.max_ulp:g} ULP" if result.max_ulp else ""
        scripts = f"{result.old.script} and {result.new.script}"
        return [*lines, f"Same: {scripts} have the same clips and updates{allowed}{_uncompared(result)}."]
    return lines


def _losses(result: Verification) -> list[str]:
    old, new = result.runs
    return logged_sentences(old.recorded, new.recorded, result.logged)


def _without_clip(result: Verification) -> list[str]:
    steps = result.without_clip
    if not steps:
        return []
    return [
        f"At {len(steps)} of {len(result.rows)} steps ({_first_of(steps)}), no clip calls were recorded. Only "
        "gradients and updates were compared at these steps."
    ]


def _first_of(items: Sequence[object]) -> str:
    return ", ".join(map(repr, items[:FIRST_ROWS])) + (", ..." if len(items) > FIRST_ROWS else "")


def _units(result: Verification) -> list[str]:
    are_float64 = {line.dtype == "float64" for run in result.runs for line in run.lines}
    if True not in are_float64:
        return []
    if False not in are_float64:
        return ["All differences are in ULP of float64."]
    return ["Differences are in ULP of float64 if both numbers are in float64, and in ULP of float32 otherwise."]


def _noise(result: Verification) -> list[str]:
    names = list(dict.fromkeys(name for row in result.rows for name in sorted(row.parameters.noise)))
    if not names:
        return []
    return [
        f"Not compared: the gradients and updates of {_first_of(names)}. At some steps, these gradients are only "
        f"rounding noise of at most {ROUNDING} ULP of the total norm. In exact arithmetic, these gradients may "
        "be 0, as for the bias of attention keys."
    ]


def _uncompared(result: Verification) -> str:
    unknown = [what for stage, what in TENSOR_STAGES.items() if not any(_distances(row, stage) for row in result.rows)]
    return f", except {' and '.join(unknown)}, which were not compared" if unknown else ""


def _stages(result: Verification) -> list[str]:
    """The findings come first: they explain the differences of the tensors."""
    lines = [line for each in result.findings for line in explain(each)]
    lines += [_format_stage(result, stage) for stage in TENSOR_STAGES]
    return lines


def _format_stage(result: Verification, stage: Stage) -> str:
    what = TENSOR_STAGES[stage]
    known = [(row, distances) for row in result.rows if (distances := _distances(row, stage))]
    if not known:
        return f"{what.capitalize()} were not compared: at least one of the two training steps does not yield them."
    differ = [(row, distances) for row, distances in known if distances[0].ulps > result.max_ulp]
    if not differ:
        all_of_them = f"all {len(known)} steps" if len(known) > 1 else "the one step"
        compared = f"the {len(known)} of {len(result.rows)} steps that were compared"
        which = all_of_them if len(known) == len(result.rows) else compared
        allowed = f", up to {result.max_ulp:g} ULP" if result.max_ulp else ""
        return f"{what.capitalize()} are equal in {which}{allowed}."
    row, distances = differ[0]
    greatest = max((distances[0] for _, distances in differ), key=lambda distance: distance[:2])
    differing = [each for each in distances if each.ulps > result.max_ulp]
    worst = [f"{each.parameter!r} ({_format_distance(each)})" for each in differing[:MOST_PARAMETERS]]
    others = len(differing) - MOST_PARAMETERS
    rest = f" and {others} other{'s' * (others > 1)}" if others > 0 else ""
    count = f"{len(differing)} of {len(distances)} parameters differ{'s' * (len(differing) == 1)}"
    return (
        f"{what.capitalize()} differ from step {row.step} on, by at most {_format_distance(greatest)}. "
        f"At step {row.step}, {count}: {', '.join(worst)}{rest}."
    )


def _distances(row: StepComparison, stage: Stage) -> Sequence[ParameterDistance]:
    return row.parameters.tensors if stage == "tensors" else row.parameters.update


def _rows_to_print(result: Verification) -> Iterator[StepComparison | None]:
    """Yield the rows to print. None stands for omitted rows."""
    rows = result.rows
    differ = next((index for index, row in enumerate(rows) if row.differing(result.max_ulp)), len(rows))
    printed = {*range(FIRST_ROWS), *range(differ, differ + FIRST_ROWS), len(rows) - 1}
    printed = set(range(len(rows))) if len(rows) <= MAX_ROWS else printed
    for is_printed, group in itertools.groupby(enumerate(rows), key=lambda item: item[0] in printed):
        yield from (row for _, row in group) if is_printed else [None]


def _cells(row: StepComparison, max_ulp: float, with_losses: bool) -> list[str]:
    differing = row.differing(max_ulp)
    return [
        str(row.step),
        *(("-" if loss is None else f"{loss:.9g}") for loss in row.losses if with_losses),
        *(_numbers([number for line in lines for number in line.norms()], max) for lines in (row.old, row.new)),
        *(_numbers([number for line in lines for number in line.coefs()], min) for lines in (row.old, row.new)),
        *(_format_distance(each[0]) if (each := _distances(row, stage)) else "-" for stage in TENSOR_STAGES),
        VERDICTS[differing[0] if differing else "" if row.has_clip else "no clip"],
    ]


def _numbers(numbers: Sequence[float | None], which: Any) -> str:
    known = [number for number in numbers if number is not None]
    if not known:
        return "none fits" if numbers else "-"
    if len(numbers) == 1:
        return f"{known[0]:.9g}"
    unknown = f", {len(numbers) - len(known)} unknown" if len(known) < len(numbers) else ""
    return f"{which(known):.9g} ({which.__name__} of {len(known)}{unknown})"


def _format_distance(distance: ParameterDistance) -> str:
    return "0" if not distance.ulps else f"{distance.ulps:.3g} ULP, {distance.relative:.2g}"


def as_data(result: Verification) -> dict[str, Any]:
    data: dict[str, Any] = {
        "old": str(result.old.script),
        "new": str(result.new.script),
        "same": result.is_same,
        "max_ulp": result.max_ulp,
        "steps": [_step_data(row, result.max_ulp) for row in result.rows],
        "not_gradients": [{"side": run.script.side, "call": call, "count": n} for run, call, n in result.not_gradients],
        "without_clip": result.without_clip,
        "unclipped": [run.script.side for run in result.unclipped],
        "findings": [model.reported(each).as_json() for each in result.findings],
        "calls": [sum(each.values()) for each in result.calls],
    }
    return plain_json(data)  # type: ignore[no-any-return]


def _step_data(row: StepComparison, max_ulp: float) -> dict[str, Any]:
    keys = {"call", "rule", "threshold", "norm", "coef"}
    return {
        "step": row.step,
        "differs": row.differing(max_ulp),
        "old": [line.model_dump(include=keys) for line in row.old],
        "new": [line.model_dump(include=keys) for line in row.new],
        "noise": sorted(row.parameters.noise),
        "parameters": {
            stage: [each._asdict() for each in _distances(row, stage) if each.ulps > max_ulp] for stage in TENSOR_STAGES
        },
        "loss": dict(zip(("old", "new"), row.losses, strict=True)),
        **{stage: distance and distance._asdict() for stage, distance in row.distances().items()},
    }
