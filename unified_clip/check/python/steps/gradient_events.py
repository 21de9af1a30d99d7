"""List the calls that compute, clip and use gradients, in the order in which they run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from functools import cached_property
from typing import Literal, NamedTuple

from ....config.formats.python_source import FUNCTIONS, Source, end_of, last_name
from ....port.catalog import CLIP_NAME
from ..optimizers import STEPPER, is_made
from .value_flow import Flow, code_of

MAX_DEPTH = 4

SCOPES = (ast.ClassDef, *FUNCTIONS)

APPLY = ("apply_gradients", "apply")

OTHER_STEPS = ("apply_gradients", "apply_updates", "fit", "train_on_batch")
"""Functions and methods that change parameters, like `optimizer.step`."""

Place = tuple[int, int]
Branch = tuple[tuple[ast.Call, ...], ast.If, bool]
"""(calls that lead to an `if`, the `if`, True for its body and False for its `else`)."""


class Event(NamedTuple):
    """A call that computes gradients ("backward"), clips them, or uses them in a step of an optimizer.

    A call of the kind "unscale" might divide the gradients by the scale of a `GradScaler`.
    """

    kind: Literal["backward", "unscale", "clip", "step"]
    call: ast.Call
    owner: str = ""
    """The code of the optimizer that makes the step, such as "self.opt_d", or '' for calls such as `model.fit`."""

    branches: frozenset[Branch] = frozenset()
    calls: tuple[tuple[ast.AST, ast.Call], ...] = ()
    """The function calls that lead to `call`, as (function, its call). The innermost comes first."""

    def excludes(self, other: Event) -> bool:
        return _exclude(self.branches, other.branches)


def _exclude(left: frozenset[Branch], right: frozenset[Branch]) -> bool:
    return any((calls, place, not is_first) in right for calls, place, is_first in left)


class Timeline:
    def __init__(self, source: Source, clips: Set[Place]) -> None:
        self.source, self._clips, self.flow = source, clips, Flow(source)
        self._known_callees: dict[ast.Call, list[ast.AST]] = {}
        self._calls: dict[ast.AST | None, list[ast.Call]] = {}
        for call in source.calls:
            self._calls.setdefault(self.function(call), []).append(call)
        for calls in self._calls.values():
            calls.sort(key=end_of)

    def function(self, node: ast.AST) -> ast.AST | None:
        """Return the function that contains a node, or None. A lambda is part of its surrounding function."""
        return self.source.function(node, FUNCTIONS[:2])

    def roots(self) -> Iterator[list[Event]]:
        """Yield the events of the module, and the events of each function without a caller in the file."""
        callees = {callee for calls in self._calls.values() for call in calls for callee in self._callees(call)}
        for function in self._calls:
            if function not in callees:
                yield self.events(function)

    def events(
        self,
        function: ast.AST | None,
        chain: tuple[ast.Call, ...] = (),
        branches: frozenset[Branch] = frozenset(),
    ) -> list[Event]:
        all_events: list[Event] = []
        outer = {function, *map(self.function, chain)}
        for call in self._calls.get(function, ()) if function in self._with_events else ():
            around = branches | self._branches(call, chain)
            own = [event._replace(branches=around) for event in self._own_events(call)]
            if not own and len(chain) < MAX_DEPTH:
                for callee in self._callees(call):
                    inner = self.events(callee, (*chain, call), around) if callee not in outer else ()
                    own += [_from_call(event, callee, call) for event in inner]
            all_events += own
        return all_events

    def of_callees(self, call: ast.Call) -> list[Event]:
        return [event for callee in self._callees(call) for event in self.events(callee)]

    def callers(self, node: ast.AST) -> list[ast.Call]:
        function = self.function(node)
        name = getattr(function, "name", "")
        named = [call for call in self.source.calls if last_name(call.func) == name != ""]
        own = (call for call in named if code_of(call.func).partition(".")[0] not in self.source.imports)
        return [call for call in own if function in self._callees(call)]

    def local(self, node: ast.AST) -> list[Event]:
        """Return the backward passes and steps of the function that contains `node`.

        Treat a call of a helper function that only computes gradients as a backward pass.
        """
        scope = self.source.function(node)
        calls = [call for call in self._calls[self.function(node)] if self.source.function(call) is scope]
        events: dict[ast.Call, Event] = {}
        for call in calls:
            if self.exclude(call, node):
                continue
            own = self._own_events(call)
            inner = [] if own else self.of_callees(call)
            for event in inner if {each.kind for each in inner} == {"backward"} else own:
                if event.kind in ("backward", "step"):
                    events[call] = event._replace(call=call)
        return list(events.values())

    def exclude(self, left: ast.AST, right: ast.AST) -> bool:
        return _exclude(self._branches(left), self._branches(right))

    def _branches(self, node: ast.AST, chain: tuple[ast.Call, ...] = ()) -> frozenset[Branch]:
        branches: set[Branch] = set()
        inner, function = node, self.function(node)
        for outer in self.source.around(node):
            if outer is function:
                break
            if isinstance(outer, ast.If) and inner is not outer.test:
                branches.add((chain, outer, inner in outer.body))
            inner = outer
        return frozenset(branches)

    def gradients(self, step: Event) -> list[ast.AST]:
        nodes: list[ast.AST] = []
        parts = [*step.call.args[:1], *(each.value for each in step.call.keywords if each.arg == "grads_and_vars")]
        for function, call in (*step.calls, (None, step.call)):
            reached = [node for part in parts for node in self.flow.reached(part)]
            names = {node.id for node in reached if isinstance(node, ast.Name)}
            parts = [value for name, value in passed(function, call).items() if name in names]
            nodes += reached
        return nodes

    def _own_events(self, call: ast.Call) -> list[Event]:
        if self.is_clip(call):
            return [Event("clip", call)]
        if self._may_unscale(call):
            return [Event("unscale", call)]
        if not isinstance(call.func, ast.Attribute):
            return []
        name, owner = call.func.attr, call.func.value
        last = last_name(owner)
        if self._callees(call) and ast.unparse(owner) in ("self", "cls"):
            return []
        if name in ("backward", "manual_backward") or (name == "gradient" and self._is_tape(owner)):
            return [Event("backward", call)]
        if name == "optimizer_step" and call.args:
            return [Event("step", call, ast.unparse(call.args[0]))]
        if name in OTHER_STEPS:
            has_gradients = bool(call.args) or any(each.arg == "grads_and_vars" for each in call.keywords)
            is_judged = name in APPLY and has_gradients and not self._callees(call)
            return [Event("step", call, ast.unparse(owner) if is_judged else "")]
        if not self._is_optimizer(owner, last):
            gets_optimizer = any(self._is_optimizer(each, last_name(each)) for each in call.args[:1])
            is_step = name == "step" and gets_optimizer and not self._callees(call)
            return [Event("step", call, ast.unparse(call.args[0]))] if is_step else []
        is_scaler = is_scaler_name(owner) and call.args
        step = Event("step", call, ast.unparse(call.args[0] if is_scaler else owner))
        if name == "minimize":
            return [step] if is_scaler else [Event("backward", call), step]
        return [step] if name == "step" or name in APPLY else []

    def _may_unscale(self, call: ast.Call) -> bool:
        is_named = "unscale" in last_name(call.func) or last_name(call.func) == "get_scale"
        return (is_named or any(map(is_scaler_name, call.args))) and not self._callees(call)

    def is_clip(self, call: ast.Call) -> bool:
        if (call.lineno, call.col_offset) in self._clips or CLIP_NAME.search(last_name(call.func)) is not None:
            return True
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "clip_"
        return is_method and any(self.flow.models(each) for each in call.args[:1])

    def names_clip(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and self.is_clip(node):
            return True
        return isinstance(node, ast.expr) and (node.lineno, node.col_offset) in self._clips

    def _is_tape(self, node: ast.expr) -> bool:
        calls = (each for each in self.flow.reached(node) if isinstance(each, ast.Call))
        return "tape" in last_name(node).lower() or any(last_name(each.func) == "GradientTape" for each in calls)

    def _is_optimizer(self, node: ast.expr, last: str) -> bool:
        return STEPPER.match(last) is not None or is_made(self.source, node)

    @cached_property
    def _with_events(self) -> set[ast.AST | None]:
        functions = {function for function, calls in self._calls.items() if any(map(self._own_events, calls))}
        while added := {
            function
            for function, calls in self._calls.items()
            if function not in functions and any(functions.intersection(self._callees(call)) for call in calls)
        }:
            functions |= added
        return functions

    def _callees(self, call: ast.Call) -> list[ast.AST]:
        if call not in self._known_callees:
            self._known_callees[call] = self._found_callees(call)
        return self._known_callees[call]

    def _found_callees(self, call: ast.Call) -> list[ast.AST]:
        arguments = [*call.args, *(each.value for each in call.keywords if each.arg == "closure")]
        names = [last_name(call.func), *(each.id for each in arguments if isinstance(each, ast.Name))]
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        callees: list[ast.AST] = []
        for name in names:
            same = self.flow.functions.get(name, [])
            if owner is not None and name == names[0]:
                same = [each for each in same if isinstance(self.source.parents[each], ast.ClassDef)]
            if len(same) > 1:
                around = {*self.source.around(call)}
                same = [each for each in same if self.source.function(each, SCOPES) in around]
            callees += same if len(same) == 1 else []
        return [each for each in callees if each is not self.function(call)]


def is_scaler_name(node: ast.expr) -> bool:
    return "scaler" in last_name(node).lower()


def passed(function: ast.AST | None, call: ast.Call) -> dict[str, ast.expr]:
    if not isinstance(function, FUNCTIONS[:2]) or function.name != last_name(call.func):
        return {}
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    arguments = dict(zip(names, call.args, strict=False))
    return arguments | {each.arg: each.value for each in call.keywords if each.arg}


def _from_call(event: Event, function: ast.AST, call: ast.Call) -> Event:
    name, rest = re.fullmatch(r"(\w*)(.*)", event.owner, re.DOTALL).groups()  # type: ignore[union-attr]
    argument = passed(function, call).get(name)
    owner = event.owner if argument is None else f"{ast.unparse(argument)}{rest}"
    return event._replace(owner=owner, calls=(*event.calls, (function, call)))
