"""Find the statements in which an optimizer of Paddle makes a step, such as `optimizer.step()`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ...source.module import Binding, Module
from ...source.tree import Target, arguments_of, sorted_nodes
from ..to_config import UnsureError

BY_HAND = (
    "Clip before each optimizer.step(). If the optimizer has one parameter group, you can call "
    "ClipConfig(...).attach_to(optimizer) instead."
)
OTHERWISE = f"Otherwise, port this clip by hand. {BY_HAND}"
PRINTING_FUNCTIONS = ("print", "repr", "str", "debug", "info", "warning", "warn", "error", "log", "write")
CLIPPING_METHODS = ("apply_gradients", "apply_optimize", "_apply_optimize")
"""Besides step(), these methods of an optimizer also clip."""


@dataclass(frozen=True)
class PaddleStep:
    statement: ast.stmt
    call: ast.Call
    kind: str
    """"step", "minimize" (optimizer.minimize(loss)), or "scaler" (scaler.step(optimizer))."""


def find_steps(module: Module, binding: Binding) -> list[PaddleStep]:
    """Return the steps of an optimizer. Raise UnsureError if other code might make a step."""
    steps = [step for read in binding.reads if (step := _step(module, binding, read)) is not None]
    for node in module.uses_on_other_objects(binding):
        if isinstance(node, ast.Call) or _step(module, binding, node) is not None:
            code, line = module.code(node), module.position(node)[0]
            raise UnsureError(
                f"Line {line} might make a step, because {code} might be the optimizer {binding.text}. {BY_HAND}"
            )
    if not steps:
        raise UnsureError(f"This file does not call {binding.text}.step(). {BY_HAND}")
    return steps


def _step(module: Module, binding: Binding, read: ast.AST) -> PaddleStep | None:
    parent = module.parents[read]
    line = module.position(read)[0]
    if isinstance(parent, ast.Attribute):
        return _called_method(module, parent, binding, line)
    passed = module.argument(read)
    if is_test(module, read) or (passed is not None and is_harmless(module, read)):
        return None
    match passed:
        case ast.Call(func=ast.Attribute(value=scaler, attr="step" | "unscale_" as name)) as call, _:
            if "scaler" in module.code(scaler).lower():
                return _at(module, call, "scaler", line) if name == "step" else None
    raise UnsureError(f"Line {line} passes or returns {binding.text}, so other code might make a step. {BY_HAND}")


def _called_method(module: Module, method: ast.Attribute, binding: Binding, line: int) -> PaddleStep | None:
    name, call = method.attr, module.parents[method]
    full_name = f"{binding.text}.{name}"
    if name in CLIPPING_METHODS:
        raise UnsureError(
            f"{full_name}() in line {line} also clips. If {full_name}() applies the gradients of "
            f"backward(), call {binding.text}.step() instead. Otherwise, clip by hand before that line."
        )
    if name not in ("step", "minimize", "_grad_clip"):
        return None
    if name == "_grad_clip":
        raise UnsureError(f"Line {line} uses {full_name}, which PyTorch does not have. Remove this use. {OTHERWISE}")
    if not isinstance(call, ast.Call):
        raise UnsureError(f"Line {line} uses {full_name} as a value and does not call it. {BY_HAND}")
    if name == "minimize":
        return minimize_step(module, call, line)
    if arguments_of(call):
        raise UnsureError(f"{full_name}() in line {line} gets a closure. Clip in the closure, after backward().")
    return _at(module, call, name, line)


def minimize_step(module: Module, call: ast.Call, line: int) -> PaddleStep:
    name, step = module.code(call.func), _at(module, call, "minimize", line)
    losses = [argument for argument in arguments_of(call) if argument.keyword != "grad_clip"]
    if len(losses) > 1 or any(argument.star for argument in losses):
        raise UnsureError(
            f"{name}() in line {line} has arguments besides the loss. Remove arguments that have their default "
            f"value, such as None. {OTHERWISE}"
        )
    if not all(isinstance(node, Target) for argument in losses for node in sorted_nodes(argument.value)):
        raise UnsureError(f"Line {line} computes the loss in {name}(). Assign the loss to a variable first.")
    if not isinstance(step.statement, ast.Expr):
        raise UnsureError(
            f"Line {line} uses the result of {name}(). Remove the code that uses the result, because step() "
            "returns None."
        )
    return step


def _at(module: Module, call: ast.Call, kind: str, line: int) -> PaddleStep:
    statement = module.simple_statement(call)
    is_whole = module.parents[call] is statement  # other code in the statement may run before the step
    if statement is None or not is_whole or not module.has_own_line(statement):
        raise UnsureError(
            f"The step in line {line} shares a line or an expression with other code. Write the step as a "
            "statement on a line of its own."
        )
    return PaddleStep(statement, call, kind)


def is_harmless(module: Module, read: ast.AST) -> bool:
    if module.is_annotation(read):
        return True
    outer = [call for call in module.ancestors(read) if isinstance(call, ast.Call)]
    names = [module.code(call.func).rpartition(".")[2] for call in outer]
    return bool(outer) and set(names) <= set(PRINTING_FUNCTIONS) and isinstance(module.parents[outer[-1]], ast.Expr)


def is_test(module: Module, read: ast.AST) -> bool:
    parent = module.parents[read]
    return isinstance(parent, ast.If | ast.Compare) or (isinstance(parent, ast.IfExp) and parent.test is read)
