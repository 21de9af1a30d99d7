"""Each kind of cause is in the sentence "Ruled out: ..." of `compare`, or is listed here as not in it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import unified_clip
import unified_clip.numpy as uc
from unified_clip.causes.cause import Cause, CauseKind
from unified_clip.recording.compare import compare
from unified_clip.recording.divergence import Divergence
from unified_clip.recording.recorded_run import OptimizerStep
from unified_clip.recording.report import unexplained

PACKAGE = Path(unified_clip.__file__).parent
SOURCES = [*sorted((PACKAGE / "causes").glob("*.py")), *sorted((PACKAGE / "recording").rglob("*.py"))]
MAKERS = {"Cause", "cause", "Hypothesis", "_of_norm"}
TABLES = (unexplained.RULED_OUT, unexplained.RULED_OUT_BY_NORMS, unexplained.RULED_OUT_BY_STEPS)

NOT_RULED_OUT = {
    # the numbers show these directly, so an unexplained difference has none of them
    "NaN", "inf", "overflow", "underflow", "zeros", "touched", "one run is shorter", "per group for global",
    "not clipped", "clipped below the threshold", "another optimizer", "another update",
    "another place of the optimizer's eps",
    "not scaled",
    "not finite in one run", "norm after the clip", "skipped step", "squared rows", "clip by hand",
    "the clip does not reach the step",
    # only these follow from other weights or data
    "untransposed weight", "other initial weights", "other data or loss", "other gradients",
    "weight decay before the clip", "weights are not updated", "another order of networks",
    "parameters of another network",
    # rounding is never ruled out
    "rounding", "rounding noise", "rounding that has grown", "16 bits", "float32", "coefficient",
    # `compare` has no numbers for these
    "rows", "need_clip", "given norm", "signs", "another condition",
}  # fmt: skip


def _texts(node: ast.expr, function: ast.AST) -> set[str]:
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) and node.value else set()
    if isinstance(node, ast.IfExp):
        return _texts(node.body, function) | _texts(node.orelse, function)
    if not isinstance(node, ast.Name):
        return set()
    texts: set[str] = set()
    for assignment in ast.walk(function):
        if isinstance(assignment, ast.Assign):
            pairs = [(target, assignment.value) for target in assignment.targets]
            if isinstance(pairs[0][0], ast.Tuple) and isinstance(assignment.value, ast.Tuple):
                pairs = list(zip(pairs[0][0].elts, assignment.value.elts, strict=True))
            for target, value in pairs:
                if isinstance(target, ast.Name) and target.id == node.id:
                    texts |= _texts(value, function)
    return texts


def _kinds(source: str) -> set[str]:
    kinds: set[str] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and call.args:
                    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                    kinds |= _texts(call.args[0], function) if name in MAKERS else set()
    return kinds


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_cause_is_named_among_the_ruled_out_ones_or_left_out_on_purpose(path: Path) -> None:
    missing = _kinds(path.read_text(encoding="utf-8")) - NOT_RULED_OUT - {kind for table in TABLES for kind in table}
    assert not missing, (
        f"{sorted(missing)}: add each kind to RULED_OUT, RULED_OUT_BY_NORMS or RULED_OUT_BY_STEPS in "
        "unified_clip/recording/report/unexplained.py, or to NOT_RULED_OUT in this test."
    )


SAME_NUMBERS = (
    {"another rule", "per tensor for global", "per group for global"},
    {"clipped twice", "several clips before a step"},
    {"scaled gradients", "gradient accumulation", "clipping before unscaling"},
    {"inexact norm", "rows", "given norm", "16 bits"},
    {"shifted step", "skipped step"},
)
"""Kinds of causes about the same numbers. If one of these causes is named, no cause of its group can be ruled out.
Backward passes are counted, so other gradients do not contradict their number."""

COUNTED = {"gradient accumulation", "clipping before unscaling"}
"""The kinds that are decided by recorded facts, whatever is named beside them."""


@pytest.mark.parametrize("kind", get_args(CauseKind))
def test_a_cause_that_is_named_is_not_ruled_out(tmp_path: Path, kind: CauseKind) -> None:
    """Any named cause, followed by an unexplained difference, in runs that recorded all that rules out causes."""
    for name, size in (("old", 1.0), ("new", 1.375)):
        with unified_clip.record(tmp_path / f"{name}.jsonl", norms=True):
            uc.clip_by_global_norm([np.full(4, size, np.float32)], 0.5)
    comparison = compare(tmp_path / "old.jsonl", tmp_path / "new.jsonl")
    step = OptimizerStep(step=1, optimizer="torch.optim.SGD", settings={"lr": 0.1}, backward_calls=1, calls=1)
    a, b = (run.model_copy(update={"optimizer_steps": (step,)}) for run in (comparison.a, comparison.b))
    rest = {each: [] for each in comparison.divergences}
    comparison = dataclasses.replace(comparison, a=a, b=b, divergences=rest)
    assert {*unexplained.ruled_out(comparison)} == {kind for table in TABLES for kind in table}
    named = dataclasses.replace(comparison, divergences={Divergence(1, "threshold", 1, 2): [Cause(kind, "")], **rest})
    group = next((each - COUNTED for each in SAME_NUMBERS if kind in each), set()) | {kind}
    assert not {*unexplained.ruled_out(named)} & group


def test_no_listed_kind_is_outdated() -> None:
    kinds = {"per tensor for global"}.union(*(_kinds(path.read_text(encoding="utf-8")) for path in SOURCES))
    assert {kind for table in TABLES for kind in table} | NOT_RULED_OUT <= kinds


def test_a_kind_is_found_as_a_constant_and_in_a_variable() -> None:
    source = """
def check(call):
    sentence, kind = "", "first"
    if call:
        sentence, kind = "", "second"
    yield Hypothesis("third" if call else "", sentence)
    yield point.cause(kind, sentence)
"""
    assert _kinds(source) == {"first", "second", "third"}
