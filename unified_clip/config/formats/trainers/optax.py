"""Python source that clips with optax, such as `optax.clip_by_global_norm(1.0)`."""

from __future__ import annotations

import ast
from typing import Any

from packaging.version import Version

from ....source.tree import shortened
from ...documents import Document
from ...schema import Settings
from ..base import Imported
from ..python_source import PythonFormat, Source
from ..rows import agc_settings, exported_agc

CLIPS = {"clip": "max_delta", "clip_by_global_norm": "max_norm", "adaptive_grad_clip": "clipping"}

EPS = 1e-3  # the default of adaptive_grad_clip

KEEP = "This is not supported. Continue to clip with optax."
SELECT = "Write a clip configuration. If the clip is for some parameters only, add `include`."
PRIVACY = f"optax.{{name}} clips the gradient of each example, for differential privacy. {KEEP}"
ANY_PYTREE = (
    "optax.{name} can also clip other pytrees than gradients. If your code clips gradients with this function, write a "
    "clip configuration."
)
REJECTED = {
    "clip_by_block_rms": f"optax.{{name}} clips each tensor by its root mean square. {KEEP}",
    "per_example_global_norm_clip": PRIVACY,
    "per_example_layer_norm_clip": PRIVACY,
    "differentially_private_aggregate": PRIVACY,
    "dpsgd": PRIVACY,
    "tree.clip": ANY_PYTREE,
    "tree_utils.tree_clip": ANY_PYTREE,
}

WRAPPERS = {
    "MultiSteps": "The clip is inside optax.MultiSteps, and clips the mean of the accumulated gradients.",
    "apply_if_finite": "The clip is inside optax.apply_if_finite, which skips a step if the updates are not finite.",
}

ADAFACTOR = "optax.adafactor also clips its update by root mean square. This clip is not imported."

CHAINS = ("chain", "named_chain")
ADDS_AFTER = ("append", "extend")
PASSES_ON = (ast.Starred, ast.IfExp, ast.keyword, ast.Lambda, ast.Call)
UNKNOWN_PLACE = (
    "cannot infer whether this clip is the first transformation of the gradients. If it is the first, write it as the "
    "first argument of optax.chain. Otherwise, continue to clip with optax."
)


class Optax(PythonFormat):
    package = "optax"

    def read(self, document: Document, version: Version | None) -> Imported:
        source: Source = document.data
        names = [(short(name), node) for name, node in source.named("optax")]
        for name, node in names:
            if name in REJECTED:
                raise source.wrong(node, REJECTED[name].format(name=name))
        clip = source.only([(name, source.call(node)) for name, node in names if name in CLIPS])
        notes = [ADAFACTOR] if any(name == "adafactor" for name, _ in names) else []
        if clip is None:
            return Imported({"rule": "none"}, ["The file does not clip with optax.", *notes])
        name, call = clip
        notes += _PlaceCheck(source).notes(call)
        others = ["eps", "axis"] if name == "adaptive_grad_clip" else []
        arguments = source.arguments(call, [CLIPS[name], *others])
        if CLIPS[name] not in arguments.data:
            raise source.wrong(call, f"optax.{name} is called without {CLIPS[name]}. Pass {CLIPS[name]}.")
        if arguments.data[CLIPS[name]] is None:
            raise arguments.wrong([CLIPS[name]], "training fails with None. Pass a number.")
        threshold = self.read_threshold(arguments, [CLIPS[name]])
        if name == "adaptive_grad_clip":
            return Imported(self._adaptive(arguments, threshold), notes)
        return Imported(self.settings("value" if name == "clip" else "global_norm", threshold), notes)

    def _adaptive(self, arguments: Document, clip_factor: float | None) -> dict[str, Any]:
        if arguments.get("axis") is not None:
            raise arguments.wrong(["axis"], "axis is not supported. Continue to clip with optax.")
        eps = self.read_threshold(arguments, ["eps"], EPS, zero="zeros")
        return agc_settings(clip_factor, "optax", **({} if eps in (None, EPS) else {"eps": eps}))

    def write(self, settings: Settings, version: Version) -> Any:
        agc = exported_agc(self, settings, "optax", has_eps=True)
        if agc is not None:
            eps, _ = agc.floors
            return f"optax.adaptive_grad_clip({agc.clip_factor!r}{'' if eps == EPS else f', eps={eps!r}'})"
        threshold = self.export_threshold(settings)
        function = "clip_by_global_norm" if settings.rule == "global_norm" else "clip"
        return "optax.identity()" if threshold is None else f"optax.{function}({threshold!r})"

    def dump(self, data: Any) -> str:
        return f"import optax\n\nclip = {data}  # first in optax.chain\n"


def short(name: str) -> str:
    return name if name.startswith(("tree.", "tree_utils.")) else name.rpartition(".")[2]


class _PlaceCheck:
    """Checks that a clip is the first transformation of the gradients in an optimizer."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.visited: set[ast.AST] = set()

    def notes(self, node: ast.AST, alone: bool = True) -> list[str]:
        """Inside of optax.chain, `alone` is False."""
        if node in self.visited:
            return []
        self.visited.add(node)
        notes = self.source.conditions(node)
        inner = node
        for outer in self.source.ancestors(node):
            if isinstance(outer, ast.List | ast.Tuple):
                self._nothing_before(node, outer.elts, inner)
            elif isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Add):
                self._nothing_before(node, [outer.left, outer.right], inner)
            elif isinstance(outer, ast.Call) and inner is not outer.func:
                notes += self._in_call(node, outer, inner, alone)
                alone = alone and short(self.source.dotted(outer.func)) not in CHAINS
            elif isinstance(outer, ast.Attribute) and outer.attr in ADDS_AFTER:
                return notes
            elif isinstance(outer, ast.Assign | ast.AnnAssign | ast.Return):
                return notes + [note for use in self._uses(outer) for note in self.notes(use, alone)]
            elif isinstance(outer, ast.Expr) or not alone:
                return notes
            elif not isinstance(outer, PASSES_ON):
                raise self.source.wrong(node, UNKNOWN_PLACE)
            inner = outer
        return notes

    def _in_call(self, node: ast.AST, call: ast.Call, inner: ast.AST, alone: bool) -> list[str]:
        full = self.source.dotted(call.func)
        name = short(full.partition(".")[2]) if full.startswith("optax.") else ""
        if name in CHAINS:
            self._nothing_before(node, call.args, inner)
        elif name in WRAPPERS:
            return [WRAPPERS[name]]
        elif name:
            raise self.source.wrong(
                node, f"the clip is inside optax.{name}, and might clip only some gradients. {SELECT}"
            )
        elif alone or any(self._transforms(other) for other in [*call.args, *call.keywords] if other is not inner):
            raise self.source.wrong(node, UNKNOWN_PLACE)
        return []

    def _transforms(self, argument: ast.AST) -> bool:
        names = [name for name in ast.walk(argument) if isinstance(name, ast.Name)]
        values = [value for name in names for value in self.source.binding(name).values or []]
        called = [call.func for value in [argument, *values] for call in ast.walk(value) if isinstance(call, ast.Call)]
        functions = [name for name in map(self.source.dotted, called) if name.startswith("optax.")]
        return any("schedule" not in name for name in functions)

    def _nothing_before(self, node: ast.AST, parts: list[ast.expr], inner: ast.AST) -> None:
        for part in parts:
            if part is inner:
                return
            if not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
                before = f"the clip comes after {shortened(part)}"
                raise self.source.wrong(node, f"{before}, so it clips updates instead of gradients. {KEEP}")

    def _uses(self, statement: ast.Assign | ast.AnnAssign | ast.Return) -> list[ast.AST]:
        """Return the nodes that use the result of a statement."""
        source = self.source
        function = source.enclosing_function(statement)
        if isinstance(statement, ast.Return):
            loads = self._reads({function.name}) if isinstance(function, ast.FunctionDef) else []
            calls = [(load, source.parents[load]) for load in loads]
            return [call if isinstance(call, ast.Call) and call.func is load else load for load, call in calls]
        targets = list(statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        names: set[str] = set()
        is_imported = False
        for target in targets:
            if isinstance(target, ast.Tuple | ast.List):
                targets += target.elts
            elif isinstance(target, ast.Name | ast.Attribute):
                names.add(target.id if isinstance(target, ast.Name) else target.attr)
                is_imported |= isinstance(target, ast.Attribute) and self._has_imported_root(target)
            else:
                raise source.wrong(statement, UNKNOWN_PLACE)
        after = statement.end_lineno or statement.lineno
        reads = self._reads(names, of_imports=is_imported)
        return [load for load in reads if load.lineno > after or source.enclosing_function(load) is not function]

    def _has_imported_root(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return bool(self.source.full_name(node))

    def _reads(self, names: set[str], *, of_imports: bool = False) -> list[ast.Name | ast.Attribute]:
        loads: list[ast.Name | ast.Attribute] = []
        for node in self.source.nodes:
            match node:
                case ast.Name(ctx=ast.Load()) if node.id in names:
                    loads.append(node)
                case ast.Attribute(ctx=ast.Load()) if node.attr in names:
                    if of_imports or not self._has_imported_root(node):
                        loads.append(node)
        return loads
