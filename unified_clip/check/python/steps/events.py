"""List the calls that compute, clip and use gradients, in the order in which they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from functools import cached_property
from typing import Literal, NamedTuple

from ....config.formats.python_source import Source
from ....port.catalog import CLIP_NAME
from ..calls.order import STEPPER
from ..optimizers import OPTIMIZER
from ..reads import FUNCTIONS
from .flow import Flow

MAX_DEPTH = 4
"""Calls of functions of the file are followed up to this depth."""

APPLY = ("apply_gradients", "apply")
"""Methods of Keras' optimizers that take gradients."""

Place = tuple[int, int]
Branch = tuple[tuple[int, ...], int, bool]
"""A branch of an `if`: the calls that lead to it, the `if`, and whether it is the first branch."""


class Event(NamedTuple):
    """A call that computes gradients ("backward"), clips them, or uses them in a step of an optimizer."""

    kind: Literal["backward", "clip", "step"]
    call: ast.Call
    owner: str = ""
    """For a step: the code of the optimizer, such as "self.opt_d"."""

    branches: frozenset[Branch] = frozenset()

    def excludes(self, other: Event) -> bool:
        """Return whether two events are in different branches of one `if`."""
        return any((calls, place, not is_first) in other.branches for calls, place, is_first in self.branches)


class Timeline:
    """The events of a Python file. `clips`: the calls that clip, by (line, column) as in `ast`."""

    def __init__(self, source: Source, clips: Set[Place]) -> None:
        self.source, self._clips, self.flow = source, clips, Flow(source)
        self._known_callees: dict[ast.Call, list[ast.AST]] = {}
        self._calls: dict[ast.AST | None, list[ast.Call]] = {}
        for node in source.nodes:
            if isinstance(node, ast.Call):
                self._calls.setdefault(self.function(node), []).append(node)
        for calls in self._calls.values():
            calls.sort(key=_end)

    def function(self, node: ast.AST) -> ast.AST | None:
        """Return the function around a node, or None. Lambdas count as a part of the function around them."""
        around = (outer for outer in self.source.around(node) if isinstance(outer, FUNCTIONS))
        return next((outer for outer in around if not isinstance(outer, ast.Lambda)), None)

    def roots(self) -> Iterator[list[Event]]:
        """Yield the events of the module, and of each function that no other function of the file calls."""
        callees = {
            callee
            for outer, calls in self._calls.items()
            for call in calls
            for callee in self._callees(call)
            if callee is not outer
        }
        for function in self._calls:
            if function not in callees:
                yield self.events(function)

    def events(
        self,
        function: ast.AST | None,
        instance: tuple[int, ...] = (),
        branches: frozenset[Branch] = frozenset(),
        outer: tuple[ast.AST | None, ...] = (),
    ) -> list[Event]:
        """Return the events of a function, with those of the functions that it calls.

        instance, branches, outer: The calls that lead to the function, the branches around them, and their functions.
        """
        found: list[Event] = []
        for call in self._calls.get(function, ()) if function in self._with_events else ():
            around = branches | self._branches(call, function, instance)
            own = [event._replace(branches=around) for event in self._own_events(call)]
            if not own and len(instance) < MAX_DEPTH:
                for callee in self._callees(call):
                    if callee not in (function, *outer):
                        own += self.events(callee, (*instance, id(call)), around, (function, *outer))
            found += own
        return found

    def of_callees(self, call: ast.Call) -> list[Event]:
        """Return the events of the functions of the file that a call runs."""
        return [event for callee in self._callees(call) for event in self.events(callee)]

    def _branches(self, call: ast.Call, function: ast.AST | None, instance: tuple[int, ...]) -> frozenset[Branch]:
        found: set[Branch] = set()
        inner: ast.AST = call
        for outer in self.source.around(call):
            if outer is function:
                break
            if isinstance(outer, ast.If) and inner is not outer.test:
                found.add((instance, id(outer), inner in outer.body))
            inner = outer
        return frozenset(found)

    def _own_events(self, call: ast.Call) -> list[Event]:
        if self.is_clip(call):
            return [Event("clip", call)]
        if not isinstance(call.func, ast.Attribute):
            return []
        name, owner = call.func.attr, call.func.value
        last = _last(owner)
        if self._callees(call) and ast.unparse(owner) in ("self", "cls"):
            return []
        if name in ("backward", "manual_backward") or (name == "gradient" and "tape" in last.lower()):
            return [Event("backward", call)]
        if name == "optimizer_step" and call.args:
            return [Event("step", call, ast.unparse(call.args[0]))]
        if not self._is_optimizer(owner, last):
            is_step = name == "step" and self._gets_optimizer(call) and not self._callees(call)
            return [Event("step", call, ast.unparse(call.args[0]))] if is_step else []
        is_scaler = "scaler" in last.lower() and call.args
        step = Event("step", call, ast.unparse(call.args[0] if is_scaler else owner))
        if name == "minimize":
            return [step] if is_scaler else [Event("backward", call), step]
        return [step] if name == "step" or name in APPLY else []

    def is_clip(self, call: ast.Call) -> bool:
        """Return whether a call clips gradients, or has the name of a function that does.

        A method `clip_` that gets parameters is one of unified_clip: tensors have this method, too.
        """
        if (call.lineno, call.col_offset) in self._clips or CLIP_NAME.search(_last(call.func)) is not None:
            return True
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "clip_"
        return is_method and any(self.flow.models(each) for each in call.args[:1])

    def names_clip(self, node: ast.AST) -> bool:
        """Return whether a node is a clip, or the name of a function that clips, as in `inject_hyperparams(clip)`."""
        if isinstance(node, ast.Call) and self.is_clip(node):
            return True
        return isinstance(node, ast.expr) and (node.lineno, node.col_offset) in self._clips

    def _gets_optimizer(self, call: ast.Call) -> bool:
        """Return whether the first argument is an optimizer, as in `accelerator.step(optimizer)`."""
        return any(self._is_optimizer(each, _last(each)) for each in call.args[:1])

    def _is_optimizer(self, node: ast.expr, last: str) -> bool:
        made = self.source.followed(node)
        is_made = isinstance(made, ast.Call) and OPTIMIZER.fullmatch(self.source.dotted(made.func)) is not None
        return is_made or (STEPPER.match(last) is not None and "engine" not in last.lower())

    @cached_property
    def _with_events(self) -> set[ast.AST | None]:
        """The functions with an event, in their own code or in functions that they call."""
        found = {function for function, calls in self._calls.items() if any(map(self._own_events, calls))}
        while added := {
            function
            for function, calls in self._calls.items()
            if function not in found and any(found.intersection(self._callees(call)) for call in calls)
        }:
            found |= added
        return found

    def _callees(self, call: ast.Call) -> list[ast.AST]:
        """Return the functions of the file that a call runs: the called one, and those among its arguments."""
        if call not in self._known_callees:
            self._known_callees[call] = self._found_callees(call)
        return self._known_callees[call]

    def _found_callees(self, call: ast.Call) -> list[ast.AST]:
        names = [_last(call.func), *(each.id for each in call.args if isinstance(each, ast.Name))]
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        found: list[ast.AST] = []
        for name in names:
            same = self._functions.get(name, [])
            if owner is not None and name == names[0]:
                same = [each for each in same if isinstance(self.source.parents[each], ast.ClassDef)]
            if len(same) > 1:
                around = {outer for outer in self.source.around(call) if isinstance(outer, ast.ClassDef)}
                same = [each for each in same if self.source.parents[each] in around]
            found += same if len(same) == 1 else []
        return found

    @cached_property
    def _functions(self) -> dict[str, list[ast.AST]]:
        functions: dict[str, list[ast.AST]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.setdefault(node.name, []).append(node)
        return functions


def _last(node: ast.AST) -> str:
    """Return the last part of a dotted name, also of an item, as in `optimizers[0]`. Return '' for other code."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _end(node: ast.Call) -> Place:
    return node.end_lineno or node.lineno, node.end_col_offset or 0
