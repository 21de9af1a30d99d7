"""One result again, by itself: what a report prints under a difference, and what that runs.

The case is made of the numbers themselves where they are few and this interpreter runs the framework, and is found in
its suite by its name otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..tensors.types import PARTS, Gradient, Sparse
from . import engine
from .known.measure import KINDS, Difference
from .modes import HOST, NATIVE
from .suite import cases
from .suite import load as suites
from .suite.call_form import Manner
from .suite.cases import Case
from .suite.load import Framework, Suite
from .suite.schema import CasesFile, SuiteError

FEW = 16
"""As many numbers are written out."""

IMPORT = "from unified_clip.parity import reproduce"


def literal(tensors: Sequence[Mapping[str, Any]], case: Mapping[str, Any], framework: str, mode: str) -> str:
    """What a case comes to in one mode of a framework. Tensors and case are written as in a file of cases.

    >>> print(reproduce.literal([{"values": [3.0, 4.0]}], {"calls": [{"call": "global_norm"}]}, "numpy", "host"))
    numpy, host: equal
    """
    gradients = {"name": "here", "tensors": tensors}
    entry = {"gradients": ["here"], "frameworks": [framework], **case}
    found = CasesFile.model_validate({"gradients": [gradients], "cases": [entry]})
    built = cases.build([(Path("reproduced"), found)], {})
    return _run(Suite(built, {framework: Framework(flushes=True)}), framework, mode)


def from_suite(directory: str, name: str, framework: str, mode: str) -> str:
    """What the case of this name comes to in one mode of a framework."""
    suite = suites.only(suites.read(Path(directory)), [framework])
    chosen = [case for case in suite.cases if case.name == name]
    if not chosen:
        raise SuiteError(f"{directory} has no case {name!r} for {framework}")
    return _run(dataclasses.replace(suite, cases=chosen), framework, mode)


def _run(suite: Suite, framework: str, mode: str) -> str:
    """Beside what is asked for, ours on the host path and the native are run, to be shown with it."""
    table = suite.frameworks[framework]
    shown = [each for each in (HOST, NATIVE) if each in table.modes]
    table = dataclasses.replace(table, modes=list(dict.fromkeys([mode, *shown])))
    (row,) = engine.run(dataclasses.replace(suite, frameworks={framework: table})).rows
    cell = row.cells[framework]
    verdict = cell.failure if mode == NATIVE else cell.verdicts[mode]
    if verdict:
        said = f"{verdict.kind}: {verdict.detail}" if verdict.detail else verdict.kind
    else:
        said = _said(cell.native)
    details = cell.details.get(mode)
    return "\n".join([f"{framework}, {mode}: {said}", *([str(details)] if details else [])])


def _said(native: Difference | None) -> str:
    """How a native differs, whether that is known or not."""
    if native is None:
        return "there is no function like it"
    said = KINDS.get(native.kind, "equal, but for rounding")
    return f"{native.function}: {said} ({native.detail})" if native.detail else f"{native.function}: {said}"


def code(case: Case, framework: str, mode: str, suite: str, *, elsewhere: bool = False) -> str:
    """Five lines of Python, or fewer, that run a case again and print what comes of it.

    elsewhere: the framework has an interpreter of its own, which only the suite names.
    """
    where = f"{framework!r}, {mode!r}"
    tensors = [_table(gradient) for gradient in case.gradients]
    if elsewhere or None in tensors or sum(len(table.get("values", "x")) for table in tensors if table) > FEW:
        return f"{IMPORT}\nprint(reproduce.from_suite({suite!r}, {case.name!r}, {where}))"
    entry = {"calls": [{"call": case.call_name, **case.arguments}], **_options(case)}
    lines = [IMPORT, f"tensors = {_written(tensors)}", f"case = {_written(entry)}"]
    return "\n".join([*lines, f"print(reproduce.literal(tensors, case, {where}))"])


def _options(case: Case) -> dict[str, Any]:
    """What is said of a case beside its call, where it is not the default."""
    plain, manner = Manner(), case.manner
    said = {field.name: getattr(manner, field.name) for field in dataclasses.fields(Manner)}
    options = {name: value for name, value in said.items() if value != getattr(plain, name)}
    expected = {name: getattr(case, name) for name in ("raises", "warns", "update", "subnormal")}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in {**options, **{name: value for name, value in expected.items() if value}}.items()
    }


def _table(gradient: Gradient) -> dict[str, Any] | None:
    """A gradient as a file of cases has it; None where it has more than a few numbers, or no file can have it."""
    if gradient is None:
        return {"none": True}
    held = gradient.values if isinstance(gradient, Sparse) else gradient
    if held.array.size > FEW:
        return None
    values = [value if math.isfinite(value) else str(value) for value in held.values().reshape(-1).tolist()]
    table: dict[str, Any] = {"values": values}
    if isinstance(gradient, Sparse):
        table |= {"rows": gradient.rows.tolist(), "shape": list(gradient.shape)}
    elif len(held.shape) != 1:
        table["shape"] = list(held.shape)
    if held.dtype != "float32":
        table |= {"dtype": held.dtype}
    return table if gradient.dtype not in PARTS or not isinstance(gradient, Sparse) else None


def _written(value: Any) -> str:
    """As Python, which has no literal for what is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return repr(value)
