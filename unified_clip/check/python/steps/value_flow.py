"""Follow values through the variables of a file, and compare the model parameters that clips and optimizers get."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from ....config.formats.python_source import FUNCTIONS, Source, end_of

APPENDING = ("append", "extend", "insert")
PARAMETERS = ("parameters", "named_parameters", "trainable_variables")
LOOPS = (ast.For, ast.AsyncFor, ast.While)


_Slots = tuple[object, ...]
"""The path of a value in a container, as indices and keys: ("d",) for `{"d": item}`."""

_Holder = tuple[str, _Slots]
"""(name of a variable or function, path of a value in it)."""

MAX_SLOTS = 3


class _Assignment(NamedTuple):
    node: ast.AST
    value: ast.expr
    is_added: bool
    function: ast.AST | None
    end: tuple[int, int]


class Flow:
    def __init__(self, source: Source) -> None:
        self.source = source

    def reached(self, node: ast.AST) -> Iterator[ast.AST]:
        seen: set[ast.expr] = set()
        waiting = [node]
        while waiting:
            for inner in ast.walk(waiting.pop()):
                yield inner
                values = [value for value in self.values(inner) if value not in seen]
                seen.update(values)
                waiting += values

    def values(self, read: ast.AST) -> list[ast.expr]:
        """Return each expression that might be the value of a variable at the place `read`.

        If several assignments always run before `read`, use only the last one. In a loop, also use assignments below
        `read`, because they run before the next iteration. For a variable of another function or of
        the module, use all assignments in the file.
        """
        values = self._values_at(read)
        around = set(self.source.around(read)) if values else ()
        return [value for value in values if value not in around]

    def list_parts(self, read: ast.AST) -> list[ast.expr]:
        """Return the items of the list in the expression `read`, in order. Items that code adds later are included.

        If the initial list is unknown, return only the added items. If the order is unknown, return [].
        """
        values = self.values(read)
        added = [each for each in self._assignments.get(code_of(read), ()) if each.value in values]
        added.sort(key=lambda each: each.end)
        first = added.pop(0).value if added and not added[0].is_added else None
        entries = first.elts if isinstance(first, ast.List | ast.Tuple) else None
        parts = [first] if first is not None and self.returned(getattr(first, "func", read)) else [*(entries or ())]
        for each in added if first is not None else ():
            match each.node:
                case ast.Call(func=ast.Attribute(attr="insert"), args=[ast.Constant(value=int(index)), value]) if (
                    entries is not None or index == 0
                ):
                    parts.insert(index, value)
                case ast.Call(func=ast.Attribute(attr="insert")):
                    return []
                case _ if not each.is_added:
                    return []
                case _:
                    parts.append(each.value)
        return parts

    def _values_at(self, read: ast.AST) -> list[ast.expr]:
        everywhere = self._assignments.get(code_of(read), ())
        function = self.source.function(read)
        local = [each for each in everywhere if each.function is function]
        if not local:
            is_parameter = any(isinstance(each, ast.arg) and each.arg == code_of(read) for each in _arguments(function))
            return [] if is_parameter else [each.value for each in everywhere]
        start = read.lineno, read.col_offset  # type: ignore[attr-defined]
        before = [each for each in local if each.end <= start]
        sure = [each for each in before if not each.is_added and self._always_before(each.node, read)]
        if not sure:
            return [each.value for each in local]
        last = max(sure, key=lambda each: each.end)
        loops = {outer for outer in self.source.around(read) if isinstance(outer, LOOPS)}
        repeated = loops.difference(self.source.around(last.node))
        return [
            each.value
            for each in local
            if last.end <= each.end <= start or repeated.intersection(self.source.around(each.node))
        ]

    def returned(self, node: ast.AST) -> list[ast.expr]:
        name = code_of(node).removeprefix("self.").removeprefix("cls.")
        functions = self.functions.get(name, ()) if name else ()
        inner = (each for function in functions for each in ast.walk(function) if isinstance(each, ast.Return))
        return [each.value for each in inner if each.value is not None and self.source.function(each) in functions]

    def items(self, node: ast.AST) -> list[ast.expr]:
        return self._items.get(code_of(node), [])

    @cached_property
    def _items(self) -> dict[str, list[ast.expr]]:
        items: dict[str, list[ast.expr]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Subscript):
                        items.setdefault(code_of(target.value), []).append(node.value)
        items.pop("", None)
        return items

    def _always_before(self, node: ast.AST, read: ast.AST) -> bool:
        parent = self.source.parents[node]
        blocks = [block for _, block in ast.iter_fields(parent) if isinstance(block, list) and node in block]
        return any(outer in block for block in blocks for outer in (read, *self.source.around(read)))

    @cached_property
    def _assignments(self) -> dict[str, list[_Assignment]]:
        table: dict[str, list[_Assignment]] = {}
        for node in self.source.nodes:
            for target, value, is_added in assigned(node):
                function = self.source.function(node)
                assignment = _Assignment(node, value, is_added, function, end_of(value))
                table.setdefault(code_of(target), []).append(assignment)
        table.pop("", None)
        return table

    @cached_property
    def _reads(self) -> dict[str, list[ast.expr]]:
        reads: dict[str, list[ast.expr]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                reads.setdefault(code_of(node), []).append(node)
        return reads

    def sites(
        self, node: ast.expr, ends: Callable[[ast.AST], bool] = lambda outer: False
    ) -> dict[ast.expr, list[ast.Call | ast.IfExp]]:
        """Follow a value through the code, and return the calls and conditional expressions that use the value.

        The result has the key `node`. If a function returns the value, each call of that function is a further key.
        The search follows variables, and items of a tuple, list or dict.

        ends: A function that returns whether the search stops at a node.
        """
        reads, returned = {node: node}, dict[ast.expr, ast.expr]()
        users: dict[ast.expr, list[ast.Call | ast.IfExp]] = {node: []}
        seen: set[tuple[ast.expr, _Holder]] = set()
        waiting: list[tuple[ast.expr, _Slots, ast.expr]] = [(node, (), node)]
        while waiting:
            read, slots, place = waiting.pop()
            inner: dict[ast.AST, _Slots] = {read: slots}
            holders: set[_Holder] = set()
            last: ast.AST = read
            for outer in itertools.takewhile(lambda outer: not ends(outer), self.source.around(read)):
                if isinstance(outer, ast.Call | ast.IfExp) and outer is not place:
                    users[place].append(outer)
                if isinstance(outer, ast.Call):
                    slots = slots if outer is place else ()
                elif (inside := _slots_of(outer, last, slots)) is None:
                    if read is reads[place]:
                        del users[place]
                        holders.clear()
                    break
                else:
                    slots = inside
                holders.update(_holders(outer, inner))
                inner[outer], last = slots, outer
                for use in self._uses(self.source.function(outer)) if isinstance(outer, ast.Return) else ():
                    call = self.source.parents[use]
                    maker = call if isinstance(call, ast.Call) and call.func is use else use
                    if maker not in reads:
                        reads[maker], returned[maker], users[maker] = use, place, []
                        waiting.append((use, slots, maker))
                if isinstance(outer, ast.stmt):
                    break
            new = {holder for holder in holders if holder[0] and (place, holder) not in seen}
            seen.update((place, holder) for holder in new)
            for name, slots in new:
                later = [
                    each for each in self._reads.get(name, ()) if inner.keys() & {*self.values(each), *self.items(each)}
                ]
                waiting += [(each, slots, place) for each in later]
        for place in list(users):
            if place in returned:
                users[place] += users[returned[place]]
        return {place: calls for place, calls in users.items() if place not in returned.values()}

    def _uses(self, function: ast.AST | None) -> list[ast.expr]:
        name = getattr(function, "name", "")
        owner = self.source.parents[function] if function is not None else None
        if not isinstance(owner, ast.ClassDef):
            return self._reads.get(name, [])
        reads = [*self._reads.get(f"self.{name}", ()), *self._reads.get(f"cls.{name}", ())]
        is_only = len(self.functions[name]) == 1
        return [read for read in reads if is_only or owner in self.source.around(read)]

    @cached_property
    def functions(self) -> dict[str, list[ast.AST]]:
        functions: dict[str, list[ast.AST]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.setdefault(node.name, []).append(node)
        return functions

    def models(self, node: ast.AST) -> set[str]:
        """Return the models whose parameters an expression contains, such as "net_g" for `net_g.parameters()`."""
        attributes = (inner for inner in self.reached(node) if isinstance(inner, ast.Attribute))
        return {ast.unparse(each.value).removeprefix("self.") for each in attributes if each.attr in PARAMETERS}


def _slots_of(outer: ast.AST, inner: ast.AST, slots: _Slots) -> _Slots | None:
    """Return the path of a value in `outer`, given the path `slots` of the value in the child node `inner`.

    Return None if `outer` is a subscript that reads an element without the value.
    """
    match outer:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) if any(map(_is_starred, parts)):
            return ()
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return (parts.index(inner), *slots)[:MAX_SLOTS]  # type: ignore[arg-type]
        case ast.Dict(keys=keys, values=values) if inner in values:
            key = keys[values.index(inner)]
            return (key.value, *slots)[:MAX_SLOTS] if isinstance(key, ast.Constant) else ()
        case ast.Subscript(slice=ast.Constant(value=key)) if slots:
            return slots[1:] if slots[0] == key else None
        case ast.Subscript():
            return ()
    return slots


def _holders(outer: ast.AST, inner: Mapping[ast.AST, _Slots]) -> Iterator[_Holder]:
    if isinstance(outer, ast.Assign):
        for target in outer.targets:
            yield from _holders_of(target, inner.get(outer.value, ()))
    else:
        yield from ((code_of(target), ()) for target, value, _ in assigned(outer) if value in inner)


def _holders_of(target: ast.expr, slots: _Slots) -> Iterator[_Holder]:
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            if slots and isinstance(index := slots[0], int) and not any(map(_is_starred, parts)):
                parts = parts[index : index + 1]
            for part in parts:
                yield from _holders_of(part, slots[1:])
        case ast.Subscript(value=value, slice=ast.Constant(value=key)):
            yield code_of(value), (key, *slots)[:MAX_SLOTS]
        case _:
            yield code_of(target), slots


def _is_starred(node: ast.expr) -> bool:
    return isinstance(node, ast.Starred)


def code_of(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    before = code_of(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before else ""  # type: ignore[attr-defined]


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield (variable, value, is_added) for each assignment. `is_added` is True if the variable keeps its earlier
    values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((*pair, False) for target in targets for pair in _pairs(target, value))
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value, False
        case ast.AugAssign(target=target, value=value):
            yield target, value, True
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield target, value, False
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield from ((*pair, False) for pair in _pairs(target, value))
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[*_, value]) if name in APPENDING:
            yield owner, value, True


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    match target, value:
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), ast.Tuple(elts=values)) if len(targets) == len(
            values
        ):
            yield from zip(targets, values, strict=True)
        case ((ast.Tuple(elts=targets) | ast.List(elts=targets)), _):
            yield from ((each, value) for each in targets)
        case _:
            yield target, value


def _arguments(function: ast.AST | None) -> Iterator[ast.AST]:
    return ast.walk(function.args) if isinstance(function, FUNCTIONS) else iter(())


def are_apart(left: set[str], right: set[str]) -> bool:
    related = any(a == b or f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.") for a in left for b in right)
    return bool(left) and bool(right) and not related
