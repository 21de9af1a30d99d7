"""The models of parity.json, from which `docs/parity.schema.json` is made.

A later version may add keys. If a key is removed or changes its meaning, `schema` has another number.

    python -m unified_clip.parity.report.model > docs/parity.schema.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..judge.verdict import Kind
from ..known.entries import Judgement

SCHEMA = 2

Real = float | Literal["inf", "-inf", "nan"]
"""A number; JSON has none that is not finite."""

Stage = Literal["norm", "coefficient", "tensors", "update"]


class Model(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, strict=True)


class Number(Model):
    """What one side has at a place."""

    value: Real
    hex: str
    """The same as a hexadecimal float, as Python's `float.hex` writes it."""

    ulps: Real
    """The distance from the exact one, in units in the last place."""


class Details(Model):
    """Where a result is furthest from the exact one, at the first stage at which it differs."""

    stage: Stage
    gradient: int | None
    """The place in the list, from 0; null for the norm."""

    name: str
    element: list[int]
    place: str
    """The same in words."""

    dtype: str
    """Whose units in the last place count."""

    exact: Number
    ours: Number | None
    native: Number | None
    nearer: Literal["ours", "native"] | None
    """Which side is nearer to the exact number; null where there is no nearer one."""

    apart: int
    """How many numbers differ at this stage."""

    compared: int


class Result(Model):
    """What came of a case on a framework."""

    verdict: Kind | Judgement
    detail: str
    details: Details | None
    """The numbers; null where nothing differs, or there is nothing to compare."""

    reproduce: str | None
    """The command that runs the case again; null where the result is equal or close, or the framework is missing."""


class Ours(Result):
    """Of our function, in one mode."""

    ulps: Real
    """The greatest distance of any number from the exact one."""

    cause: str
    """What a difference comes from, in a word or two; empty where that is not known."""

    stages: dict[Stage, Real]
    """The distance at each stage: in units in the last place, for coefficients relative."""

    sha256: dict[Stage, str] | None


class Native(Result):
    """Of the framework's own function."""

    function: str | None
    """null where it gave no result."""

    kind: str
    """Of the difference; empty where there is none."""

    norm: Real | None
    """The relative distance from the exact norm."""

    gradients: Real | None
    """The greatest difference of an element, relative to the greatest element."""

    cause: str
    """What a difference that no list names comes from; empty where that is not known."""

    problem: str


class OnFramework(Model):
    """The results on one framework, by mode."""

    host: Ours | None = None
    processes_2: Ours | None = None
    processes_4: Ours | None = None
    device: Ours | None = None
    graph: Ours | None = None
    compiled: Ours | None = None
    static: Ours | None = None
    native: Native | None = None


class Case(Model):
    name: str
    call: str
    gradients: str
    """The name of the list of gradients."""

    rule: str | None
    """The clip in words, without the function's name; null for a call that has no counterpart on other frameworks."""

    elements: int
    """In all its gradients."""

    sha256: dict[Stage, str]
    """Of what is right."""

    stages_apart: list[Stage]
    """Where ours on one framework differs from ours on another, on the host path."""

    frameworks: dict[str, OnFramework]


class Known(Model):
    """An entry of the list of known differences, and how it showed."""

    framework: str
    function: str
    kind: str
    listed_size: Real | None
    size: Real | None
    reason: str
    versions: str
    """That it is about; empty for all."""

    title: str
    problem: str
    cases: list[str]


class Problem(Model):
    """Something that is not as it should be."""

    what: str
    detail: str
    framework: str | None
    """Whose result it is; null where it is of several, or of the list of known differences."""

    mode: str | None
    cases: list[str]
    """Where it shows."""


class Change(Model):
    """Something that is otherwise than in an earlier report."""

    kind: Literal["new", "gone", "verdict", "size", "numbers", "version"]
    framework: str
    """Or the package whose version it is; empty for what is about all of them."""

    what: str
    case: str
    before: str
    after: str
    worse: bool
    """A difference that should not be, and was not there, or was smaller."""


class Report(Model):
    """What came of `unified-clip parity`."""

    schema_: Literal[2] = Field(alias="schema")
    verdict: str
    """In a sentence."""

    exit_code: Literal[0, 1, 3]
    """0: all as it should be; 1: a difference that should not be; 3: a framework gave no result."""

    suite: str
    """The suite's directory, as it was given."""

    baseline: list[Change] | None
    """What is otherwise than in an earlier report; null where none was given."""

    versions: dict[str, str]
    frameworks: list[str]
    titles: dict[str, str]
    """What tables call the frameworks."""

    summary: dict[str, Any]
    """How many cases there are, and how often each verdict, by mode and framework."""

    notes: list[str]
    """What is worth telling, and changes no verdict."""

    problems: list[Problem]
    known: list[Known]
    cases: list[Case]


def json_schema() -> Mapping[str, Any]:
    """As JSON Schema 2020-12."""
    made = Report.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "unified_clip parity report", **made}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=1))
