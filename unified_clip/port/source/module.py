"""A file of Python: its tree, what its names stand for, and what is bound to them. It is never run."""

from __future__ import annotations

import ast
import codecs
import dataclasses
import functools
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import libcst as cst
from libcst import metadata
from libcst.metadata import Assignment, BaseAssignment, ImportAssignment, Scope

SELF = ("self", "cls")
FUNCTIONS = (cst.FunctionDef, cst.Lambda)
INFINITIES = ("math.inf", "numpy.inf", "numpy.Inf", "tensorflow.experimental.numpy.inf", "paddle.inf", "torch.inf")

SPACES = ("whitespace", "leading_", "lines_after", "trailing_", "header", "footer", "indent", "newline")
PUNCTUATION = (
    "comma",
    "equal",
    "dot",
    "semicolon",
    "colon",
    "lpar",
    "rpar",
    "lbracket",
    "rbracket",
    "lbrace",
    "rbrace",
)
"""Fields of nodes that hold no code."""

LONG = 1000
"""So many conditions in one are too many, as are so many operators, calls or texts in a row."""

NESTED = 200
"""So many brackets in each other are too many, as they are for Python."""

SHORT = 100
TOO_DEEP = "it is nested too deep to be read"

DEEP = 10
"""So many names that stand for names are followed."""

PROJECT = 6
"""So many folders around a file are searched for a module that it imports."""

Target = cst.Name | cst.Attribute

PYTHON_2 = re.compile(r"\s*(print\s+[^=(\s]|print\s*>>|except\s+[\w.()\s,]+,\s*\w+\s*:|raise\s+\w+\s*,|exec\s+['\"\w])")


TOKENS = re.compile(
    r"(?P<skipped>#[^\n]*|\\\n)"
    r"""|(?P<links>\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"|(?P<linked>\b(?:and|or|not|if|lambda|await|in|is)\b|\*\*|//|[-+*/%@<>=~^|&.:])"
    r"|(?P<opens>[(\[{])|(?P<closes>[)\]}])|(?P<parts>[,;])|(?P<begins>\n(?=[\w@]))|(?P<ends>\n)",
    re.DOTALL,
)
"""What makes an expression long or deep, for what Python itself cannot tell."""


class UnreadableError(Exception):
    """A file is no Python that can be read: why."""


@dataclass(frozen=True)
class Bound:
    """Where a name is given something."""

    value: cst.BaseExpression | None
    """What it is given; None where that is not an expression (a parameter, a definition)."""

    path: Sequence[int | None] = ()
    """Which part of the value: positions in tuples, from the outside; None for an element of what is iterated."""

    node: cst.CSTNode | None = None


@dataclass(frozen=True)
class Binding:
    """A name in its scope, or an attribute of self in its class: all that is bound to it, and all reads."""

    text: str
    bounds: Sequence[Bound]
    reads: Sequence[cst.CSTNode]
    key: object = None

    @property
    def values(self) -> list[cst.BaseExpression] | None:
        """What is assigned to it, as a whole; None where something else is bound."""
        if any(bound.path or bound.value is None for bound in self.bounds):
            return None
        return [cast(cst.BaseExpression, bound.value) for bound in self.bounds]


class Module:
    """A file."""

    def __init__(self, content: bytes, path: Path | None = None) -> None:
        """Raises UnreadableError."""
        self.content, self.path = content, path
        try:
            self.tree = cst.parse_module(content)
        except cst.ParserSyntaxError as error:
            raise UnreadableError(_refusal(error, content)) from None
        except (UnicodeDecodeError, LookupError, SyntaxError) as error:
            raise UnreadableError(f"its text cannot be decoded: {error}; save it as UTF-8") from None
        except (RecursionError, ValueError) as error:
            raise UnreadableError(f"it cannot be parsed: {error}") from None
        self._wrapper = metadata.MetadataWrapper(self.tree, unsafe_skip_copy=True)
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.nodes = sorted_nodes(self.tree, self.parents)
        """All but spaces and comments, from the top down, in order."""

    # -- the tree

    @cached_property
    def _scopes(self) -> dict[cst.CSTNode, Scope | None]:
        return dict(self._wrapper.resolve(metadata.ScopeProvider))

    @cached_property
    def _positions(self) -> dict[cst.CSTNode, metadata.CodeRange]:
        return dict(self._wrapper.resolve(metadata.PositionProvider))

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Line and column, from 1."""
        start = self._positions[node].start
        return start.line, start.column + 1

    def end(self, node: cst.CSTNode) -> int:
        """The last line."""
        return self._positions[node].end.line

    def code(self, node: cst.CSTNode) -> str:
        """As it is written, on one line, without comments."""
        return _on_one_line(self.tree.code_for_node(node).strip())

    def line(self, number: int) -> str:
        """A line of the file, without its indentation."""
        return self._lines[number - 1].strip()

    @cached_property
    def _lines(self) -> list[str]:
        return self.tree.code.splitlines()

    def around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """What stands around a node, from the inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing(self, node: cst.CSTNode, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
        """The nearest of some kinds around a node."""
        return next((each for each in self.around(node) if isinstance(each, kinds)), None)

    def function(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The function that a node is in."""
        return self.enclosing(node, *FUNCTIONS)

    def small_statement(self, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
        """The simple statement that a node is in, if it is evaluated once whenever that is reached."""
        if isinstance(node, cst.BaseSmallStatement):
            return node
        inner = node
        for outer in self.around(node):
            if isinstance(outer, cst.BaseSmallStatement):
                return outer
            if isinstance(outer, cst.IfExp) and inner is not outer.test:
                return None
            if isinstance(outer, cst.Lambda | cst.BaseComp | cst.BooleanOperation | cst.BaseCompoundStatement):
                return None
            inner = outer
        return None

    def stands_alone(self, statement: cst.CSTNode) -> bool:
        """Whether a simple statement has a line of its own, so that others can be put before it."""
        line = self.parents[statement]
        return isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1

    # -- names

    def scope(self, node: cst.CSTNode) -> Scope | None:
        """The scope in which a node is evaluated."""
        for each in (node, *self.around(node)):
            if (found := self._scopes.get(each)) is not None:
                return found
        return None

    def full_names(self, node: cst.CSTNode, depth: int = 0) -> set[str]:
        """What a dotted name stands for, by imports; '' is in it where it may stand for something else too."""
        rest: list[str] = []
        while isinstance(node, cst.Attribute):
            rest.insert(0, node.attr.value)
            node = node.value
        if not isinstance(node, cst.Name) or depth > DEEP or node.value in self._captured:
            return {""}
        scope = self.scope(node)
        assignments = scope[node.value] if scope is not None else set()
        if not assignments:
            return {""}
        return {name for each in assignments for name in self._names_of(each, node.value, rest, depth)} or {""}

    def _names_of(self, assignment: BaseAssignment, name: str, rest: Sequence[str], depth: int) -> set[str]:
        if isinstance(assignment, ImportAssignment):
            return {_imported(assignment, name, rest)}
        if not isinstance(assignment, Assignment):
            return {""}
        bound = self._bound(assignment.node)
        if isinstance(bound.value, cst.Name) and bound.value.value == "None":
            return set()  # where an import fails: nothing can be called then
        if bound.path or not isinstance(bound.value, Target):
            return {""}
        return {".".join([each, *rest]) if each else "" for each in self.full_names(bound.value, depth + 1)}

    def full_name(self, node: cst.CSTNode) -> str:
        """What a dotted name stands for; '' where that is not known, or not one thing."""
        names = self.full_names(node)
        return names.pop() if len(names) == 1 else ""

    def is_unbound(self, node: cst.CSTNode) -> bool:
        """Return whether nothing in the file binds the name that a dotted one begins with."""
        while isinstance(node, cst.Attribute):
            node = node.value
        scope = self.scope(node)
        return isinstance(node, cst.Name) and scope is not None and not scope[node.value]

    def is_beside(self, package: str) -> bool:
        """Return whether a module is a file of the same project, which is read itself."""
        parts = package.split(".")
        folders = list(self.path.resolve().parents)[:PROJECT] if self.path is not None else []
        names = ("/".join(parts), "/".join(parts[:-1]))
        return any(
            (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
            for folder in folders
            for name in names
            if name
        )

    @cached_property
    def functions(self) -> frozenset[str]:
        """The names of the functions and methods that are defined in the file."""
        return frozenset(each.name.value for each in self.nodes if isinstance(each, cst.FunctionDef))

    @cached_property
    def used(self) -> frozenset[str]:
        """The full names of all that is imported and named."""
        return frozenset(self.full_name(node) for node in self.nodes if isinstance(node, Target)) - {""}

    # -- bindings

    def binding(self, node: cst.CSTNode) -> Binding | None:
        """Of a name, or of an attribute of self; None for everything else."""
        if isinstance(node, cst.Name):
            return self._name_binding(node)
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value in SELF:
            return self._attribute_binding(node)
        return None

    def _name_binding(self, node: cst.Name) -> Binding | None:
        scope = self.scope(node)
        assignments = scope[node.value] if scope is not None else set()
        if not assignments or not all(isinstance(each, Assignment) for each in assignments):
            return None
        ordered = [each for each in assignments if isinstance(each, Assignment)]
        bounds = [self._bound(each.node) for each in ordered]
        reads = [access.node for each in ordered for access in each.references]
        key = (node.value, ordered[0].scope)
        return Binding(node.value, bounds, list(dict.fromkeys(reads)), key)

    def _attribute_binding(self, node: cst.Attribute) -> Binding | None:
        owner = self.enclosing(node, cst.ClassDef)
        if owner is None:
            return None
        same = self._attributes.get((owner, node.attr.value), [])
        bounds = [self._bound(each) for each in same if self.is_target(each)]
        reads = [each for each in same if not self.is_target(each)]
        return Binding(self.code(node), bounds, reads, (node.attr.value, owner)) if bounds else None

    @cached_property
    def _attributes(self) -> dict[tuple[cst.CSTNode, str], list[cst.CSTNode]]:
        """Attributes of self, by class and name."""
        found: dict[tuple[cst.CSTNode, str], list[cst.CSTNode]] = {}
        for node in self.nodes:
            owner = self.enclosing(node, cst.ClassDef) if isinstance(node, Target) else None
            if owner is None:
                continue
            if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value in SELF:
                found.setdefault((owner, node.attr.value), []).append(node)
            elif isinstance(node, cst.Name) and self.function(node) is None and self.is_target(node):
                found.setdefault((owner, node.value), []).append(node)  # in the class itself
        return found

    def is_target(self, node: cst.CSTNode) -> bool:
        """Whether something is bound to it."""
        return self._bound(node).node is not None

    def _bound(self, node: cst.CSTNode) -> Bound:
        """What is bound to a target, and which part of it."""
        path: list[int | None] = []
        inner = node
        for outer in self.around(node):
            if isinstance(outer, cst.Tuple | cst.List):
                place = next((i for i, each in enumerate(outer.elements) if each is inner), None)
                path.insert(0, place)
            elif isinstance(outer, cst.AssignTarget):
                assign = cast(cst.Assign, self.parents[outer])
                return Bound(assign.value, path, assign)
            elif isinstance(outer, cst.AnnAssign | cst.NamedExpr) and outer.target is inner:
                return Bound(outer.value, path, outer)
            elif isinstance(outer, cst.For | cst.CompFor) and outer.target is inner:
                return Bound(outer.iter, [None, *path], outer)
            elif isinstance(outer, cst.AugAssign) and outer.target is inner:
                return Bound(None, path, outer)
            elif isinstance(outer, cst.WithItem) and outer.asname is inner:
                return Bound(outer.item, path, outer)
            elif not isinstance(outer, cst.Element | cst.AsName):
                break
            inner = outer
        return Bound(None, path)

    def sees(self, node: cst.CSTNode, at: cst.CSTNode) -> bool:
        """Whether an expression has the same value elsewhere: what it names is bound once, and in sight there."""
        here, there = self.scope(node), self.scope(at)
        for name in self._names(node):
            if here is None or there is None or here[name] != there[name] or not self._is_steady(here[name], node):
                return False
        attributes = [each for each in sorted_nodes(node) if isinstance(each, cst.Attribute)]
        bindings = [binding for each in attributes if (binding := self._own_attribute(each)) is not None]
        if any(len(binding.bounds) > 1 for binding in bindings):
            return False
        uses_self = any(isinstance(each, cst.Name) and each.value in SELF for each in sorted_nodes(node))
        owners = [self.enclosing(each, cst.ClassDef) for each in (node, at)]
        return not uses_self or (owners[0] is owners[1] and self._has_self(at))

    def _own_attribute(self, node: cst.Attribute) -> Binding | None:
        """The binding of an attribute of self."""
        return self.binding(node) if isinstance(node.value, cst.Name) else None

    def _is_steady(self, assignments: set[BaseAssignment], node: cst.CSTNode) -> bool:
        """Whether a name keeps what it has where an expression stands."""
        bound = [each.node for each in assignments if isinstance(each, Assignment)]
        if not bound:
            return True  # imported, or Python's own
        if len(assignments) > 1:
            return False
        loop = self.enclosing(bound[0], cst.For, cst.While, cst.FunctionDef, cst.Lambda)
        return not isinstance(loop, cst.For | cst.While) or self._block(node) in (self._block(bound[0]), loop.body)

    def _block(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The lines that a statement is one of."""
        return self.enclosing(node, cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)

    def elsewhere(self, binding: Binding) -> list[cst.CSTNode]:
        """Attributes with the name of one of self, of something else that may be such an object, and getattr of it."""
        if "." not in binding.text:
            return []
        name, owner = binding.text.rpartition(".")[2], cast(tuple[str, cst.ClassDef], binding.key)[1]
        own = set(map(id, self._attributes.get((owner, name), ())))
        found: list[cst.CSTNode] = []
        for node in self.nodes:
            if isinstance(node, cst.Attribute) and node.attr.value == name:
                if id(node) not in own and not self.full_name(node) and not self._is_of_stranger(node, owner):
                    found.append(node)
            elif isinstance(node, cst.Call) and self.code(node.func) in ("getattr", "setattr"):
                texts = [each for each in sorted_nodes(node) if isinstance(each, cst.SimpleString)]
                found += [node for each in texts if each.evaluated_value == name]
        return found

    def _is_of_stranger(self, node: cst.Attribute, owner: cst.ClassDef) -> bool:
        """Whether it is an attribute of self in another class, which has its own, and is not made of the owner."""
        other = self.enclosing(node, cst.ClassDef)
        if not isinstance(other, cst.ClassDef) or not isinstance(node.value, cst.Name) or node.value.value not in SELF:
            return False
        bases = {self.code(base.value) for each in (other, owner) for base in each.bases}
        has_own = any(self.is_target(each) for each in self._attributes.get((other, node.attr.value), ()))
        return has_own and not bases & {other.name.value, owner.name.value}

    def free_name(self, wanted: str, around: cst.CSTNode | None = None) -> str:
        """A name that the file, or what is around, does not use."""
        nodes = self.nodes if around is None else sorted_nodes(around)
        taken = {each.value for each in nodes if isinstance(each, cst.Name)}
        while wanted.rpartition(".")[2] in taken:
            wanted += "_"
        return wanted

    @cached_property
    def _captured(self) -> set[str]:
        """Names that `case` binds, of which LibCST's scopes know nothing."""
        found = [each for each in self.nodes if isinstance(each, cst.MatchAs | cst.MatchStar)]
        return {each.name.value for each in found if each.name is not None}

    def _names(self, node: cst.CSTNode) -> list[str]:
        """The names that are read in an expression, but for self."""
        found = []
        for each in sorted_nodes(node):
            if isinstance(each, cst.Name) and each.value not in SELF:
                parent = self.parents.get(each)
                is_attribute = isinstance(parent, cst.Attribute) and parent.attr is each
                if not is_attribute and not (isinstance(parent, cst.Arg) and parent.keyword is each):
                    found.append(each.value)
        return found

    def _has_self(self, node: cst.CSTNode) -> bool:
        scope = self.scope(node)
        return scope is not None and any(scope[name] for name in SELF)

    # -- constants

    def number(self, node: cst.BaseExpression, depth: int = 0) -> float | None:
        """The value of a number, or of a name that is given one once; None where it is only known at run time."""
        if isinstance(node, cst.Integer | cst.Float):
            return float(node.evaluated_value)
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus):
            inner = self.number(node.expression, depth)
            return None if inner is None else -inner
        if isinstance(node, cst.Call) and len(node.args) == 1 and self.code(node.func) == "float":
            return self._float(node.args[0].value, depth)
        if isinstance(node, Target):
            if self.full_name(node) in INFINITIES:
                return float("inf")
            binding = self.binding(node)
            if binding is not None and binding.values and len(binding.values) == 1 and depth < DEEP:
                return self.number(binding.values[0], depth + 1)
        return None

    def _float(self, node: cst.BaseExpression, depth: int) -> float | None:
        if isinstance(node, cst.SimpleString):
            try:
                return float(cast(str, node.evaluated_value))
            except ValueError:
                return None
        return self.number(node, depth)


def _on_one_line(code: str) -> str:
    """An expression without comments and line breaks, but for those in texts."""
    if "\n" not in code and "\r" not in code and "#" not in code:
        return code
    parts: list[str] = []
    end = (1, 1)
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({code}\n)").readline):
            if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER):
                continue
            if parts and token.start != end and not parts[-1].endswith(("(", "[", "{")) and token.string not in ")]},":
                parts.append(" ")
            parts.append(token.string)
            end = token.end
    except (tokenize.TokenError, IndentationError):
        return " ".join(code.split())  # no expression
    return "".join(parts)[1:-1].strip()


def sorted_nodes(node: cst.CSTNode, parents: dict[cst.CSTNode, cst.CSTNode] | None = None) -> list[cst.CSTNode]:
    """A node and all below it but spaces and comments, in the order of the text. `parents` is filled in."""
    found, stack = [], [node]
    while stack:
        each = stack.pop()
        found.append(each)
        children = list(_children(each))
        if parents is not None:
            parents.update(dict.fromkeys(children, each))
        stack.extend(reversed(children))
    return found


def _children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """LibCST's own `children` visits each, which takes ten times as long."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, cst.CSTNode))


@functools.cache
def _fields(kind: type[cst.CSTNode]) -> list[str]:
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if not name.startswith(SPACES) and name not in PUNCTUATION]


def _imported(assignment: ImportAssignment, name: str, rest: Sequence[str]) -> str:
    """The full name of what an import binds."""
    node = assignment.node
    if isinstance(node, cst.ImportFrom):
        dots = "." * len(node.relative)
        module = dots + (_dotted(node.module) if node.module else "")
        aliases = [] if isinstance(node.names, cst.ImportStar) else node.names
        for alias in aliases:
            if (alias.evaluated_alias or alias.evaluated_name) == name:
                return ".".join([module, alias.evaluated_name, *rest])
        return ""
    for alias in cast(cst.Import, node).names:
        if alias.evaluated_alias == name:
            return ".".join([alias.evaluated_name, *rest])
    return ".".join([name, *rest])


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return cast(cst.Name, node).value


def identifiers(content: bytes) -> set[str] | None:
    """All names, parts of names, names of arguments and short texts in source; None where Python cannot parse it.

    It takes a tenth of the time that a `Module` does, and refuses what is nested so deep that LibCST's parser would end
    the process.

    Raises UnreadableError.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(content)
    except (RecursionError, MemoryError):
        raise UnreadableError(TOO_DEEP) from None
    except (SyntaxError, ValueError) as error:
        if "too many nested" in str(error) or _is_deep(content):
            raise UnreadableError(TOO_DEEP) from None
        return None
    nodes = list(ast.walk(tree))
    found = {name for node in nodes for name in _names_in(node)}
    return found if "getattr" not in found or _looks_up(nodes) else found - {"getattr"}


def _looks_up(nodes: Sequence[ast.AST]) -> bool:
    """Whether getattr looks up a name that is not written out, in what may be a module: not in a parameter."""
    modules: set[str] = set()
    owners: set[str] = set()
    for node in nodes:
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                modules |= {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.Assign(targets=targets, value=ast.Attribute() | ast.Name()):
                modules |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *_]) if not isinstance(name, ast.Constant):
                while isinstance(owner, ast.Attribute):
                    owner = owner.value
                owners |= {owner.id} if isinstance(owner, ast.Name) else set()
    return bool(modules & owners)


def _names_in(node: ast.AST) -> Sequence[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            return [name]
        case ast.alias(name=name):
            return name.split(".")
        case ast.ImportFrom(module=str(name)):
            return name.split(".")
        case ast.Constant(value=str(text)) if len(text) < SHORT:
            return [text]
        case ast.BoolOp(values=values) if len(values) > LONG:
            raise UnreadableError(TOO_DEEP)
    return ()


def _is_deep(content: bytes) -> bool:
    """Whether brackets are nested, or operators, calls or texts follow each other, more than a parser can bear."""
    links = [0]
    for token in TOKENS.finditer(codecs.decode(content, "utf-8", "replace")):
        kind = token.lastgroup
        if kind == "begins" or (kind == "ends" and len(links) == 1):
            links = [0]
        elif kind == "parts":
            links[-1] = 0
        elif kind == "closes":
            links = links[:-1] or [0]
        elif kind in ("links", "linked", "opens"):
            links[-1] += 1
        if links[-1] > LONG or len(links) > NESTED:
            return True
        if kind == "opens":
            links.append(0)
    return False


def _refusal(error: cst.ParserSyntaxError, content: bytes) -> str:
    if _is_deep(content):
        return TOO_DEEP
    line = error.raw_line
    if _is_python_2(content):
        return f"line {line}: it is Python 2; convert it first, with 2to3 or futurize, and port the result"
    return f"line {line}: it is no Python that can be read: {error.message.splitlines()[0]}"


def _is_python_2(content: bytes) -> bool:
    """Whether it has what only Python 2 has: print statements, `except X, e`, backquotes."""
    text = codecs.decode(content, "utf-8", "replace")
    return any(PYTHON_2.match(line) for line in text.splitlines())
