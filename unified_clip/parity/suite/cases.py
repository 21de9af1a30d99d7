"""The cases of a suite.

A `[[cases]]` table has a case for each combination of a call and a list of gradients. See `docs/suite.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...adaptive.rules import AGC
from ...tensors.types import Gradient
from .call_form import CallForm
from .case import Case
from .gradients import as_dtype
from .gradients import read as read_list
from .public_calls import CALLS, PublicCall
from .schema import REAL, CaseOptions, CasesFile, CasesTable, SuiteError, no_such
from .unsupported_cases import check


def build(tables: Sequence[tuple[Path, CasesFile]], pythons: Mapping[str, str]) -> list[Case]:
    lists: dict[str, dict[str, Gradient]] = {}
    for path, data in tables:
        for number, table in enumerate(data.gradients, 1):
            place = f"{path}, gradients {number}"
            if table.name in lists:
                raise SuiteError(f"{place}: two lists of gradients have the name {table.name!r}. Rename one")
            lists[table.name] = read_list(table, path.parent, place, pythons)
    cases: dict[str, Case] = {}
    for path, data in tables:
        for number, entry in enumerate(data.cases, 1):
            place = f"{path}, cases {number}"
            for case in _cases(entry, lists, place):
                if case.name in cases:
                    raise SuiteError(f"{place}: the suite contains {case.name!r} already. Remove one of the two")
                check(case, place)
                cases[case.name] = case
    return list(cases.values())


def make_case(name: str, gradients: Mapping[str, Gradient], call: Mapping[str, Any]) -> Case:
    """`call["call"]` is the name of the function. The other items of `call` are arguments."""
    table = CasesTable(gradients=[name], calls=[dict(call)])
    (case,) = _cases(table, {name: gradients}, name)
    check(case, name)
    return case


def _cases(table: CasesTable, lists: Mapping[str, Mapping[str, Gradient]], place: str) -> Iterator[Case]:
    """Yield the cases of one table.

    place: The file and the number of the table, for error messages.
    """
    calls = [_call(call, f"{place}, calls {number}") for number, call in enumerate(table.calls, 1)]
    calls += [_call(call, f"{place}, rules") for call in _from_rules(table, place)]
    options = CaseOptions(**table.model_dump(include=set(CaseOptions.model_fields)))
    call_form = CallForm(**table.model_dump(include=set(CallForm.model_fields)))
    for name in table.gradients:
        if name not in lists:
            choice = f"Choose from {', '.join(lists)}, or add" if lists else "Add"
            raise SuiteError(f"{place}: no gradients have the name {name!r}. {choice} a [[gradients]] table")
        for dtype in table.dtypes or [""]:
            title = f"{name} as {dtype}" if dtype else name
            gradients = list(lists[name].values())
            if dtype:
                _check_real(lists[name], f"{place}: `dtypes` cannot convert {name!r}")
                gradients = [as_dtype(gradient, dtype) for gradient in gradients]
            for call_name, arguments in calls:
                written = ", ".join(f"{key}={value}" for key, value in arguments.items())
                raises = f", raises {table.raises}" if table.raises else ""
                full_name = f"{title}: {call_name}({written}){call_form.describe()}{raises}"
                yield Case(full_name, title, gradients, call_name, arguments, call_form, list(lists[name]), options)


def _check_real(gradients: Mapping[str, Gradient], problem: str) -> None:
    for name, gradient in gradients.items():
        if gradient is not None and gradient.dtype not in REAL:
            raise SuiteError(f"{problem}: {name!r} is {gradient.dtype}, which is no float dtype. Remove `dtypes`")


def _from_rules(table: CasesTable, place: str) -> Iterator[dict[str, Any]]:
    for name in table.rules:
        required = CALLS[name].required if name in CALLS else ()
        if {"rule", "total_norm"} & {*required}:
            keys = " and ".join(f"`{key}`" for key in required)
            raise SuiteError(f"{place}, rules: {name} needs {keys}. Move it from `rules` to `calls`")
        if not required:
            yield {"call": name}
        for threshold in table.thresholds if required else []:
            yield {"call": name, **dict(zip(required, [-threshold, threshold][-len(required) :], strict=True))}


def _call(table: dict[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    arguments = dict(table)
    name = arguments.pop("call", None)
    if name is None:
        raise SuiteError(f'{place}: `call` is missing. Add the name of a function, as in call = "clip_grad_norm_"')
    if not isinstance(name, str) or name not in CALLS:
        older = f"Gradient{str(name).replace('ClipGradBy', 'ClipBy')}"  # Paddle has two names for each class
        remedy = (
            f"suites use its older name. Write {older}"
            if older in CALLS
            else no_such("function", str(name), list(CALLS))
        )
        raise SuiteError(f"{place}, call: {name!r}: {remedy}")
    call = CALLS[name]
    settings = [field.name for field in fields(AGC)] if call.style == "units" else []
    known = [*call.required, *call.optional, *settings]
    if unknown := sorted(arguments.keys() - {*known}):  # a key that is misspelt is missing as well
        raise SuiteError(f"{place}, {name}, {unknown[0]}: {no_such('argument', unknown[0], known)}")
    if missing := ", ".join(sorted({*call.required} - arguments.keys())):
        raise SuiteError(f"{place}, {name}: it lacks {missing}. Add {missing}")
    problem = _wrong_rule(call, arguments) if call.style == "units" else _wrong_type(arguments)
    if problem:
        raise SuiteError(f"{place}, {name}: {problem}")
    return name, arguments


def _wrong_rule(call: PublicCall, arguments: Mapping[str, Any]) -> str:
    """Rules with a state are not supported: no framework has such a function."""
    rule, limit = arguments["rule"], arguments.get("clip_norm", 1.0)
    if rule != "agc":
        return f'rule is {rule!r:.60}. Write rule = "agc"'
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
        return f"clip_norm is {limit!r:.60}. Give a number that is at least 0"
    try:
        AGC(**call.rule_settings(arguments))
    except (TypeError, ValueError) as error:
        return str(error).removesuffix(".")
    return ""


def _wrong_type(arguments: Mapping[str, Any]) -> str:
    forms = {"axes": "a list of whole numbers", "error_if_nonfinite": "true or false"}
    for key, value in arguments.items():
        numbers = [value] if key != "axes" else value if isinstance(value, list) else [None]
        kinds = int if key == "axes" else bool if key == "error_if_nonfinite" else (int, float)
        if not all(_is_number(number, kinds) for number in numbers):
            return f"{key} is {value!r:.60}. Give {forms.get(key, 'a number below 1.8e308')}"
    return ""


def _is_number(value: Any, kinds: Any) -> bool:
    if isinstance(value, bool) and kinds is not bool:
        return False
    return isinstance(value, kinds) and (isinstance(value, float) or abs(value) <= sys.float_info.max)
