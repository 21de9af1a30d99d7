"""Which steps of TensorFlow become PyTorch's, with all their clips, and the changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import libcst as cst

from .. import suggest
from ..catalog import KERAS_RULES
from ..clip_call import Found
from ..clip_site import Meaning
from ..source.edits import Edits
from ..source.gradient_flow import Gradients
from ..source.module import Module
from ..to_config import UnsureError
from . import native_calls, tensorflow_tape
from .tensorflow_tape import APPLIES, Part, Steps, TapeStep

STEPS_ELSEWHERE = "its steps are not in sight: clip before each of them"
NO_STEP = "it is in no step that can be seen, from the gradient to apply_gradients()"
HARMLESS = {"iterations", "learning_rate", "lr", "variables", "weights", "get_weights", "set_weights", "build", "name"}
"""What may be read of an optimizer."""

ANOTHER = "another clip of this step cannot be ported"
OFF = "a limit of 0 or None is off in Keras 3, and not in older versions"


class TapePort:
    """The steps in a file that clip: those that can be ported, or why not."""

    def __init__(
        self,
        module: Module,
        gradients: Gradients,
        found: Sequence[Found],
        meanings: Mapping[Found, Meaning | None],
        native: bool,
    ) -> None:
        """`found`: the clips that may be ported, of TensorFlow and of Keras' optimizers."""
        self._module, self._meanings, self._native = module, meanings, native
        self._steps = Steps(module, gradients)
        self._parts: dict[Found, Sequence[Part]] = {}
        self.reasons: dict[Found, str] = {}
        """Of the clips that stay."""

        for each in found:
            try:
                self._parts[each] = self._parts_of(each)
            except UnsureError as unsure:
                self.reasons[each] = str(unsure)

    def stay(self, others: Sequence[Found]) -> None:
        """What hangs together with clips that stay, stays."""
        bad = {self._steps.part(each.node) for each in [*others, *self.reasons] if not isinstance(each.node, cst.Arg)}
        bad |= self._of_several_lists()
        changed = True
        while changed:
            changed = False
            for each, parts in self._parts.items():
                if each not in self.reasons and any(part in bad for part in parts):
                    self.reasons[each] = ANOTHER
                    changed = True
                    bad |= set(parts)

    def _of_several_lists(self) -> set[Part | None]:
        """The steps of optimizers that step other variables elsewhere: PyTorch's would step all that it holds."""
        parts = {part for parts in self._parts.values() for part in parts}
        steps = {part: part.step for part in parts if part.step is not None}
        lists: dict[object, set[str]] = {}
        for step in self._steps.all():
            lists.setdefault(self._optimizer(step), set()).add(step.variables)
        return {part for part, step in steps.items() if len(lists[self._optimizer(step)]) > 1}

    def _optimizer(self, step: TapeStep) -> object:
        """What tells optimizers apart."""
        binding = self._module.binding(cast(cst.Attribute, step.apply.func).value)
        return step.optimizer if binding is None else binding.key

    def write(self, edits: Edits) -> dict[Found, str]:
        """The changes, but for the names of functions; what became of clips that are no functions' names."""
        became: dict[Found, str] = {}
        clips: dict[TapeStep, list[str]] = {}
        for each, parts in self._parts.items():
            if each in self.reasons:
                continue
            for step in (part.step for part in parts if part.step is not None):
                lines = clips.setdefault(step, [])
                if isinstance(each.node, cst.Arg):
                    became[each], line = self._line(each, step)
                    lines.append(line)
                elif self._native:
                    became[each] = native_calls.in_step(self._module, each, step).write(edits)
            if isinstance(each.node, cst.Arg):
                edits.remove_argument(each.node)
                edits.needs_import("torch" if self._native else "unified_clip.torch")
        for step, lines in clips.items():
            tensorflow_tape.write(edits, self._module, step, lines)
        return became

    def _parts_of(self, found: Found) -> Sequence[Part]:
        """The steps that a clip is in. Raises UnsureError."""
        if isinstance(found.node, cst.Arg):
            parts = self._parts_of_keras(found, found.node)
        else:
            part = self._steps.part(found.node)
            if part is None:
                raise UnsureError(NO_STEP)
            parts = [part]
        for part in parts:
            if part.step is None:
                raise UnsureError(part.reason)
            if self._native and not isinstance(found.node, cst.Arg):
                native_calls.in_step(self._module, found, part.step)
        return parts

    def _parts_of_keras(self, found: Found, argument: cst.Arg) -> list[Part]:
        target = self._module.parents[cast(cst.Call, found.call)]
        targets = target.targets if isinstance(target, cst.Assign) else ()
        binding = self._module.binding(targets[0].target) if len(targets) == 1 else None
        reads = binding.reads if binding is not None and len(binding.bounds) == 1 else ()
        parts = self._steps.applied_by(binding) if binding is not None else []
        if binding is not None and self._module.uses_on_other_objects(binding):
            raise UnsureError(STEPS_ELSEWHERE)
        given = [each.keyword.value for each in cast(cst.Call, found.call).args if each.keyword is not None]
        if sum(name in KERAS_RULES for name in given) > 1:
            raise UnsureError("several limits are given, which Keras 3 refuses, and older versions take in their order")
        methods = [self._module.parents[each] for each in reads]
        names = [each.attr.value if isinstance(each, cst.Attribute) else "" for each in methods]
        if not parts or sum(name in APPLIES for name in names) != len(parts) or set(names) - HARMLESS - set(APPLIES):
            raise UnsureError(STEPS_ELSEWHERE)
        steps = [part.step for part in parts if part.step is not None]
        if not all(self._module.has_same_value_at(argument.value, step.apply) for step in steps):
            raise UnsureError("its limit cannot be seen at its steps")
        means = self._meanings.get(found)
        if means is None or (not means.threshold and means.config.threshold == 0):
            raise UnsureError(OFF)
        return parts

    def _line(self, found: Found, step: TapeStep) -> tuple[str, str]:
        """What takes the place of an optimizer's own clipping, and the line."""
        argument = cast(cst.Arg, found.node)
        rule, limit = KERAS_RULES[cast(cst.Name, argument.keyword).value], self._module.code(argument.value)
        if not self._native:
            name = f"unified_clip.torch.{suggest.CLASSES[rule]}"
            return name, f"{name}({limit}).clip_({step.variables})"
        name = native_calls.function(rule)
        if rule == "norm":
            variable = self._module.unused_name("variable")
            return name, f"for {variable} in {step.variables}:\n    {name}({variable}, {limit})"
        return name, f"{name}({step.variables}, {limit})"
