"""optax in Python source: `optax.clip_by_global_norm(1.0)`, first in `optax.chain`."""

from __future__ import annotations

import ast
from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import Imported, Key, OwnFormat, global_norm, plain_threshold, threshold, value
from .python_source import Source, parse

CLIPS = {"clip": "max_delta", "clip_by_global_norm": "max_norm"}

PRIVACY = "clips the gradient of each example, for differential privacy; that is not the gradient's norm"
REFUSED = {
    "clip_by_block_rms": "clips each tensor by its root mean square, which is no rule here",
    "adaptive_grad_clip": "clips by the ratio of gradient to parameter (AGC), which is no rule here",
    "per_example_global_norm_clip": PRIVACY,
    "per_example_layer_norm_clip": PRIVACY,
    "differentially_private_aggregate": PRIVACY,
    "dpsgd": PRIVACY,
    "tree.clip": "is a function of any pytree; what it is applied to cannot be told",
    "tree_utils.tree_clip": "is a function of any pytree; what it is applied to cannot be told",
}

WRAPPERS = {
    "MultiSteps": "it is inside optax.MultiSteps, so that the mean of the accumulated gradients is clipped",
    "apply_if_finite": "it is inside optax.apply_if_finite, which skips steps whose updates are not finite",
}

CHAINS = ("chain", "named_chain")
ADDS_AFTER = ("append", "extend")
PASSES_ON = (ast.Starred, ast.IfExp, ast.keyword, ast.Lambda, ast.Call)
UNTOLD = "where in optax.chain it stands cannot be told; write it there, first"


class Optax(OwnFormat):
    name = "optax"
    title = "optax"
    kinds = ("python",)
    source = "optax/transforms/_clipping.py"
    newest = "0.2.8"
    instead = "`ClipConfig.as_optax`"
    keys = (
        Key("clip_by_global_norm(max_norm)", "", "", "the global norm, with eps = 0; 0: all gradients become 0"),
        Key("clip(max_delta)", "", "", "each element; 0: all gradients become 0"),
        Key("a clip after another transformation", "", "", "clips updates, not gradients", "refused"),
        Key("clip_by_block_rms", "", "", "each tensor by its root mean square", "refused"),
        Key("adaptive_grad_clip", "", "", "by the ratio of gradient to parameter (AGC)", "refused"),
        Key("per_example_global_norm_clip", "", "", "each example's gradient (privacy)", "refused"),
        Key("per_example_layer_norm_clip", "", "", "each example's gradient (privacy)", "refused"),
        Key("differentially_private_aggregate, dpsgd", "", "", "each example's gradient (privacy)", "refused"),
        Key("tree.clip", "", "", "a function of any pytree", "refused"),
    )

    def parse(self, text: str, name: str) -> Document:
        return parse(text, name)

    def recognises(self, document: Document) -> bool:
        return isinstance(document.data, Source) and document.data.uses("optax")

    def read(self, document: Document, version: Version | None) -> Imported:
        source: Source = document.data
        found = [(short(name), node) for name, node in source.named("optax")]
        for name, node in found:
            if name in REFUSED:
                raise source.wrong(node, f"optax.{name} {REFUSED[name]}")
        clips = [(name, source.call(node)) for name, node in found if name in CLIPS]
        if len(clips) > 1:
            lines = ", ".join(str(call.lineno) for _, call in clips)
            raise source.wrong(clips[1][1], f"it clips in several places (lines {lines}); leave one of them")
        notes = [
            "optax.adafactor clips its update by root mean square too; that is not imported"
            for name, _ in found
            if name == "adafactor"
        ][:1]
        if not clips:
            return Imported({"rule": "none"}, ["there is no clipping by optax in it", *notes])
        ((name, call),) = clips
        notes += _First(source).notes(call)
        arguments = source.arguments(call, [CLIPS[name]])
        if not arguments.data:
            raise source.wrong(call, f"optax.{name} has no default; give {CLIPS[name]}")
        if arguments.data[CLIPS[name]] is None:
            raise arguments.wrong([CLIPS[name]], "it is None, with which training fails there; give a number")
        limit = threshold(arguments, [CLIPS[name]], None, zero="zeros")
        return Imported(value(limit) if name == "clip" else global_norm(limit, "paddle"), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        rules = ["global_norm", "value"]
        limit = plain_threshold(settings, self, rules=rules, family="paddle", zero="zeros")
        if limit is None:
            return "optax.identity()"
        return f"optax.clip_by_global_norm({limit!r})" if settings.rule == "global_norm" else f"optax.clip({limit!r})"

    def dump(self, data: Any) -> str:
        return f"import optax\n\nclip = {data}  # first in optax.chain\n"


def short(name: str) -> str:
    """clip of transforms.clip, _src.clipping.clip and contrib.clip."""
    return name if name.startswith(("tree.", "tree_utils.")) else name.rpartition(".")[2]


class _First:
    """Whether a transformation sees the gradients before any other does."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.seen: set[ast.AST] = set()

    def notes(self, node: ast.AST, alone: bool = True) -> list[str]:
        """What has to be said of where it stands. Raises ConfigError where it is not first.

        `alone`: whether it has not become a part of optax.chain yet, so that its place has to be known.
        """
        if node in self.seen:
            return []
        self.seen.add(node)
        notes = self.source.conditions(node)
        inner = node
        for outer in self.source.around(node):
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
                raise self.source.wrong(node, UNTOLD)
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
            raise self.source.wrong(node, f"it is inside optax.{name}, where it is not clipping of all gradients")
        elif alone or any(self._transforms(each) for each in [*call.args, *call.keywords] if each is not inner):
            raise self.source.wrong(node, UNTOLD)
        return []

    def _transforms(self, argument: ast.AST) -> bool:
        """Whether an argument is another optimizer, or a name for one."""
        names = [each.id for each in ast.walk(argument) if isinstance(each, ast.Name)]
        values = [value for name in names for value in self.source.bound.get(name, []) if value is not None]
        called = [each.func for value in [argument, *values] for each in ast.walk(value) if isinstance(each, ast.Call)]
        found = [name for name in map(self.source.dotted, called) if name.startswith("optax.")]
        return any("schedule" not in name for name in found)

    def _nothing_before(self, node: ast.AST, parts: list[ast.expr], inner: ast.AST) -> None:
        for part in parts:
            if part is inner:
                return
            if not (isinstance(part, ast.Constant) and isinstance(part.value, str)):
                raise self.source.wrong(
                    node,
                    f"it stands after {ast.unparse(part):.60}, so that it clips updates, which are not the gradients "
                    "any more; put it first in optax.chain",
                )

    def _uses(self, statement: ast.Assign | ast.AnnAssign | ast.Return) -> list[ast.AST]:
        """Where the result of a statement is used: loads of its name, or calls of its function."""
        source = self.source
        function = self._function(statement)
        if isinstance(statement, ast.Return):
            loads = self._loads({function.name}) if isinstance(function, ast.FunctionDef) else []
            calls = [(each, source.parents[each]) for each in loads]
            return [call if isinstance(call, ast.Call) and call.func is load else load for load, call in calls]
        targets = list(statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        names: set[str] = set()
        for target in targets:
            if isinstance(target, ast.Tuple | ast.List):
                targets += target.elts
            elif isinstance(target, ast.Name | ast.Attribute):
                names.add(target.id if isinstance(target, ast.Name) else target.attr)
            else:
                raise source.wrong(statement, UNTOLD)
        after = statement.end_lineno or statement.lineno
        return [each for each in self._loads(names) if each.lineno > after or self._function(each) is not function]

    def _function(self, node: ast.AST) -> ast.AST | None:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        return next((each for each in self.source.around(node) if isinstance(each, functions)), None)

    def _loads(self, names: set[str]) -> list[ast.Name | ast.Attribute]:
        """Of names, and of attributes with such names, but of those of modules."""
        found: list[ast.Name | ast.Attribute] = []
        for node in self.source.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
                found.append(node)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in names:
                root = next(each for each in ast.walk(node) if not isinstance(each, ast.Attribute | ast.expr_context))
                if not (isinstance(root, ast.Name) and root.id in self.source.imports):
                    found.append(node)
        return found
