"""Detect harmless uses of a variable, such as `print(variable)` and `if variable:`."""

from __future__ import annotations

import libcst as cst

from ..source.module import Module

PRINTING_FUNCTIONS = ("print", "repr", "str", "debug", "info", "warning", "warn", "error", "log", "write")


def is_harmless(module: Module, read: cst.CSTNode) -> bool:
    """Return whether the code at a node prints a variable, or is a type annotation."""
    if module.enclosing(read, cst.Annotation) is not None:
        return True
    outer = [call for call in module.ancestors(read) if isinstance(call, cst.Call)]
    names = [module.code(call.func).rpartition(".")[2] for call in outer]
    return bool(outer) and set(names) <= set(PRINTING_FUNCTIONS) and isinstance(module.parents[outer[-1]], cst.Expr)


def is_test(module: Module, read: cst.CSTNode) -> bool:
    """Return whether code only tests the value of a variable, as in `if clip:` or `clip is not None`."""
    parent = module.parents[read]
    return isinstance(parent, cst.If | cst.Comparison) or (isinstance(parent, cst.IfExp) and parent.test is read)
