"""Find the optimizers of Paddle that take `grad_clip=`, and every statement in which they step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import libcst as cst

from ..clip_call import Arguments, FoundClip
from ..source.module import Binding, Module
from ..source.syntax_tree import Target, sorted_nodes
from ..to_config import UnsureError
from .parameter_groups import ParameterGroups

OPTIMIZERS = re.compile(r"paddle\.(fluid\.|incubate\.)?optimizer\.")
STATIC = re.compile(
    r"paddle\.(enable_static$|static\.(Executor|program_guard|Program|CompiledProgram|data|nn|amp|append_backward|gradients)\b"
    r"|fluid\.(program_guard|Executor|ParallelExecutor|CompiledProgram|data\b|layers\.data\b|Program))"
)
"""Names that build or run programs. paddle.static.InputSpec also describes inputs of dynamic models."""

DEFAULT_PROGRAM = re.compile(r"paddle\.(fluid|static)\.default_(main|startup)_program$")
LOGS = ("print", "repr", "str", "debug", "info", "warning", "warn", "error", "log", "write")
"""Functions and methods that only print their arguments."""

APPLIES = ("apply_gradients", "apply_optimize", "_apply_optimize")
"""Methods that clip as step() does."""

OUT_OF_REACH = ("need_clip", "group_name", "auto_skip_clip")


@dataclass(frozen=True)
class ClipSource:
    """A clip in a variable, or one that is created in the call that uses it."""

    makers: Sequence[FoundClip]
    binding: Binding | None
    uses: Sequence[cst.Arg]
    """The grad_clip= arguments that take it."""

    may_be_none: bool


@dataclass(frozen=True)
class OptimizerStep:
    """A statement in which an optimizer steps."""

    statement: cst.BaseSmallStatement
    call: cst.Call
    kind: str
    """step, minimize, or scaler."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that clips, and its steps."""

    binding: Binding
    arguments: Sequence[cst.Arg]
    """grad_clip= in each call that may create it."""

    steps: Sequence[OptimizerStep]
    parameters: cst.BaseExpression | None
    """None if the file does not show them."""

    grouped: bool = False


class Wiring:
    """All optimizers of a file that clip, each with its clips."""

    def __init__(self, module: Module, makers: Sequence[FoundClip]) -> None:
        self._module = module
        self._makers = {found.call: found for found in makers if found.call is not None}
        self._static = self._is_static()
        self.reasons: dict[cst.CSTNode, str] = {}
        """Why a call that creates a clip cannot be rewritten, by the node of its name."""

        self.sources: list[ClipSource] = []
        self.optimizers: dict[object, Optimizer] = {}
        self.by_argument: dict[cst.Arg, object] = {}
        self._look(makers)

    def _look(self, makers: Sequence[FoundClip]) -> None:
        sources: dict[object, ClipSource] = {}
        for found in makers:
            try:
                key, source = self._source(found)
                for argument in source.uses:
                    self.by_argument[argument] = self._optimizer_of(argument)
            except UnsureError as unsure:
                self.reasons[found.node] = str(unsure)
            else:
                sources[key] = source
        self._drop_incomplete(sources)
        self.sources = list(sources.values())

    def _drop_incomplete(self, sources: dict[object, ClipSource]) -> None:
        """Drop a source if one of its calls, or another clip of its optimizers, cannot be rewritten."""
        changed = True
        while changed:
            changed = False
            kept = {argument for source in sources.values() for argument in source.uses}
            for key, source in list(sources.items()):
                others = [each for use in source.uses for each in self.optimizers[self.by_argument[use]].arguments]
                reason = next((self.reasons[each.node] for each in source.makers if each.node in self.reasons), "")
                if reason or any(other not in kept for other in others):
                    for maker in source.makers:
                        self.reasons.setdefault(
                            maker.node, reason or "Another clip of this optimizer cannot be ported."
                        )
                    del sources[key]
                    changed = True

    # -- clips

    def _source(self, found: FoundClip) -> tuple[object, ClipSource]:
        call = cast(cst.Call, found.call)
        self._check(found)
        node, may_be_none = self._whole_expression(call)
        parent = self._module.parents[node]
        if isinstance(parent, cst.Arg) and parent.keyword is not None and parent.keyword.value == "grad_clip":
            return node, ClipSource([found], None, [parent], may_be_none)
        target = self._target(node)
        binding = self._module.binding(target) if target is not None else None
        if binding is None or target is None:
            raise UnsureError("Its use cannot be seen.")
        return binding.key, self._shared(binding, target)

    def _check(self, found: FoundClip) -> None:
        call = cast(cst.Call, found.call)
        arguments = Arguments(call, found.function.parameters if found.function else ())
        for name in OUT_OF_REACH:
            if name in arguments.given:
                raise UnsureError(f"{name}= selects parameters or programs of Paddle.")
        if self._static:
            raise UnsureError("The file builds static programs, which run later. PyTorch runs each step at once.")

    def _whole_expression(self, call: cst.Call) -> tuple[cst.BaseExpression, bool]:
        """Return a clip with `if ... else None` around it, and whether it may be None."""
        parent = self._module.parents[call]
        if isinstance(parent, cst.IfExp) and call is not parent.test:
            other = parent.orelse if parent.body is call else parent.body
            if is_none(other):
                return parent, True
        return call, False

    def _shared(self, binding: Binding, target: Target) -> ClipSource:
        makers, may_be_none = [], False
        for value in self._values(binding):
            if is_none(value):
                may_be_none = True
                continue
            inner = value
            if isinstance(value, cst.IfExp):
                may_be_none = True
                inner = value.orelse if is_none(value.body) else value.body
            found = self._makers.get(cast(cst.Call, inner))
            if found is None:
                raise UnsureError(f"{binding.text} may also be something else.")
            if found.node in self.reasons:
                raise UnsureError(self.reasons[found.node])
            self._check(found)
            makers.append(found)
        if self._module.uses_on_other_objects(binding):
            raise UnsureError(f"{binding.text} may be read or set elsewhere on an object of this class.")
        may_be_none = may_be_none or self._may_be_inherited(binding)
        uses = list(self._uses(binding))
        if not uses:
            raise UnsureError(f"No optimizer in this file takes {binding.text} as grad_clip=.")
        return ClipSource(makers, binding, uses, may_be_none)

    def _may_be_inherited(self, binding: Binding) -> bool:
        """Return whether an attribute is set only in some cases, so that a base class may define it."""
        nodes = [bound.node for bound in binding.bounds if bound.node is not None]
        around = [self._module.enclosing(node, cst.If, cst.FunctionDef, cst.ClassDef) for node in nodes]
        return "." in binding.text and all(isinstance(each, cst.If) for each in around)

    def _values(self, binding: Binding) -> list[cst.BaseExpression]:
        if binding.values is None:
            raise UnsureError(f"{binding.text} may also be something else.")
        return binding.values

    def _uses(self, binding: Binding) -> Iterator[cst.Arg]:
        for read in binding.reads:
            parent = self._module.parents[read]
            if isinstance(parent, cst.Arg) and parent.keyword is not None and parent.keyword.value == "grad_clip":
                yield parent
            elif not self._is_test(read, parent) and not is_harmless(self._module, read):
                raise UnsureError(f"Line {self._module.position(read)[0]} uses {binding.text} in another way.")

    def _is_test(self, read: cst.CSTNode, parent: cst.CSTNode) -> bool:
        """Return whether a read is a test: `if clip:` or `clip is not None`."""
        return isinstance(parent, cst.If | cst.Comparison) or (isinstance(parent, cst.IfExp) and parent.test is read)

    def _target(self, node: cst.BaseExpression) -> Target | None:
        """Return the one variable that an expression is assigned to; None for anything else."""
        parent = self._module.parents[node]
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            target: cst.CSTNode = parent.targets[0].target
        elif isinstance(parent, cst.AnnAssign):
            target = parent.target
        else:
            return None
        return target if isinstance(target, cst.Name | cst.Attribute) else None

    # -- optimizers

    def _optimizer_of(self, argument: cst.Arg) -> object:
        """Return the key of the optimizer that takes an argument grad_clip=."""
        call = cast(cst.Call, self._module.parents[argument])
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "minimize":
            self.optimizers[argument] = self._given_to_minimize(argument, call, call.func)
            return argument
        if not OPTIMIZERS.match(self._module.full_name(call.func)):
            raise UnsureError(f"{self._module.code(call.func)} takes it, which is no known optimizer of Paddle.")
        target = self._target(call)
        binding = self._module.binding(target) if target is not None else None
        if binding is None:
            raise UnsureError("The optimizer is not assigned to a variable, so that its steps cannot be seen.")
        statement = self._module.small_statement(call)
        if statement is None or not self._module.has_own_line(statement):
            raise UnsureError("The optimizer has no line of its own.")
        if isinstance(target, cst.Name) and self._is_of_another_scope(target):
            raise UnsureError(f"{binding.text} is global or nonlocal here.")
        if binding.key not in self.optimizers:
            self.optimizers[binding.key] = self._optimizer(binding)
        return binding.key

    def _is_of_another_scope(self, target: cst.Name) -> bool:
        """Return whether a function declares a name as global or nonlocal."""
        around = self._module.enclosing(target, cst.FunctionDef)
        said = sorted_nodes(around) if around is not None else []
        items = [item for each in said if isinstance(each, cst.Global | cst.Nonlocal) for item in each.names]
        return any(item.name.value == target.value for item in items)

    def _given_to_minimize(self, argument: cst.Arg, call: cst.Call, method: cst.Attribute) -> Optimizer:
        """Return the optimizer of minimize(loss, grad_clip=clip)."""
        line = self._module.position(call)[0]
        binding = self._module.binding(method.value)
        step = self._at(call, "minimize", line)
        if len(call.args) > 2:
            raise UnsureError(f"minimize() in line {line} takes more than the loss and the clip.")
        if binding is None or not isinstance(step.statement, cst.Expr):
            raise UnsureError(f"The optimizer or the result of minimize() in line {line} cannot be seen.")
        return Optimizer(binding, [argument], [step], None)

    def _optimizer(self, binding: Binding) -> Optimizer:
        arguments, lists = [], []
        for value in self._values(binding):
            if is_none(value):
                continue
            if not isinstance(value, cst.Call) or not OPTIMIZERS.match(self._module.full_name(value.func)):
                raise UnsureError(f"{binding.text} may also be something else.")
            given = {each.keyword.value: each for each in value.args if each.keyword}
            fresh = next((each for each in value.args if each.keyword is None and is_fresh(each.value)), None)
            parameters = given.get("parameters", given.get("parameter_list", fresh))
            if "grad_clip" not in given or parameters is None:
                raise UnsureError(f"{binding.text} may have no grad_clip=, or no parameters=.")
            arguments.append(given["grad_clip"])
            lists.append(parameters.value)
        codes = {self._module.code(each.value) for each in arguments}
        if len(codes) != 1 or len({self._module.code(each) for each in lists}) != 1:
            raise UnsureError(f"{binding.text} may be created in several ways, with different clips or parameters.")
        grouped = ParameterGroups(self._module).are_in(lists[0])
        return Optimizer(binding, arguments, self._steps(binding), lists[0], grouped)

    def _steps(self, binding: Binding) -> list[OptimizerStep]:
        steps = [step for read in binding.reads if (step := self._step(binding, read)) is not None]
        for node in self._module.uses_on_other_objects(binding):
            if isinstance(node, cst.Call) or self._step(binding, node) is not None:
                line = self._module.position(node)[0]
                raise UnsureError(f"Line {line} may step {binding.text} of another object of this class.")
        if not steps:
            raise UnsureError(f"No step of {binding.text} is in this file.")
        return steps

    def _step(self, binding: Binding, read: cst.CSTNode) -> OptimizerStep | None:
        """Return the step that reads an optimizer; None if it does not step. Raises UnsureError if it may."""
        parent = self._module.parents[read]
        line = self._module.position(read)[0]
        if isinstance(parent, cst.Attribute):
            return self._method(parent, binding, line)
        if isinstance(parent, cst.Arg):
            call = cast(cst.Call, self._module.parents[parent])
            method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            owner = self._module.code(call.func.value) if isinstance(call.func, cst.Attribute) else ""
            if is_harmless(self._module, read):
                return None
            if "scaler" in owner.lower() and method in ("step", "unscale_"):
                return self._at(call, "scaler", line) if method == "step" else None
            raise UnsureError(f"Line {line} passes {binding.text} on, to code that may step it.")
        if self._is_test(read, parent):
            return None
        raise UnsureError(f"Line {line} passes {binding.text} on, to code that may step it.")

    def _method(self, method: cst.Attribute, binding: Binding, line: int) -> OptimizerStep | None:
        name, call = method.attr.value, self._module.parents[method]
        if name in ("_add_param_group", "add_param_group"):
            raise UnsureError(f"Line {line} adds parameters to {binding.text}, in a group with a norm of its own.")
        if name in APPLIES:
            raise UnsureError(
                f"{binding.text}.{name}() in line {line} clips, too. PyTorch's optimizers have no such method."
            )
        if name not in ("step", "minimize", "_grad_clip"):
            return None
        if name == "_grad_clip" or not isinstance(call, cst.Call):
            raise UnsureError(f"Line {line} uses {binding.text}.{name} without a call.")
        step = self._at(call, name, line)
        if name == "step" and call.args:
            raise UnsureError(f"{binding.text}.step() in line {line} takes a closure that computes the gradients.")
        if name == "minimize" and not all(isinstance(each.value, Target) for each in call.args):
            raise UnsureError(f"The loss of {binding.text}.minimize() in line {line} is computed in the call.")
        if name == "minimize" and len(call.args) > 1:
            raise UnsureError(f"{binding.text}.minimize() in line {line} takes more than the loss.")
        if name == "minimize" and not isinstance(step.statement, cst.Expr):
            raise UnsureError(f"Line {line} uses the result of {binding.text}.minimize(). step() returns nothing.")
        return step

    def _at(self, call: cst.Call, kind: str, line: int) -> OptimizerStep:
        statement = self._module.small_statement(call)
        alone = self._module.parents[call] is statement  # other code in the statement may run before the step
        if statement is None or not alone or not self._module.has_own_line(statement):
            raise UnsureError(
                f"The step in line {line} has no line of its own, so that no clip can be inserted before it."
            )
        return OptimizerStep(statement, call, kind)

    def _is_static(self) -> bool:
        used = self._module.used_names
        in_fluid = any(name.startswith("paddle.fluid.") for name in used)
        eager = any(name.startswith("paddle.fluid.dygraph") for name in used)
        return any(map(STATIC.match, used)) or self._uses_default_program() or (in_fluid and not eager)

    def _uses_default_program(self) -> bool:
        """Return whether a default program is used for more than its random_seed, which dynamic mode also has."""
        calls = [each for each in self._module.nodes if isinstance(each, cst.Call)]
        default = [call for call in calls if DEFAULT_PROGRAM.match(self._module.full_name(call.func))]
        parents = [self._module.parents[call] for call in default]
        return any(not isinstance(each, cst.Attribute) or each.attr.value != "random_seed" for each in parents)


def is_harmless(module: Module, read: cst.CSTNode) -> bool:
    """Return whether a read is in a type annotation, or printed in a statement of its own."""
    if module.enclosing(read, cst.Annotation) is not None:
        return True
    outer = [each for each in module.ancestors(read) if isinstance(each, cst.Call)]
    names = [module.code(each.func).rpartition(".")[2] for each in outer]
    return bool(outer) and set(names) <= set(LOGS) and isinstance(module.parents[outer[-1]], cst.Expr)


def is_fresh(node: cst.BaseExpression) -> bool:
    """Return whether an expression is model.parameters(), which can be called again."""
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "parameters"


def is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"
