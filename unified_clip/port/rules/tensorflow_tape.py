"""Training steps of TensorFlow with a gradient tape, and limits that their Keras optimizers take. PyTorch's step has
backward(), the clips, and step()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import libcst as cst

from .. import suggest
from ..catalog import KERAS_RULES
from ..clip_call import FoundClip
from ..file_rewrite import FileRewrite
from ..source.edits import Edits
from ..source.module import Module
from ..source.syntax_tree import Target
from ..steps.tape import APPLIES, StepRange, TapeStep, TapeSteps
from ..to_config import UnsureError
from . import native_function
from .need_clip import is_need_clip
from .registry import Stage, register

STEPS_UNSEEN = "Its training steps are not in this file: clip before each of them."
NO_STEP = "It belongs to no step, from the gradient to apply_gradients(), that can be seen."
HARMLESS = {"iterations", "learning_rate", "lr", "variables", "weights", "get_weights", "set_weights", "build", "name"}
"""Attributes of an optimizer that may be read."""

OTHER_FLAGGED = "Another clip of this step cannot be ported."
ZERO = "A limit of 0 or None is off in Keras 3, but not in older versions."
SEVERAL_LIMITS = "Several limits are set, which Keras 3 rejects. Older versions apply them one after the other."
THRESHOLD_UNSEEN = "Its threshold cannot be read at the steps."

ONE_NUMBER = "The loss has to be one number: a tape sums up others, and backward() rejects them."
IN_PLACE = "Code that reads the gradients after the step gets clipped ones. TensorFlow does not change them."
OFF_WHEN_RUN = "Keras 3 does not clip with a limit of 0 or None, but unified_clip does: check that it is neither."


def is_of_keras(clip: FoundClip) -> bool:
    return clip.function is None and isinstance(clip.node, cst.Arg) and not is_need_clip(clip)


def is_of_tensorflow(clip: FoundClip) -> bool:
    return is_of_keras(clip) or (clip.function is not None and clip.function.framework == "tensorflow")


@register(Stage.STEPS, matches=is_of_tensorflow, target="torch")
def rewrite(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    """Rewrite whole steps, with the limits of Keras optimizers. Another rule renames the functions in them."""
    tapes = TapeRewrite(file, clips)
    tapes.exclude_incomplete()
    for clip, reason in tapes.reasons.items():
        file.flag(clip, reason)
    tapes.write()
    for clip in clips:
        file.check(clip, ONE_NUMBER)
        if is_of_keras(clip):
            file.check(clip, IN_PLACE)
            means = file.sites[clip].meaning
            if means is not None and means.threshold:
                file.check(clip, OFF_WHEN_RUN)


class TapeRewrite:
    """The steps of a file that clip, and the changes of those that can be rewritten."""

    def __init__(self, file: FileRewrite, clips: Sequence[FoundClip]) -> None:
        """`clips`: of TensorFlow and of Keras optimizers."""
        self._file, self._module = file, file.module
        self._steps = TapeSteps(file.module, file.gradients)
        self._ranges: dict[FoundClip, Sequence[StepRange]] = {}
        self.reasons: dict[FoundClip, str] = {}
        """Why clips cannot be rewritten."""

        for clip in clips:
            try:
                self._ranges[clip] = self._ranges_of(clip)
            except UnsureError as unsure:
                self.reasons[clip] = str(unsure)

    def exclude_incomplete(self) -> None:
        """Exclude steps that contain a clip which cannot be rewritten."""
        flagged = [*self._file.with_verdict("flagged"), *self.reasons]
        excluded = {self._steps.range_of(clip.node) for clip in flagged if not isinstance(clip.node, cst.Arg)}
        excluded |= self._of_several_lists()
        changed = True
        while changed:
            changed = False
            for clip, ranges in self._ranges.items():
                if clip not in self.reasons and any(each in excluded for each in ranges):
                    self.reasons[clip] = OTHER_FLAGGED
                    changed = True
                    excluded |= set(ranges)

    def _of_several_lists(self) -> set[StepRange | None]:
        """Return the steps whose optimizer steps other variables elsewhere. PyTorch's would step all of them."""
        ranges = {each for ranges in self._ranges.values() for each in ranges}
        steps = {each: each.step for each in ranges if each.step is not None}
        lists: dict[object, set[str]] = {}
        for step in self._steps.all():
            lists.setdefault(self._optimizer(step), set()).add(step.variables)
        return {each for each, step in steps.items() if len(lists[self._optimizer(step)]) > 1}

    def _optimizer(self, step: TapeStep) -> object:
        """Return a key of the optimizer."""
        binding = self._module.binding(cast(cst.Attribute, step.apply.func).value)
        return step.optimizer if binding is None else binding.key

    def write(self) -> None:
        """Record the changes."""
        file = self._file
        lines: dict[TapeStep, list[str]] = {}
        for clip, ranges in self._ranges.items():
            if clip in self.reasons:
                continue
            for step in (each.step for each in ranges if each.step is not None):
                clips = lines.setdefault(step, [])
                if isinstance(clip.node, cst.Arg):
                    name, line = self._line(clip, step)
                    clips.append(line)
                    file.rewrite(clip, name, family="pytorch" if file.native else "paddle")
                elif file.native:
                    name = native_function.in_step(self._module, clip, step).write(file.edits)
                    file.rewrite(clip, name, family="pytorch")
            if isinstance(clip.node, cst.Arg):
                file.edits.remove_argument(clip.node)
                file.edits.needs_import("torch" if file.native else "unified_clip.torch")
        for step, clips in lines.items():
            _write_step(file.edits, self._module, step, clips)

    def _ranges_of(self, clip: FoundClip) -> Sequence[StepRange]:
        """Return the steps that contain a clip. Raises UnsureError."""
        if isinstance(clip.node, cst.Arg):
            ranges = self._ranges_of_keras(clip, clip.node)
        else:
            each = self._steps.range_of(clip.node)
            if each is None:
                raise UnsureError(NO_STEP)
            ranges = [each]
        for each in ranges:
            if each.step is None:
                raise UnsureError(each.reason)
            if self._file.native and not isinstance(clip.node, cst.Arg):
                native_function.in_step(self._module, clip, each.step)
        return ranges

    def _ranges_of_keras(self, clip: FoundClip, argument: cst.Arg) -> list[StepRange]:
        target = self._module.parents[cast(cst.Call, clip.call)]
        targets = target.targets if isinstance(target, cst.Assign) else ()
        binding = self._module.binding(targets[0].target) if len(targets) == 1 else None
        reads = binding.reads if binding is not None and len(binding.bounds) == 1 else ()
        ranges = self._steps.applied_by(binding) if binding is not None else []
        if binding is not None and self._module.uses_on_other_objects(binding):
            raise UnsureError(STEPS_UNSEEN)
        given = [each.keyword.value for each in cast(cst.Call, clip.call).args if each.keyword is not None]
        if sum(name in KERAS_RULES for name in given) > 1:
            raise UnsureError(SEVERAL_LIMITS)
        methods = [self._module.parents[each] for each in reads]
        names = [each.attr.value if isinstance(each, cst.Attribute) else "" for each in methods]
        if not ranges or sum(name in APPLIES for name in names) != len(ranges) or set(names) - HARMLESS - set(APPLIES):
            raise UnsureError(STEPS_UNSEEN)
        steps = [each.step for each in ranges if each.step is not None]
        if not all(self._module.has_same_value_at(argument.value, step.apply) for step in steps):
            raise UnsureError(THRESHOLD_UNSEEN)
        means = self._file.sites[clip].meaning
        if means is None or (not means.threshold and means.config.threshold == 0):
            raise UnsureError(ZERO)
        return ranges

    def _line(self, clip: FoundClip, step: TapeStep) -> tuple[str, str]:
        """Return the name that replaces the limit of an optimizer, and the line."""
        argument = cast(cst.Arg, clip.node)
        rule, limit = KERAS_RULES[cast(cst.Name, argument.keyword).value], self._module.code(argument.value)
        if not self._file.native:
            name = f"unified_clip.torch.{suggest.CLASSES[rule]}"
            return name, f"{name}({limit}).clip_({step.variables})"
        name = native_function.torch_function(rule)
        if rule == "norm":
            variable = self._module.unused_name("variable")
            return name, f"for {variable} in {step.variables}:\n    {name}({variable}, {limit})"
        return name, f"{name}({step.variables}, {limit})"


def _write_step(edits: Edits, module: Module, step: TapeStep, clips: Sequence[str] = ()) -> None:
    """Record the changes of a step. `clips`: the lines before optimizer.step()."""
    body = module.enclosing(step.source, cst.FunctionDef) or module.tree
    variable, grad = module.unused_name("variable", body), module.unused_name("grad", body)
    loss = _in_brackets(module, step.loss)
    edits.insert(step.source_statement, [f"{step.optimizer}.zero_grad()", f"{loss}.backward()"])
    edits.replace(step.source, f"[{variable}.grad for {variable} in {step.variables}]")

    def applied(updated: Any) -> Sequence[str]:
        call = cast(cst.Call, updated.value)
        code = [module.tree.code_for_node(argument.value) for argument in call.args]
        pairs = code[0] if len(code) == 1 else f"zip({', '.join(code)})"
        if isinstance(call.args[0].value, cst.GeneratorExp) and not call.args[0].value.lpar:
            pairs = f"({pairs})"
        loop = f"for {grad}, {variable} in {pairs}:\n    {variable}.grad = {grad}"
        return [loop, *clips, f"{step.optimizer}.step()"]

    edits.rewrite(step.apply_statement, applied)


def _in_brackets(module: Module, node: cst.BaseExpression) -> str:
    code = module.code(node)
    return code if isinstance(node, Target | cst.Call | cst.Subscript) or node.lpar else f"({code})"
