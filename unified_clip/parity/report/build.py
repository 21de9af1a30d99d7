"""Write the report of a run: a page for the browser, JSON, Markdown and JUnit XML.

Only the JUnit XML has times, so the same results give the same bytes in the other files.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import _json
from ..judge.verdict import Verdict
from ..judge.worst_element import Number, WorstElement
from ..known.entries import KnownDifferenceStatus
from ..modes import NATIVE, OURS
from ..results import FrameworkResult, ParityRun
from ..suite.cases import Case
from . import case as one_case
from . import junit, markdown, page
from .model import SCHEMA


def write(
    run: ParityRun, out: Path, recorded: Sequence[Mapping[str, Any]] = (), ported: Mapping[str, Any] | None = None
) -> None:
    """Write index.html, parity.json, parity.md and parity.xml (JUnit) into a directory.

    recorded: The lines of a recorded training run, for a plot in the page.
    ported: The report of `unified-clip port`, for a section of the page.
    """
    out.mkdir(parents=True, exist_ok=True)
    data = as_data(run)
    (out / "parity.json").write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / "index.html").write_text(page.render(data, recorded, ported), encoding="utf-8")
    (out / "parity.md").write_text(markdown.as_markdown(data), encoding="utf-8")
    (out / "parity.xml").write_bytes(junit.as_xml(run))


def show(run: ParityRun, out: Path) -> None:
    """Print tables, problems, the verdict, and the path of the report."""
    markdown.show(as_data(run), out)


def as_data(run: ParityRun) -> dict[str, Any]:
    """Return the run as parity.json has it (see `model`). Infinities and NaN are strings."""
    changes = None if run.changes is None else list(map(dataclasses.asdict, run.changes))
    return {
        "schema": SCHEMA,
        "verdict": verdict(run),
        "exit_code": run.exit_code,
        "suite": run.suite,
        "baseline": changes,
        "versions": run.versions,
        "frameworks": list(run.frameworks),
        "titles": dict(run.titles),
        "summary": summary(run),
        "notes": list(run.notes),
        "problems": [dataclasses.asdict(each) for each in problems(run)],
        "known": [_known_data(shown) for shown in run.known],
        "cases": [
            {
                "name": row.case.name,
                "call": row.case.call_name,
                "gradients": row.case.gradients_name,
                "rule": row.case.rule,
                "elements": _elements(row.case),
                "sha256": row.digests,
                "stages_apart": row.differing_stages,
                "frameworks": {name: _cell_data(run, row.case, name, cell) for name, cell in row.frameworks.items()},
            }
            for row in run.cases
        ],
    }


def summary(run: ParityRun) -> dict[str, Any]:
    """Return the number of cases, and how often each verdict occurs, by mode and framework."""
    agreeing = sum(not row.differing_stages for row in run.cases)
    paths = {path: _counts(run, lambda cell, path=path: _kind(cell, path)) for path in OURS}  # type: ignore[misc]
    natives = _counts(run, lambda cell: cell.judgement)
    return {"cases": len(run.cases), "cases_where_frameworks_agree": agreeing, **paths, "natives": natives}


def _counts(run: ParityRun, kind: Callable[[FrameworkResult], str | None]) -> dict[str, dict[str, int]]:
    """Return how often each verdict occurs, by framework."""
    counts = {}
    for framework in run.frameworks:
        kinds = [
            found for row in run.cases if framework in row.frameworks and (found := kind(row.frameworks[framework]))
        ]
        if kinds:
            counts[framework] = {each: kinds.count(each) for each in sorted(set(kinds))}
    return counts


def _kind(cell: FrameworkResult, path: str) -> str | None:
    return cell.verdicts[path].kind if path in cell.verdicts else None


# -- problems


@dataclass(frozen=True)
class Problem:
    """Something that fails the run, and the cases that show it."""

    what: str
    detail: str
    framework: str | None = None
    mode: str | None = None
    cases: Sequence[str] = ()


def problems(run: ParityRun) -> list[Problem]:
    """Return everything that fails the run. Cases with the same reason share a problem."""
    found: dict[Problem, list[str]] = {}
    for problem, case in _problems(run):
        found.setdefault(problem, []).append(case)
    known = [
        Problem(f"known difference {each.known.framework}, {each.known.function}, {each.known.reason!r}", each.problem)
        for each in run.known
        if each.problem
    ]
    return [*(dataclasses.replace(problem, cases=names) for problem, names in found.items()), *known]


def _problems(run: ParityRun) -> Iterator[tuple[Problem, str]]:
    """Yield each problem with the name of a case that shows it."""
    for row in run.cases:
        name = row.case.name
        if row.differing_stages:
            yield Problem("frameworks differ from each other on the host path", ", ".join(row.differing_stages)), name
        for framework, cell in row.frameworks.items():
            for path, each in cell.verdicts.items():
                if _is_wrong(run, framework, each):
                    yield Problem(f"{framework}, {OURS[path]}, {each.kind}", each.detail, framework, path), name
            if cell.failure and _is_wrong(run, framework, cell.failure):
                what = f"{framework}, natives, {cell.failure.kind}"
                yield Problem(what, cell.failure.detail, framework, NATIVE), name
            if cell.problem and cell.native:
                yield Problem(f"{framework}, {cell.native.function}", cell.problem, framework, NATIVE), name


def _is_wrong(run: ParityRun, framework: str, each: Verdict) -> bool:
    return not each.agrees and not (each.kind == "missing" and framework in run.may_be_missing)


def verdict(run: ParityRun) -> str:
    """Return the result in a sentence."""
    ours = [each for _, each in run.verdicts()]
    of = f"{_count(len(run.cases), 'case')} on {', '.join(run.frameworks)}"
    if run.exit_code == 0 and run.differs:
        return f"PASS: {of}: {'; '.join(_failed(run))}: as in the baseline, and no worse."
    if run.exit_code == 0:
        equal = sum(each.kind == "equal" for each in ours)
        within = sum(each.agrees for each in ours) - equal
        known = sum(len(shown.cases) for shown in run.known)
        parts = [f"{equal} results of ours are exact"]
        parts += [f"{within} are within the contract"] if within else []
        told = sum(cell.judgement == "different" for row in run.cases for cell in row.frameworks.values())
        if known or told:
            said = "told, since the suite has no list of known ones" if told else "all known"
            parts.append(f"{_count(known + told, 'difference')} of the frameworks' own functions, {said}")
        missing = {name for name, each in [*run.verdicts(), *run.failures()] if each.kind == "missing"}
        parts += [f"without {', '.join(sorted(missing))}, which may be missing"] if missing else []
        return f"PASS: {of}: {', '.join(parts)}."
    return f"FAIL: {of}: {'; '.join(_failed(run)) or 'nothing was compared'}."


def _failed(run: ParityRun) -> Iterator[str]:
    """Yield the counts of what fails the run."""
    ours = [each for _, each in run.verdicts()]
    cells = [cell for row in run.cases for cell in row.frameworks.values()]
    every = [*run.verdicts(), *run.failures()]
    lost = sorted({name for name, each in every if each.kind != "different" and _is_wrong(run, name, each)})
    without = sum(each.kind != "different" and _is_wrong(run, name, each) for name, each in every)
    found = (
        (sum(each.kind == "different" for each in ours), "wrong result", f"of ours, of {len(ours)}"),
        (
            sum(bool(row.differing_stages) for row in run.cases),
            "case",
            "where frameworks differ from each other on the host path",
        ),
        (sum(bool(cell.problem) for cell in cells), "result", "of the frameworks' own functions not as listed"),
        (sum(bool(shown.problem) for shown in run.known), "known difference", "not true"),
        (without, "result", f"missing ({', '.join(lost)})"),
    )
    yield from (f"{_count(count, what)} {rest}" for count, what, rest in found if count)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# -- JSON


def _cell_data(run: ParityRun, case: Case, framework: str, cell: FrameworkResult) -> dict[str, Any]:
    data: dict[str, Any] = {}

    def common(mode: str, kind: str | None, detail: str) -> dict[str, Any]:
        again = kind not in ("equal", "close", "missing")
        return {
            "verdict": kind,
            "detail": detail,
            "details": _details_data(cell.details.get(mode)),
            "reproduce": one_case.command(run.suite, case.name, framework) if again else None,
        }

    for path, each in cell.verdicts.items():
        stages = {stage: _json.plain(size) for stage, size in each.stages.items()}
        data[path] = common(path, each.kind, each.detail)
        data[path] |= {
            "ulps": _json.plain(each.ulps),
            "cause": each.cause,
            "stages": stages,
            "sha256": cell.digests.get(path),
        }
    if cell.native:
        native = cell.native
        data[NATIVE] = common(NATIVE, cell.judgement, native.detail)
        data[NATIVE] |= {"function": native.function, "kind": native.kind, "norm": _json.plain(native.norm)}
        data[NATIVE] |= {"gradients": _json.plain(native.gradients), "cause": native.cause, "problem": cell.problem}
    elif cell.failure:
        data[NATIVE] = common(NATIVE, cell.failure.kind, cell.failure.detail)
        data[NATIVE] |= {"function": None, "kind": "", "norm": None, "gradients": None, "cause": "", "problem": ""}
    return data


def _details_data(details: WorstElement | None) -> dict[str, Any] | None:
    if details is None:
        return None
    return {
        "stage": details.stage,
        "gradient": details.gradient,
        "name": details.name,
        "element": list(details.element),
        "place": details.place,
        "dtype": details.dtype,
        "exact": _number_data(Number(details.exact, 0.0)),
        "ours": _number_data(details.ours),
        "native": _number_data(details.native),
        "nearer": details.nearer,
        "apart": details.apart,
        "compared": details.compared,
    }


def _number_data(number: Number | None) -> dict[str, Any] | None:
    if number is None:
        return None
    return {"value": _json.plain(number.value), "hex": number.value.hex(), "ulps": _json.plain(number.ulps)}


def _known_data(shown: KnownDifferenceStatus) -> dict[str, Any]:
    known = shown.known
    return {
        "framework": known.framework,
        "function": known.function,
        "kind": known.kind,
        "listed_size": _json.plain(known.size) if shown.size else None,
        "size": _json.plain(shown.size) if shown.size else None,
        "reason": known.reason,
        "versions": known.versions,
        "title": known.title,
        "problem": shown.problem,
        "cases": list(shown.cases),
    }


def _elements(case: Case) -> int:
    shapes = [gradient.shape for gradient in case.gradients if gradient is not None]
    return sum(math.prod(shape) for shape in shapes)
