"""Rules that port TensorFlow training steps with `tf.GradientTape` to PyTorch."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import cast

from ...source.edits import Edits
from ...source.module import Binding, Module
from ...source.tree import Argument, Target, arguments_of, owner_of
from .. import suggested_code
from ..catalog import KERAS_RULES
from ..file_rewrite import FileRewrite
from ..found_clip import FoundClip
from ..gradient_flow import APPLY_METHODS
from ..steps.tape import StepRange, TapeStep, TapeSteps
from ..to_config import UnsureError
from .argument import is_need_clip
from .function import OF_INPUT
from .registry import RuleOrder, register

ATTACH = (
    "Call ClipConfig(...).attach_to(optimizer) after you create the optimizer, or clip the gradients before each "
    "optimizer.step()."
)
STEPS_ELSEWHERE = f"The training steps of this optimizer are not in this file. {ATTACH}"
OTHER_CLIP = "Another clip in this step cannot be rewritten. Port both clips by hand."
SEVERAL_LISTS = (
    "This optimizer updates different variables in different steps, but PyTorch's optimizer updates all its "
    "parameters. Port both steps by hand, with an optimizer for each list of variables."
)
OUTSIDE_OF_STEPS = f"This optimizer also applies gradients outside of the training steps. {ATTACH}"
HARMLESS = {"iterations", "learning_rate", "lr", "variables", "weights", "get_weights", "set_weights", "build", "name"}
"""Attributes of an optimizer that do not make a step."""

ONE_NUMBER = (
    "Check that the loss is a single number. TensorFlow's tape adds up a loss of several numbers, but PyTorch's "
    "backward() raises an error."
)
AXES = "Check axes=. PyTorch's layers have another order of axes: for example, the weights of Linear are transposed."
IN_PLACE = (
    "The new code clips gradients in place. TensorFlow's optimizer keeps the gradients unchanged. Check code that "
    "reads gradients after the step."
)
OFF_WHEN_RUN = (
    "Keras 3 does not clip with a threshold of 0 or None. With 0, the new code sets all gradients to 0. With None, "
    "the new code raises an error. Check that the threshold is not 0 or None."
)


def is_of_keras(clip: FoundClip) -> bool:
    return clip.is_optimizer_argument and not is_need_clip(clip)


def is_of_tensorflow(clip: FoundClip) -> bool:
    return is_of_keras(clip) or clip.function.framework == "tensorflow"


@register(RuleOrder.STEPS, matches=is_of_tensorflow, target="torch")
def rewrite(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    tapes = TapeRewrite(file, clips)
    for clip, reason in tapes.why_not.items():
        file.flag(clip, reason)
    tapes.write()
    for clip in clips:
        file.check(clip, ONE_NUMBER, *([AXES] if "axes" in clip.arguments.passed else ()))
        if is_of_keras(clip):
            meaning = file.sites[clip].meaning
            file.check(clip, IN_PLACE, *([OFF_WHEN_RUN] if meaning is not None and meaning.threshold else ()))


class TapeRewrite:
    def __init__(self, file: FileRewrite, clips: Sequence[FoundClip]) -> None:
        self._file, self._module = file, file.module
        self._steps = TapeSteps(file.module, file.gradients)
        self._ranges: dict[FoundClip, Sequence[StepRange]] = {}
        self.why_not: dict[FoundClip, str] = {}
        for clip in clips:
            try:
                self._ranges[clip] = self._ranges_of(clip)
            except UnsureError as error:
                self.why_not[clip] = str(error)
        flagged = [*file.with_verdict("flagged"), *self.why_not]
        self._exclude(self._with_other_variables(), SEVERAL_LISTS)
        self._exclude({self._steps.range_of(clip.node) for clip in flagged if clip.argument is None})

    def _exclude(self, excluded: set[StepRange | None], reason: str = OTHER_CLIP) -> None:
        clips = [clip for clip, ranges in self._ranges.items() if excluded.intersection(ranges)]
        incomplete = [clip for clip in clips if clip not in self.why_not]
        if incomplete:
            self.why_not |= dict.fromkeys(incomplete, reason)
            self._exclude({span for clip in incomplete for span in self._ranges[clip]})

    def _with_other_variables(self) -> set[StepRange | None]:
        """Return the steps of each optimizer that does not always update the same variables."""
        lists: dict[object, set[str]] = {}
        for step in self._steps.all():
            lists.setdefault(self._optimizer(step), set()).add(step.variables)
        ranges = [span for ranges in self._ranges.values() for span in ranges]
        return {span for span in ranges if span.step is not None and len(lists[self._optimizer(span.step)]) > 1}

    def _optimizer(self, step: TapeStep) -> object:
        return self._module.binding(owner_of(step.apply)).key or step.optimizer

    def write(self) -> None:
        file = self._file
        lines: dict[TapeStep, list[str]] = {}
        for clip, ranges in self._ranges.items():
            if clip in self.why_not:
                continue
            for step in (span.step for span in ranges if span.step is not None):
                clips = lines.setdefault(step, [])
                if clip.argument is not None:
                    name, line = self._line(clip.argument, step)
                    clips.append(line)
                    file.rewrite(clip, name, family="paddle")
            if clip.argument is not None:
                file.edits.remove_argument(clip.argument)
                file.edits.add_import("unified_clip.torch")
        for step, clips in lines.items():
            _write_step(file.edits, self._module, step, clips)

    def _ranges_of(self, clip: FoundClip) -> Sequence[StepRange]:
        if variable := suggested_code.other_variable(self._file.gradients, clip):
            raise UnsureError(OF_INPUT.format(variable))
        if clip.argument is not None:
            ranges = self._ranges_of_keras(clip, clip.argument)
        else:
            ranges = [span for span in [self._steps.range_of(clip.node)] if span is not None]
        if not ranges:
            raise UnsureError(
                "This clip is not between gradient() and apply_gradients() of a training step. In PyTorch, write the "
                "clip between loss.backward() and optimizer.step()."
            )
        for span in ranges:
            if span.step is None:
                raise UnsureError(span.reason)
        return ranges

    def _ranges_of_keras(self, clip: FoundClip, argument: Argument) -> list[StepRange]:
        call = cast(ast.Call, clip.call)
        assign = self._module.parents[call]
        targets = assign.targets if isinstance(assign, ast.Assign) else ()
        binding = self._module.binding(targets[0] if len(targets) == 1 else None)
        if others := self._module.uses_on_other_objects(binding):
            raise UnsureError(self._other_use(others[0]))
        ranges = self._steps.applied_by(binding) if len(binding.bounds) == 1 else []
        self._check_uses(binding, ranges)
        steps = [span.step for span in ranges if span.step is not None]
        if not all(self._module.has_same_value_at(argument.value, step.apply) for step in steps):
            raise UnsureError(
                "At a training step, the threshold might be undefined, or differ from its value in this line. If the "
                "threshold never changes, assign the threshold once to a variable at the top of the file. Otherwise, "
                "port this clip by hand."
            )
        return ranges

    def _check_uses(self, binding: Binding, ranges: Sequence[StepRange]) -> None:
        if len(binding.bounds) > 1:
            raise UnsureError(f"The file assigns several values to {binding.text}. Give each optimizer its own name.")
        methods = [self._module.parents[read] for read in binding.reads]
        names = [method.attr if isinstance(method, ast.Attribute) else "" for method in methods]
        if sum(name in APPLY_METHODS for name in names) != len(ranges):
            raise UnsureError(OUTSIDE_OF_STEPS)
        if not ranges:
            raise UnsureError(STEPS_ELSEWHERE)
        for read, name in zip(binding.reads, names, strict=True):
            if name not in HARMLESS and name not in APPLY_METHODS:
                raise UnsureError(self._other_use(read))

    def _other_use(self, node: ast.AST) -> str:
        return f"Line {self._module.position(node)[0]} may also make a step with this optimizer. {ATTACH}"

    def _line(self, argument: Argument, step: TapeStep) -> tuple[str, str]:
        rule, limit = KERAS_RULES[argument.keyword], self._module.code(argument.value)
        name = f"unified_clip.torch.{suggested_code.CLASSES[rule]}"
        return name, f"{name}({limit}).clip_({step.variables})"


def _write_step(edits: Edits, module: Module, step: TapeStep, clips: Sequence[str] = ()) -> None:
    body = module.enclosing_definition(step.source) or module.tree
    variable, grad = module.unused_name("variable", body), module.unused_name("grad", body)
    loss = module.code(step.loss)
    if not isinstance(step.loss, Target | ast.Call | ast.Subscript) and not loss.startswith("("):
        loss = f"({loss})"
    edits.insert_before(step.source_statement, [f"{step.optimizer}.zero_grad()", f"{loss}.backward()"])
    edits.replace(step.source, f"[{variable}.grad for {variable} in {step.variables}]")

    def applied() -> Sequence[str]:
        values = [argument.value for argument in arguments_of(step.apply)]
        code = list(map(edits.updated, values))
        pairs = code[0] if len(code) == 1 else f"zip({', '.join(code)})"
        if module.span(values[0]) != module.text.span(values[0]):  # a generator in the parentheses of the call
            pairs = f"({pairs})"
        loop = f"for {grad}, {variable} in {pairs}:\n    {variable}.grad = {grad}"
        return [loop, *clips, f"{step.optimizer}.step()"]

    edits.rewrite(step.apply_statement, applied)
