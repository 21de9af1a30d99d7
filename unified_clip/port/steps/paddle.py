"""Find Paddle's optimizers with the argument `grad_clip=`, and all statements in which these optimizers make a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import libcst as cst

from ..clip_call import FoundClip
from ..source.module import Binding, Module
from ..source.syntax_tree import Target, is_name, keyword_of, keywords_of, method_of, sorted_nodes
from ..to_config import UnsureError
from .harmless_uses import is_harmless
from .parameter_groups import may_have_groups
from .static_programs import is_static

OPTIMIZERS = re.compile(r"paddle\.(fluid\.|incubate\.)?optimizer\.")
BY_HAND = "Clip before each optimizer.step(). With one parameter group, ClipConfig(...).attach_to(optimizer) does this."
OTHERWISE = f"Otherwise, port this clip by hand. {BY_HAND}"
SOMETHING_ELSE = (
    "In line {2}, the value of {0} might not be {1}. If the value is {1}, write the call of its class in this line. "
    "Otherwise, assign the value to another name."
)
CLIP, OPTIMIZER = "a clip of Paddle", "an optimizer of Paddle"
UNKNOWN_VALUE = (
    "Not every value of {0} is known: for example, one comes from an argument, a loop or a tuple. If the file creates "
    f"this value, assign it in a line {{0}} = ... {OTHERWISE}"
)
NOT_ASSIGNED = (
    "The optimizer that gets this clip was not found. If it is in this file, write {}, and pass grad_clip=clip to the "
    f"optimizer. {OTHERWISE}"
)
CLIPPING_METHODS = ("apply_gradients", "apply_optimize", "_apply_optimize")
"""Methods of an optimizer that clip, in addition to step()."""

ADDS_GROUP = ("add_param_group", "_add_param_group")

SELECTING_ARGUMENTS = {
    "need_clip": "selects the parameters to clip. Clip only these by hand, before each optimizer.step().",
    "group_name": "is used in static programs only. Remove it.",
    "auto_skip_clip": "leaves out a multiplication by 1, and the clip of gradients whose norm is NaN. Remove it.",
}
"""For each argument that PyTorch's functions do not have: the end of a message about the argument."""


@dataclass(frozen=True)
class ClipSource:
    """The clips that a variable or a `grad_clip=` argument can contain."""

    clips: Sequence[FoundClip]
    binding: Binding | None
    uses: Sequence[cst.Arg]
    """The grad_clip= arguments that contain these clips."""

    may_be_none: bool


@dataclass(frozen=True)
class OptimizerStep:
    statement: cst.BaseSmallStatement
    call: cst.Call
    kind: str
    """"step", "minimize" (optimizer.minimize(loss)), or "scaler" (scaler.step(optimizer))."""


@dataclass(frozen=True)
class Optimizer:
    binding: Binding
    arguments: Sequence[cst.Arg]
    """The argument grad_clip= in each call that might create the optimizer."""

    steps: Sequence[OptimizerStep]
    parameters: cst.BaseExpression | None
    """The expression of the optimizer's parameters, or None if the parameters are unknown."""

    grouped: bool = False


class PaddleOptimizers:
    def __init__(self, module: Module, clips: Sequence[FoundClip]) -> None:
        self._module = module
        self._clips = {clip.call: clip for clip in clips if clip.call is not None}
        self._static = is_static(module)
        self._by_binding: dict[object, Optimizer] = {}
        self.optimizers: dict[cst.Arg, Optimizer] = {}
        """For each argument grad_clip=: the optimizer that gets the argument."""

        self.why_not: dict[FoundClip, str] = {}
        sources: dict[object, ClipSource] = {}
        for clip in clips:
            try:
                key, source = self._source(clip)
                self.optimizers |= {argument: self._optimizer_of(argument) for argument in source.uses}
                sources[key] = source
            except UnsureError as error:
                self.why_not[clip] = str(error)
        self.sources = self._complete(list(sources.values()))

    def _complete(self, sources: list[ClipSource]) -> list[ClipSource]:
        """Return each source if all its clips can be rewritten.

        Otherwise, add a reason to the `why_not` of the clips.
        """
        kept = {argument for source in sources for argument in source.uses}
        complete = []
        for source in sources:
            reasons = [self.why_not[clip] for clip in source.clips if clip in self.why_not]
            arguments = {argument for use in source.uses for argument in self.optimizers[use].arguments}
            if not reasons and arguments <= kept:
                complete.append(source)
                continue
            for clip in source.clips:
                self.why_not.setdefault(
                    clip, (reasons or ["This optimizer also has a clip that cannot be ported. Port both by hand."])[0]
                )
        return complete if len(complete) == len(sources) else self._complete(complete)

    def _source(self, clip: FoundClip) -> tuple[object, ClipSource]:
        call = cast(cst.Call, clip.call)
        self._check(clip)
        node: cst.BaseExpression = call
        parent = self._module.parents[call]
        if isinstance(parent, cst.IfExp) and parent.test is not call:
            node = parent if is_name(parent.orelse if parent.body is call else parent.body, "None") else call
        argument = self._module.parents[node]
        if isinstance(argument, cst.Arg) and keyword_of(argument) == "grad_clip":
            return node, ClipSource([clip], None, [argument], may_be_none=node is not call)
        binding = self._module.binding(self._target(node))
        if binding.key is None:
            has_branches = isinstance(parent, cst.IfExp)
            line = "an if statement with clip = ... in each branch" if has_branches else "a line clip = ..."
            raise UnsureError(NOT_ASSIGNED.format(line))
        return binding.key, self._source_in(binding)

    def _check(self, clip: FoundClip) -> None:
        if self._static:
            raise UnsureError(
                "The file builds static programs, which PyTorch does not have. Write the training step in PyTorch by "
                "hand: backward(), clip, step()."
            )
        for name, remedy in SELECTING_ARGUMENTS.items():
            if name in clip.arguments.passed:
                raise UnsureError(f"{name}= {remedy}")

    def _source_in(self, binding: Binding) -> ClipSource:
        """Return the clips that a variable might contain. Raise an error if one of the clips cannot be ported."""
        clips = []
        may_be_none = self._may_be_inherited(binding)
        for value in self._values(binding):
            inner = value
            if isinstance(value, cst.IfExp):
                inner = value.orelse if is_name(value.body, "None") else value.body
            may_be_none = may_be_none or is_name(value, "None") or inner is not value
            if is_name(value, "None"):
                continue
            clip = self._clips.get(cast(cst.Call, inner))
            if clip is None:
                line = self._module.position(value)[0]
                raise UnsureError(SOMETHING_ELSE.format(binding.text, CLIP, line))
            if clip in self.why_not:
                raise UnsureError(self.why_not[clip])
            self._check(clip)
            clips.append(clip)
        if others := self._module.uses_on_other_objects(binding):
            code, line = self._module.code(others[0]), self._module.position(others[0])[0]
            raise UnsureError(
                f"{code} in line {line} might be the same attribute as {binding.text}. If the attributes are "
                f"different, rename one of them. {OTHERWISE}"
            )
        uses = list(self._uses(binding))
        if not uses:
            raise UnsureError(
                f"No optimizer in this file gets {binding.text} as grad_clip=. If no other file uses {binding.text}, "
                f"remove {binding.text}, because it clips nothing. {OTHERWISE}"
            )
        return ClipSource(clips, binding, uses, may_be_none)

    def _may_be_inherited(self, binding: Binding) -> bool:
        """Return whether the file sets an attribute only inside an `if`.

        Then a base class might set the attribute, too.
        """
        nodes = [bound.node for bound in binding.bounds if bound.node is not None]
        around = [self._module.enclosing(node, cst.If, cst.FunctionDef, cst.ClassDef) for node in nodes]
        return "." in binding.text and all(isinstance(outer, cst.If) for outer in around)

    def _values(self, binding: Binding) -> list[cst.BaseExpression]:
        if binding.values is None:
            raise UnsureError(UNKNOWN_VALUE.format(binding.text))
        return binding.values

    def _uses(self, binding: Binding) -> Iterator[cst.Arg]:
        for read in binding.reads:
            parent = self._module.parents[read]
            if isinstance(parent, cst.Arg) and keyword_of(parent) == "grad_clip":
                yield parent
            elif not self._is_test(read) and not is_harmless(self._module, read):
                line, name = self._module.position(read)[0], binding.text
                raise UnsureError(
                    f"Line {line} uses {name}, but not as grad_clip={name}. To pass {name} to an optimizer, write "
                    f"grad_clip={name}. {OTHERWISE}"
                )

    def _is_test(self, read: cst.CSTNode) -> bool:
        """Return whether code only tests the value of a variable, as in `if clip:` or `clip is not None`."""
        parent = self._module.parents[read]
        return isinstance(parent, cst.If | cst.Comparison) or (isinstance(parent, cst.IfExp) and parent.test is read)

    def _target(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """If an expression is assigned to exactly one target, return the target, else None."""
        parent = self._module.parents[node]
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            return parent.targets[0].target
        return parent.target if isinstance(parent, cst.AnnAssign) else None

    def _optimizer_of(self, argument: cst.Arg) -> Optimizer:
        call = cast(cst.Call, self._module.parents[argument])
        if isinstance(call.func, cst.Attribute) and method_of(call) == "minimize":
            line, binding = self._module.position(call)[0], self._module.binding(call.func.value)
            if binding.key is None:
                remedy = "Assign the optimizer first: optimizer = ..."
                raise UnsureError(f"minimize() in line {line} is not called on a variable. {remedy}")
            return Optimizer(binding, [argument], [self._minimize(call, line)], None)
        if not OPTIMIZERS.match(self._module.full_name(call.func)):
            raise UnsureError(
                f"{self._module.code(call.func)} gets the clip, but might not be an optimizer of Paddle. {BY_HAND}"
            )
        target = self._target(call)
        binding = self._module.binding(target)
        if binding.key is None:
            raise UnsureError(
                "No line assigns the optimizer to a variable, so the steps of the optimizer cannot be found. If this "
                f"file contains the steps, write a line optimizer = ... {OTHERWISE}"
            )
        statement = self._module.small_statement(call)
        if statement is None or not self._module.has_own_line(statement):
            raise UnsureError("The optimizer shares its line with other code. Give the optimizer a line of its own.")
        function = self._module.enclosing(target, cst.FunctionDef) if isinstance(target, cst.Name) else None
        items = [node for node in sorted_nodes(function) if isinstance(node, cst.NameItem)] if function else []
        if any(item.name.value == binding.text for item in items):
            raise UnsureError(
                f"{binding.text} is global or nonlocal here, so some steps cannot be found. If possible, create the "
                f"optimizer and make its steps in one function. {OTHERWISE}"
            )
        if binding.key not in self._by_binding:
            self._by_binding[binding.key] = self._optimizer(binding)
        return self._by_binding[binding.key]

    def _optimizer(self, binding: Binding) -> Optimizer:
        arguments, lists = [], []
        for value in self._values(binding):
            if is_name(value, "None"):
                continue
            if not isinstance(value, cst.Call) or not OPTIMIZERS.match(self._module.full_name(value.func)):
                line = self._module.position(value)[0]
                raise UnsureError(SOMETHING_ELSE.format(binding.text, OPTIMIZER, line))
            passed = keywords_of(value)
            positional = next((arg for arg in value.args if not arg.keyword and calls_parameters(arg.value)), None)
            parameters = passed.get("parameters", passed.get("parameter_list", positional))
            if "grad_clip" not in passed:
                raise UnsureError(
                    f"{binding.text} may also be an optimizer without grad_clip=. Use another variable for that "
                    f"optimizer and its steps. {OTHERWISE}"
                )
            if parameters is None:
                raise UnsureError(
                    f"A call might create {binding.text} without parameters=. In each call that creates the optimizer, "
                    "pass parameters= as a keyword argument."
                )
            arguments.append(passed["grad_clip"])
            lists.append(parameters.value)
        clips = [argument.value for argument in arguments]
        for name, variable, values in (("grad_clip", "clip", clips), ("parameters", "params", lists)):
            if len(set(map(self._module.code, values))) > 1:
                raise UnsureError(
                    f"The calls that create {binding.text} pass different code for {name}=. Before each of these "
                    f"calls, write a line {variable} = ..., and pass {name}={variable}. {OTHERWISE}"
                )
        methods = [self._module.parents[read] for read in binding.reads]
        adds_group = any(isinstance(method, cst.Attribute) and method.attr.value in ADDS_GROUP for method in methods)
        grouped = adds_group or may_have_groups(self._module, lists[0])
        return Optimizer(binding, arguments, self._steps(binding), lists[0], grouped)

    def _steps(self, binding: Binding) -> list[OptimizerStep]:
        steps = [step for read in binding.reads if (step := self._step(binding, read)) is not None]
        for node in self._module.uses_on_other_objects(binding):
            if isinstance(node, cst.Call) or self._step(binding, node) is not None:
                code, line = self._module.code(node), self._module.position(node)[0]
                raise UnsureError(
                    f"{code} in line {line} might be the optimizer {binding.text}, and might make a step. {BY_HAND}"
                )
        if not steps:
            raise UnsureError(f"This file does not call {binding.text}.step(). {BY_HAND}")
        return steps

    def _step(self, binding: Binding, read: cst.CSTNode) -> OptimizerStep | None:
        """If the code around `read` makes a step of the optimizer, return the step, else None."""
        parent = self._module.parents[read]
        line = self._module.position(read)[0]
        if isinstance(parent, cst.Attribute):
            return self._method(parent, binding, line)
        if self._is_test(read) or (isinstance(parent, cst.Arg) and is_harmless(self._module, read)):
            return None
        match self._module.parents[parent]:
            case cst.Call(func=cst.Attribute(value=scaler, attr=cst.Name(value="step" | "unscale_" as name))) as call:
                if isinstance(parent, cst.Arg) and "scaler" in self._module.code(scaler).lower():
                    return self._at(call, "scaler", line) if name == "step" else None
        raise UnsureError(f"Line {line} passes or returns {binding.text} to code that might make a step. {BY_HAND}")

    def _method(self, method: cst.Attribute, binding: Binding, line: int) -> OptimizerStep | None:
        name, call = method.attr.value, self._module.parents[method]
        full_name = f"{binding.text}.{name}"
        if name in CLIPPING_METHODS:
            raise UnsureError(
                f"{full_name}() in line {line} clips, too. If it applies the gradients of backward(), call "
                f"{binding.text}.step() instead. Otherwise, clip by hand before that line."
            )
        if name not in ("step", "minimize", "_grad_clip"):
            return None
        if name == "_grad_clip":
            raise UnsureError(f"PyTorch has no {full_name}, which line {line} uses. Remove this use. {OTHERWISE}")
        if not isinstance(call, cst.Call):
            raise UnsureError(f"Line {line} uses {full_name} as a value and does not call it. {BY_HAND}")
        if name == "minimize":
            return self._minimize(call, line)
        if call.args:
            raise UnsureError(f"{full_name}() in line {line} gets a closure. Clip in the closure, after backward().")
        return self._at(call, name, line)

    def _minimize(self, call: cst.Call, line: int) -> OptimizerStep:
        """Return the step for a call of minimize(loss) or minimize(loss, grad_clip=clip).

        The new code calls step() instead.
        """
        name, step = self._module.code(call.func), self._at(call, "minimize", line)
        losses = [argument for argument in call.args if keyword_of(argument) != "grad_clip"]
        if len(losses) > 1 or any(argument.star for argument in losses):
            raise UnsureError(
                f"{name}() in line {line} has arguments besides the loss. Remove them if they are defaults, such as "
                f"None. {OTHERWISE}"
            )
        if not all(isinstance(node, Target) for argument in losses for node in sorted_nodes(argument.value)):
            raise UnsureError(f"Line {line} computes the loss in {name}(). Assign the loss to a variable first.")
        if not isinstance(step.statement, cst.Expr):
            raise UnsureError(
                f"Line {line} uses the result of {name}(). Remove the code that uses the result, because step() "
                "returns None."
            )
        return step

    def _at(self, call: cst.Call, kind: str, line: int) -> OptimizerStep:
        statement = self._module.small_statement(call)
        is_whole = self._module.parents[call] is statement  # other code in the statement may run before the step
        if statement is None or not is_whole or not self._module.has_own_line(statement):
            raise UnsureError(
                f"The step in line {line} shares a line or an expression with other code. Write it as a statement on a "
                "line of its own."
            )
        return OptimizerStep(statement, call, kind)


def calls_parameters(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and method_of(node) == "parameters"
