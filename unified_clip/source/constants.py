"""Read constants of one file: values that a line assigns to a name only once."""

from __future__ import annotations

import ast
from functools import partial
from typing import Any

from .._kit.static_values import Target, UnknownValueError, evaluate
from ..errors import ConfigError
from .module import MAX_ALIASES, Module
from .tree import is_name

AT_RUN_TIME = (
    "The value of {code} is only known at run time. Write the number instead, or assign the number to the name only "
    "once."
)


def constant(module: Module, node: ast.expr) -> Any:
    """Return the value of an expression, such as -1.0, `float("inf")` or a variable with a single assignment."""
    try:
        return evaluate(node, partial(_value_of, module, depth=0), module.dotted)
    except UnknownValueError as unknown:
        raise ConfigError(AT_RUN_TIME.format(code=unknown), "UC106") from None


def _value_of(module: Module, node: Target, depth: int) -> Any:
    value = _only_value(module, node) if isinstance(node, ast.Name) else None
    if value is None or depth == MAX_ALIASES or any(map(_runs_unknown_code, module.calls)):
        raise UnknownValueError(node)
    return evaluate(value, partial(_value_of, module, depth=depth + 1), module.dotted)


def followed(module: Module, node: ast.expr) -> ast.expr:
    """Return the expression that a variable or an attribute of self stands for. For other code, return the code."""
    for _ in range(MAX_ALIASES):
        value = _only_value(module, node)
        if value is None:
            break
        node = value
    return node


def name_of(module: Module, node: ast.AST) -> str:
    """Return the parameter, attribute or key that an expression reads. For other code, return ''.

    For `config.grad_clip`, `float(config["grad_clip"])` and `config.get("grad_clip", 1.0)`, return "grad_clip".
    """
    match followed(module, node) if isinstance(node, ast.expr) else node:
        case ast.Call(func=ast.Name(id="float"), args=[inner]):
            return name_of(module, inner)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            return name
        case (
            ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_])
            | ast.Subscript(value=owner, slice=ast.Constant(value=str(name)))
            | ast.Attribute(value=owner, attr=name)
        ):
            return name if module.full_name(owner) != "os.environ" else ""
        case ast.Name(id=name) as variable:
            bound = module.binding(variable).assignments
            is_passed = all(isinstance(each.node, ast.arg) or each.alias is not None for each in bound)
            return name if is_passed and len(bound) < 2 else ""  # otherwise, the code sets or changes it
    return ""


def _only_value(module: Module, node: ast.expr) -> ast.expr | None:
    values = module.binding(node).values or []
    return values[0] if len(values) == 1 else None


def _runs_unknown_code(call: ast.Call) -> bool:
    """Return whether a call runs unknown code, as in `exec(open("config.py").read())`."""
    return is_name(call.func, "exec") and bool(call.args) and not isinstance(call.args[0], ast.Constant)
