"""The cases of a suite.

In a `[[cases]]` table, each combination of a call and a list of gradients is a case. See `docs/parity.md`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...tensors.types import Gradient, Sparse
from . import adaptive_calls, from_config
from .call_form import PLAIN, CallForm
from .gradients import as_dtype
from .gradients import read as read_list
from .public_calls import CALLS, Call
from .schema import REAL, CaseOptions, CasesFile, CasesTable, SuiteError, no_such

LONG = 100
"""If a case has more gradients than this number, the kind of the case is `long`. A suite can leave out long cases in
some modes."""

DEFAULT_OPTIONS = CaseOptions()


@dataclass(frozen=True, eq=False)
class Case:
    name: str
    """The unique name of the case, such as "worked example: clip_by_norm(clip_norm=1.0)"."""

    gradients_name: str
    gradients: Sequence[Gradient]
    call_name: str
    arguments: Mapping[str, Any]
    call_form: CallForm = PLAIN
    names: Sequence[str] = ()
    options: CaseOptions = DEFAULT_OPTIONS

    @property
    def call(self) -> Call:
        return CALLS[self.call_name]

    @property
    def clipped_inputs(self) -> Sequence[Gradient]:
        """The gradients that the call clips.

        If the call clips by unit, the second half of `gradients` contains the parameters, which are not clipped.
        """
        return self.gradients[: len(self.gradients) // 2] if self.call.style == "units" else self.gradients

    @property
    def elements(self) -> int:
        return sum(math.prod(gradient.shape) for gradient in self.gradients if gradient is not None)

    @property
    def rule(self) -> str | None:
        """A description of the clip, such as "total norm, threshold 1".

        The value is None if other frameworks cannot clip in this way. The report compares cases with
        equal rules, such as `clip_grad_norm_(max_norm=1.0)` and `clip_by_global_norm(clip_norm=1.0)`.
        """
        call, arguments = self.call, self.arguments
        special = {"axes", "use_norm", "total_norm", "error_if_nonfinite", "rule"} & arguments.keys()
        if special or self.options.raises or self.call_form != PLAIN:
            return None
        if call.by_value:
            low, high = call.bounds(arguments)
            return f"value from {low:g} to {high:g}"
        p = arguments.get("norm_type", 2)
        order = "" if p == 2 else f" of order {p:g}"
        if call.style == "measure":
            return f"total norm{order}, measured"
        scope = "total norm" if call.by_total_norm else "norm of each tensor"
        return f"{scope}{order}, threshold {call.threshold(arguments):.9g}"

    def is_for_framework(self, framework: str) -> bool:
        return not self.options.frameworks or framework in self.options.frameworks

    def is_for_graphs(self, left_out: Sequence[str]) -> bool:
        """Return whether the case can run inside a compiled graph.

        left_out: The kinds of cases that the suite does not run in graphs.
        """
        call_form = self.call_form
        needs_value = self.options.raises or self.call.style in ("class", "class in place", "hook")
        unknown = self._shares_memory or (call_form.tensor_arguments and needs_value)
        reports = self.options.warns or "error_if_nonfinite" in self.arguments
        return not (unknown or reports or self._is_any(left_out))

    def is_for_processes(self, left_out: Sequence[str]) -> bool:
        """Return whether several ranks can run the case."""
        by_slice = "axes" in self.arguments or self.call.style == "units"
        return not (self._shares_memory or by_slice or self._is_any(left_out))

    @property
    def _shares_memory(self) -> bool:
        return self.call_form.expanded or self.call_form.overlapping

    def _is_any(self, kinds: Sequence[str]) -> bool:
        kinds_of_case = {
            "sparse": any(isinstance(gradient, Sparse) for gradient in self.gradients),
            "in place": self.call.in_place,
            "raises": bool(self.options.raises),
            "groups": bool(self.call_form.groups),
            "hook": self.call.style == "hook",
            "long": len(self.gradients) > LONG,
            "adaptive": self.call.is_adaptive,
        }
        return any(kinds_of_case[kind] for kind in kinds)


def build(tables: Sequence[tuple[Path, CasesFile]], pythons: Mapping[str, str]) -> list[Case]:
    """Return all cases of a suite, in the order of its files.

    tables: (path, content) of each file.
    pythons: The path of each framework's Python interpreter, for gradient files that need the framework.
    """
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
            for case in _cases(entry, lists, place, path.parent):
                if case.name in cases:
                    raise SuiteError(
                        f"{place}: this table makes the case {case.name!r} twice, or an earlier table makes it, too. "
                        "Remove the value that is repeated: a call, rule, threshold, configuration, dtype or name of "
                        "gradients"
                    )
                _check(case, place)
                cases[case.name] = case
    return list(cases.values())


def make_case(name: str, gradients: Mapping[str, Gradient], call: Mapping[str, Any]) -> Case:
    """Return the case of one call. In the dict of arguments, the key `call` contains the name of the function."""
    table = CasesTable(gradients=[name], calls=[dict(call)])
    (case,) = _cases(table, {name: gradients}, name, Path())
    _check(case, name)
    return case


def _cases(
    table: CasesTable, lists: Mapping[str, Mapping[str, Gradient]], place: str, directory: Path
) -> Iterator[Case]:
    """Yield the cases of one table.

    place: The file and the number of the table, as printed in error messages.
    directory: Paths in `configs` are relative to this directory.
    """
    calls = [_call(call, f"{place}, calls {number}") for number, call in enumerate(table.calls, 1)]
    calls += [_call(call, f"{place}, rules") for call in _from_rules(table, place)]
    for config in table.configs:
        configured = from_config.calls_of_config(directory / config, f"{place}, configs")
        calls += [_call(call, f"{place}, configs") for call in configured]
    options = CaseOptions(**table.model_dump(include=set(CaseOptions.model_fields)))
    call_form = CallForm(**table.model_dump(include=set(CallForm.model_fields)))
    for name in table.gradients:
        if name not in lists:
            choice = f"Choose from {', '.join(lists)}, or add" if lists else "Add"
            raise SuiteError(
                f"{place}: no gradients have the name {name!r}. {choice} a [[gradients]] table with this name"
            )
        for dtype in table.dtypes or [""]:
            title = f"{name} as {dtype}" if dtype else name
            gradients = list(lists[name].values())
            if dtype:
                _check_real(lists[name], f"{place}: dtypes cannot convert {name!r}")
                gradients = [as_dtype(gradient, dtype) for gradient in gradients]
            for call_name, arguments in calls:
                written = ", ".join(f"{key}={value}" for key, value in arguments.items())
                raises = f", raises {table.raises}" if table.raises else ""
                full_name = f"{title}: {call_name}({written}){call_form.describe()}{raises}"
                yield Case(full_name, title, gradients, call_name, arguments, call_form, list(lists[name]), options)


def _check_real(gradients: Mapping[str, Gradient], problem: str) -> None:
    """Raise SuiteError if a gradient has a complex or integer dtype.

    problem: The beginning of the error message.
    """
    for name, gradient in gradients.items():
        if gradient is not None and gradient.dtype not in REAL:
            raise SuiteError(
                f"{problem}: {name!r} has dtype {gradient.dtype}, not a real float. Remove dtypes, or move these "
                "gradients to a [[cases]] table without dtypes"
            )


def _from_rules(table: CasesTable, place: str) -> Iterator[dict[str, Any]]:
    """Yield a call for each rule and threshold. For a rule with two bounds, the bounds are -threshold and threshold."""
    for name in table.rules:
        required = CALLS[name].required if name in CALLS else ()
        problem = "takes an adaptive rule, not a threshold" if "rule" in required else ""
        problem = "also needs total_norm, which the key `rules` cannot pass" if "total_norm" in required else problem
        if problem:
            raise SuiteError(f"{place}, rules: {name} {problem}. Move it to calls, with the keys {', '.join(required)}")
        if not required:
            yield {"call": name}
        for threshold in table.thresholds if required else []:
            yield {"call": name, **dict(zip(required, [-threshold, threshold][-len(required) :], strict=True))}


def _call(table: dict[str, Any], place: str) -> tuple[str, dict[str, Any]]:
    """Split an entry of `calls` into (function name, arguments)."""
    arguments = dict(table)
    name = arguments.pop("call", None)
    if name is None:
        raise SuiteError(
            f'{place}: the key `call` is missing. Add it with the name of a function: call = "clip_grad_norm_"'
        )
    if not isinstance(name, str) or name not in CALLS:
        suites_name = f"Gradient{str(name).replace('ClipGradBy', 'ClipBy')}"  # Paddle has two names for each class
        if suites_name in CALLS:
            raise SuiteError(f"{place}, call: {name!r}: suites use the older name of this class. Write {suites_name}")
        raise SuiteError(f"{place}, call: {name!r}: {no_such('function', str(name), list(CALLS))}")
    call = CALLS[name]
    missing = set(call.required) - arguments.keys()
    settings = adaptive_calls.settings_of(arguments.get("rule")) if call.is_adaptive else []
    known = [*call.required, *call.optional, *settings]
    if unknown := sorted(arguments.keys() - {*known}):  # a key that is misspelt is missing as well
        raise SuiteError(f"{place}, {name}, {unknown[0]}: {no_such('argument', unknown[0], known)}")
    if missing:
        names = ", ".join(sorted(missing))
        raise SuiteError(f"{place}, {name}: {names} {'is' if len(missing) == 1 else 'are'} missing. Add {names}")
    if call.is_adaptive:
        if error := adaptive_calls.find_error(name, arguments):
            raise SuiteError(f"{place}, {name}: {error}")
        return name, arguments
    for key, value in arguments.items():
        numbers = [value] if key != "axes" else value if isinstance(value, list) else [None]
        kinds = int if key == "axes" else bool if key == "error_if_nonfinite" else (int, float)
        if not all(_is_number(number, kinds) for number in numbers):
            forms = {"axes": "a list of whole numbers", "error_if_nonfinite": "true or false"}
            raise SuiteError(
                f"{place}, {name}: {key} is {value!r:.60}. Give {forms.get(key, 'a number below 1.8e308')}"
            )
    return name, arguments


def _is_number(value: Any, kinds: Any) -> bool:
    """Return whether a value has one of the types, and can be converted to a float.

    Booleans are accepted only if bool is one of the types.
    """
    if isinstance(value, bool) and kinds is not bool:
        return False
    return isinstance(value, kinds) and (isinstance(value, float) or abs(value) <= sys.float_info.max)


# -- what the oracle and the workers support


def _check(case: Case, place: str) -> None:
    if remedy := next((remedy for wrong, remedy in _unfit(case) if wrong), None):
        raise SuiteError(f"{place}, {case.call_name}: {remedy}")


def _unfit(case: Case) -> Iterator[tuple[bool, str]]:
    """Yield (whether the rule is violated, message) for each rule about the keys of a case."""
    call, form, count = case.call, case.call_form, len(case.gradients)
    dtypes = {gradient.dtype for gradient in case.gradients if gradient is not None}
    yield (
        case.call_form.container in ("nested", "tensor") and not count,
        f"container = {form.container!r} needs at least one gradient. Choose another container",
    )
    yield (
        case.call_form.container == "tensor" and count != 1,
        f"container = 'tensor' needs exactly one gradient, but there are {count}. Choose another container",
    )
    contained = call.in_place or call.style in ("list", "measure")
    yield (
        form.container != "list" and not contained,
        "this function accepts no container of gradients. Remove the key container",
    )
    for key, values in (("need_clip", form.need_clip), ("groups", form.groups)):
        yield (
            bool(values) and len(values) != count,
            f"{key} has {len(values)} entries for {count} gradients. Give one entry for each gradient",
        )
    yield bool(form.groups) and call.style != "settings", "groups applies to append_gradient_clip_ops only. Remove it"
    on_parameters = bool(case.options.frameworks) and set(case.options.frameworks) <= {"torch", "paddle"}
    takes_need_clip = call.style in ("class", "class in place", "settings") or (call.in_place and on_parameters)
    excess = bool(form.need_clip) and not takes_need_clip
    yield (
        excess,
        "need_clip needs a class, append_gradient_clip_ops, or a function that clips in place with frameworks = "
        "['torch', 'paddle']. Remove need_clip, or change the function or frameworks",
    )
    listed = set(form.listed)
    yield bool(listed) and not call.in_place, "listed needs a function that clips in place. Remove the key listed"
    absent, unknown = set(range(count)) - listed, listed - set(range(count))
    yield bool(listed and absent), f"listed = {form.listed} lacks the index {min(absent, default=0)}. Add this index"
    problem = f"listed has the index {max(unknown, default=0)}, but there are {count} gradients"
    yield bool(unknown), f"{problem}. Remove this index"
    by_gradients = form.gradients_for_parameters and call.style != "in place"
    yield by_gradients, "gradients_for_parameters needs a function that clips in place. Remove it"
    for key, shared in (("expanded", form.expanded), ("overlapping", form.overlapping)):
        problem, expect = f"{key} memory needs a function that clips in place", ""
        if call.in_place:
            problem, expect = f"unified_clip rejects {key} memory in functions that clip in place", f", {OR_EXPECT}"
        yield shared and not case.options.raises, f"{problem}. Remove the key {key}{expect}"
    others = ", ".join(sorted(dtypes - {"float32"}))
    yield (
        form.tensor_arguments and bool(others),
        f"tensor_arguments needs float32 gradients, but some are {others}. Remove tensor_arguments",
    )
    numbers = " and ".join(sorted({"norm_type", "axes", "error_if_nonfinite"} & case.arguments.keys()))
    yield (
        form.tensor_arguments and bool(numbers),
        f"tensor_arguments cannot pass {numbers} as a tensor. Remove tensor_arguments, or remove {numbers}",
    )
    others = ", ".join(sorted(dtypes - {"float32", "float64"}))
    yield (
        case.options.update and bool(others),
        f"update needs float32 or float64 gradients, but some are {others}. Remove update",
    )
    whole = "int64" in dtypes and case.call_name != "clip_by_value"
    expect = OR_EXPECT.replace("ValueError", "TypeError")
    yield whole and not case.options.raises, f"only clip_by_value supports int64. Choose another dtype, {expect}"
    if call.is_adaptive:
        yield from adaptive_calls.find_misfits(call.style, case.arguments, case.gradients)
        keys = ", ".join(key for key, value in form if value != getattr(PLAIN, key))
        yield form != PLAIN, f"calls with an adaptive rule do not support {keys}. Remove {keys}"
    elif not case.options.raises:
        yield from _unfit_numbers(case)


OR_EXPECT = "or expect the error: raises = 'ValueError'"


def _unfit_numbers(case: Case) -> Iterator[tuple[bool, str]]:
    arguments = case.arguments
    thresholds = {key: arguments[key] for key in (*case.call.required, "use_norm", "min") if key in arguments}
    for key, value in thresholds.items():
        expect = "" if key in ("use_norm", "total_norm") else f", {OR_EXPECT}"  # a norm may be NaN
        yield math.isnan(value), f"{key} is NaN. Give a number{expect}"
        yield not case.call.by_value and value < 0, f"{key} is {value}. Give 0 or more, {OR_EXPECT}"
    if case.call.by_value:
        low, high = case.call.bounds(arguments)
        problem = f"the lower bound {low} is above the upper bound {high}. Swap them"
        if len(case.call.required) == 1 and "min" not in arguments:
            problem = f"{case.call.required[0]} is {high}, and the lower bound is {low}. Give 0 or more"
            problem += ", or add min" if "min" in case.call.optional else ""
        yield low > high, f"{problem}, {OR_EXPECT}"
    p = arguments.get("norm_type", 2)
    expect = "" if p > 0 else f", {OR_EXPECT}"  # unified_clip accepts every norm_type above 0
    yield not (p == math.inf or 0.01 <= p <= 100), f"norm_type is {p}. Give inf, or a number from 0.01 to 100{expect}"
    ranks = [len(gradient.shape) for gradient in case.gradients if gradient is not None]
    axes, least = arguments.get("axes", []), min(ranks, default=0)
    remedy = f"Give axes from {-least} to {least - 1}" if least else "Remove axes"
    yield (
        any(not -rank <= axis < rank for axis in axes for rank in ranks),
        f"axes = {axes} has an axis that a gradient does not have. {remedy}",
    )
    twice = any(len({axis % rank for axis in axes}) < len(axes) for rank in ranks if rank)
    yield twice, f"axes = {axes} names an axis twice. Name each axis once, {OR_EXPECT}"
