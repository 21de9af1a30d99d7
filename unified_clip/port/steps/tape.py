"""Find TensorFlow's training steps: from the call that computes gradients until the call of `apply_gradients`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...source.module import Binding, Module
from ...source.tree import Target, arguments_of, method_of, owner_of
from ..catalog import clip_function, names
from ..found_clip import Arguments
from ..gradient_flow import APPLY_METHODS, Gradients
from ..to_config import UnsureError

GRAPH = (
    "unified-clip port rewrites gradient() of a tape, but no other function that computes gradients. In PyTorch, call "
    "backward(), clip the gradients, and call step() in the training loop."
)
SCALED = ("get_scaled_loss", "get_unscaled_gradients", "scale_loss")
NOT_TOGETHER = (
    "gradient() and apply_gradients() are not in one function. Move both calls into one function. If the file has only "
    "one of the calls, port the step by hand."
)
NOT_IN_PAIRS = (
    "The calls of gradient() and apply_gradients() do not alternate. PyTorch's backward() would add up the gradients "
    "of several gradient() calls. In PyTorch, replace each gradient() by torch.autograd.grad(loss, parameters)."
)
PERSISTENT = (
    "A persistent tape may compute gradients several times. PyTorch's backward() would add these gradients up. If "
    "gradient() is called once, remove persistent=. Otherwise, in PyTorch, replace each gradient() by "
    "torch.autograd.grad(loss, parameters)."
)
DISTRIBUTED = ("tensorflow.distribute.", "tensorflow.compat.v1.distribute.")
GRADIENT_METHODS = ("gradient", "compute_gradients", "get_gradients")


LIST_CHANGING_METHODS = ("append", "pop", "insert", "extend", "remove", "clear", "sort", "reverse")


@dataclass(frozen=True, eq=False)
class TapeStep:
    source: ast.Call
    source_statement: ast.stmt
    loss: ast.expr
    variables: str
    optimizer: str
    apply: ast.Call
    apply_statement: ast.stmt


@dataclass(frozen=True, eq=False)
class StepRange:
    """The first and the last line of a training step. If the step cannot be ported, `step` is None."""

    first: int
    last: int
    step: TapeStep | None
    reason: str = ""


class TapeSteps:
    def __init__(self, module: Module, gradients: Gradients) -> None:
        self._module, self._gradients = module, gradients
        calls: dict[ast.AST, list[ast.Call]] = {}
        for call in module.calls:
            calls.setdefault(self._body(call), []).append(call)
        self._ranges = {body: list(self._find(calls[body])) for body in calls}

    def range_of(self, node: ast.AST) -> StepRange | None:
        line, ranges = self._module.position(node)[0], self._ranges.get(self._body(node), [])
        return next((span for span in ranges if span.first <= line <= span.last), None)

    def all(self) -> list[TapeStep]:
        return [span.step for ranges in self._ranges.values() for span in ranges if span.step is not None]

    def applied_by(self, optimizer: Binding) -> list[StepRange]:
        applies = filter(self._is_apply, self._module.calls)
        own = [call for call in applies if self._module.binding(owner_of(call)).key == optimizer.key]
        return [span for call in own if (span := self.range_of(call)) is not None]

    def _body(self, node: ast.AST) -> ast.AST:
        return self._module.enclosing_definition(node) or self._module.tree

    def _find(self, calls: Sequence[ast.Call]) -> Iterator[StepRange]:
        sources, applies = list(filter(self._is_source, calls)), list(filter(self._is_apply, calls))
        ordered = sorted([*sources, *applies], key=self._order)
        if len(sources) != len(applies) or set(ordered[::2]) != set(sources):
            first = min(self._module.position(call)[0] for call in ordered)
            last = max(self._module.end(call) for call in ordered)
            yield StepRange(first, last, None, NOT_IN_PAIRS if sources and applies else NOT_TOGETHER)
            return
        for source, apply in zip(ordered[::2], ordered[1::2], strict=True):
            first, last = self._module.position(source)[0], self._module.end(apply)
            try:
                yield StepRange(first, last, self._step(source, apply, calls))
            except UnsureError as error:
                yield StepRange(first, last, None, str(error))

    def _order(self, call: ast.Call) -> tuple[tuple[int, int], bool]:
        statement = self._module.simple_statement(call) or call
        return self._module.position(statement), not self._is_source(call)

    def _is_source(self, call: ast.Call) -> bool:
        is_method = method_of(call) in GRADIENT_METHODS and self._gradients.kind(call) is not None
        return is_method or self._module.full_name(call.func) in names("gradient_sources")

    def _is_apply(self, call: ast.Call) -> bool:
        arguments = arguments_of(call)
        if method_of(call) not in APPLY_METHODS or not arguments:
            return False
        return method_of(call) == "apply_gradients" or self._gradients.is_gradient(arguments[0].value)

    def _step(self, source: ast.Call, apply: ast.Call, calls: Sequence[ast.Call]) -> TapeStep:
        self._check_surroundings(calls)
        if method_of(source) != "gradient":
            raise UnsureError(GRAPH)
        first, last = self._statements(source, apply)
        loss, variables = self._arguments(source)
        self._check_optimizer(source, apply)
        values = [loss, *(bound.value for bound in self._module.binding(loss).bounds)]
        if any(isinstance(value, ast.List | ast.Tuple | ast.Dict | ast.ListComp) for value in values):
            raise UnsureError(
                "gradient() gets a list, tuple or dict of losses, but backward() accepts one loss. Inside the `with` "
                "block of the tape, write total_loss = tf.add_n(losses). Then pass total_loss to gradient()."
            )
        self._check_apply(apply)
        self._check_list(source)
        if not AppliedGradients(self._module, source, variables).is_applied(apply):
            raise UnsureError(
                "It is unclear whether the step applies all gradients, each to its own variable. If so, write "
                f"apply_gradients(zip(gradients, {variables})), where gradients is the complete list of gradients. "
                "Otherwise, write the step in PyTorch by hand. "
                "To exclude a parameter from the step, set its .grad to None before step()."
            )
        return TapeStep(source, first, loss, variables, self._module.code(owner_of(apply)), apply, last)

    def _check_surroundings(self, calls: Sequence[ast.Call]) -> None:
        if any(method_of(call) in SCALED for call in calls):
            raise UnsureError(
                "The loss is scaled. In PyTorch, call scaler.unscale_(optimizer) of torch.amp.GradScaler before the "
                "clip."
            )
        used = self._module.used_names
        if any(name.startswith(DISTRIBUTED) and name.rpartition(".")[2] in names("replicas") for name in used):
            raise UnsureError(
                "Each replica clips its own gradients, and TensorFlow then adds the clipped gradients up. In tf.keras "
                "2, clipnorm= and similar arguments clip the sum instead. In PyTorch, DistributedDataParallel averages "
                "gradients in backward(), before the clip. To clip before the sum, run the forward pass and backward() "
                "in `with model.no_sync():`, clip, then call torch.distributed.all_reduce(parameter.grad) for each "
                "parameter. To clip the sum, clip after the all_reduce."
            )
        if any(name.startswith("horovod.") for name in used):
            raise UnsureError(
                "Horovod averages gradients. If Horovod averages before the clip, call optimizer.synchronize() before "
                "the clip in PyTorch. Then call step() inside `with optimizer.skip_synchronize():`. If Horovod "
                "averages after the clip, do not wrap the optimizer in hvd.DistributedOptimizer in PyTorch. After the "
                "clip, call hvd.allreduce_(parameter.grad) for each parameter."
            )
        tapes = [call for call in calls if method_of(call) == "GradientTape"]
        flags = [each.value for tape in tapes for each in arguments_of(tape) if each.keyword in ("", "persistent")]
        if any(self._module.code(flag) != "False" for flag in flags):
            raise UnsureError(PERSISTENT)

    def _statements(self, source: ast.Call, apply: ast.Call) -> tuple[ast.stmt, ast.Expr]:
        first, last = self._module.simple_statement(source), self._module.simple_statement(apply)
        if first is None or last is None or not all(map(self._module.has_own_line, (first, last))):
            raise UnsureError(
                "gradient() or apply_gradients() shares a line or an expression with other code. Write each call in a "
                "statement on a line of its own, as in gradients = tape.gradient(loss, variables)."
            )
        if not isinstance(last, ast.Expr) or last.value is not apply:
            raise UnsureError(
                "The result of apply_gradients() is used. Remove the code that uses the result, because step() returns "
                "None."
            )
        if self._module.block(first) != self._module.block(last):
            raise UnsureError(
                "gradient() and apply_gradients() are in different blocks. If both calls run equally often, write "
                "both calls in one block, with the same indentation. Otherwise, port this step by hand."
            )
        return first, last

    def _arguments(self, source: ast.Call) -> tuple[ast.expr, str]:
        arguments = Arguments(source, ("target", "sources"))
        if not arguments.unknown and len(arguments.passed) < 2:
            raise UnsureError("gradient() has no variables. Pass the loss and the variables.")
        if arguments.unknown:
            raise UnsureError(
                "gradient() has arguments besides the loss and the variables, or starred arguments. Write starred "
                "arguments out. If an argument besides the loss and the variables remains, write this step in PyTorch "
                "by hand. Pass the value of output_gradients= to backward() as gradient=."
            )
        variables = arguments.passed["sources"].value
        if isinstance(variables, ast.Dict):
            raise UnsureError("gradient() gets the variables as a dict. Pass a list, such as list(variables.values()).")
        return arguments.passed["target"].value, self._module.code(variables)

    def _check_apply(self, apply: ast.Call) -> None:
        arguments = arguments_of(apply)
        has_other = any(each.star or each.keyword not in ("", "grads_and_vars") for each in arguments)
        if has_other or len(arguments) > (1 if method_of(apply) == "apply_gradients" else 2):
            accepted = "zip(gradients, variables)" if method_of(apply) == "apply_gradients" else "gradients, variables"
            raise UnsureError(
                f"unified-clip port rewrites {method_of(apply)}() only in the form {method_of(apply)}({accepted}). "
                "Pass the gradients and the variables in this form, and remove name=. If another argument remains, "
                "write the step in PyTorch by hand."
            )

    def _check_optimizer(self, source: ast.Call, apply: ast.Call) -> None:
        if not isinstance(owner_of(apply), Target):
            raise UnsureError("The optimizer is not a variable here. Assign the optimizer first: optimizer = ...")
        lines = range(self._module.position(source)[0], self._module.end(apply) + 1)
        nodes = [bound.node for bound in self._module.binding(owner_of(apply)).bounds if bound.node is not None]
        if any(self._module.position(node)[0] in lines for node in nodes):
            raise UnsureError(
                "The optimizer is assigned after the call of gradient(). Assign the optimizer before that call."
            )

    def _check_list(self, source: ast.Call) -> None:
        for read in self._module.assigned(source).reads:
            if isinstance(self._module.parents[read], ast.List):
                raise UnsureError(
                    "The file puts the result of gradient() into a list, as if the result were a single gradient. "
                    "Write this step in PyTorch by hand: call loss.backward(), and clip [variable.grad]."
                )


class AppliedGradients:
    """Decides whether a training step applies the gradients that the call `source` returns."""

    def __init__(self, module: Module, source: ast.Call, variables: str) -> None:
        self._module, self._source, self._variables = module, source, variables
        self._in_progress: set[object] = set()

    def is_applied(self, apply: ast.Call) -> bool:
        arguments = [argument.value for argument in arguments_of(apply)]
        if len(arguments) == 2:
            return self._is_list(arguments[0]) and self._module.code(arguments[1]) == self._variables
        return self._are_pairs(arguments[0])

    def _are_pairs(self, node: ast.expr) -> bool:
        match node:
            case ast.Name():
                return self._all_values(node, self._are_pairs)
            case (
                ast.ListComp(elt=ast.Tuple(elts=[_, variable]), generators=[loop])
                | ast.GeneratorExp(elt=ast.Tuple(elts=[_, variable]), generators=[loop])
            ):
                is_kept = isinstance(loop.target, ast.Tuple) and (
                    self._module.code(variable) == self._module.code(loop.target.elts[-1])
                )
                return is_kept and not loop.ifs and self._are_pairs(loop.iter)
            case ast.Call(func=ast.Name(id="list"), args=[argument], keywords=[]):
                return self._are_pairs(argument)
            case ast.Call(func=ast.Name(id="zip"), args=[gradients, variables], keywords=[]):
                return self._is_list(gradients) and self._module.code(variables) == self._variables
        return False

    def _is_list(self, node: ast.expr) -> bool:
        """Return whether an expression is a list of all gradients, in the order of the variables."""
        match node:
            case ast.Call() if node is self._source:
                return True
            case ast.Name():
                return self._all_values(node, self._is_list)
            case ast.ListComp(generators=[loop]):
                return not loop.ifs and self._is_list(loop.iter)
            case ast.Subscript(value=inner):
                return self._module.code(node).endswith("[0]") and self._is_clipped(inner)
            case ast.Call(func=ast.Name(id="list"), args=[argument], keywords=[]):
                return self._is_list(argument)
        return False

    def _is_clipped(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        function = clip_function(self._module.full_name(node.func))
        is_clip = function is not None and function.replacement == "clip_by_global_norm"
        return is_clip and self._is_list(arguments_of(node)[0].value)

    def _is_changed(self, binding: Binding) -> bool:
        for parent in (self._module.parents[read] for read in binding.reads):
            is_set = isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load)
            is_method = isinstance(parent, ast.Attribute) and parent.attr in LIST_CHANGING_METHODS
            if is_method or is_set:
                return True
        return False

    def _all_values(self, node: ast.Name, judge: Callable[[ast.expr], bool]) -> bool:
        binding = self._module.binding(node)
        if binding.key is None or self._is_changed(binding):
            return False
        if binding.key in self._in_progress:
            return True
        self._in_progress.add(binding.key)
        accepted = [
            bound.value is not None
            and (judge(bound.value) if not bound.path else list(bound.path) == [0] and self._is_clipped(bound.value))
            for bound in binding.bounds
        ]
        self._in_progress.discard(binding.key)
        return all(accepted)
