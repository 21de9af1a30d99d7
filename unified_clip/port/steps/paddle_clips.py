"""Find the clips that Paddle's optimizers get as `grad_clip=`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from ...source.module import Binding, Module
from ...source.tree import DEFINITIONS, Argument, is_name
from ..found_clip import FoundClip
from ..to_config import UnsureError
from .paddle_optimizers import SOMETHING_ELSE, Optimizer, PaddleOptimizers, known_values
from .paddle_steps import OTHERWISE, is_harmless, is_test

NOT_ASSIGNED = (
    "The optimizer that gets this clip was not found. If this file creates the optimizer, write {}, and pass "
    f"grad_clip=clip to the optimizer. {OTHERWISE}"
)

OTHER_CLIP = "Another clip of this optimizer cannot be rewritten. Port both clips by hand."

SELECTING_ARGUMENTS = {
    "need_clip": "need_clip= selects the parameters to clip. Clip only these parameters by hand, before each "
    "optimizer.step().",
    "group_name": "group_name= is used in static programs only. Remove group_name=.",
    "auto_skip_clip": "With auto_skip_clip=, Paddle clips only if the norm exceeds the threshold or is NaN. Remove "
    "auto_skip_clip=.",
}
"""{argument that only Paddle's clips have: why a clip with this argument is flagged}"""


STATIC = re.compile(
    r"paddle\.(enable_static$|static\.(Executor|program_guard|Program|CompiledProgram|data|nn|amp|append_backward|gradients)\b"
    r"|fluid\.(program_guard|Executor|ParallelExecutor|CompiledProgram|data\b|layers\.data\b|Program))"
)

DEFAULT_PROGRAM = re.compile(r"paddle\.(fluid|static)\.default_(main|startup)_program$")


@dataclass(frozen=True)
class ClipSource:
    clips: Sequence[FoundClip]
    binding: Binding | None
    uses: Sequence[Argument]

    may_be_none: bool


class PaddleClips:
    """Match the clips of a file with the optimizers that get them as grad_clip=."""

    def __init__(self, module: Module, clips: Sequence[FoundClip]) -> None:
        self._module = module
        self._clips = {clip.call: clip for clip in clips if clip.call is not None}
        self._static = is_static(module)
        optimizers = PaddleOptimizers(module)
        self.optimizers: dict[Argument, Optimizer] = {}

        self.why_not: dict[FoundClip, str] = {}
        sources: dict[object, ClipSource] = {}
        for clip in clips:
            try:
                key, source = self._source(clip)
                self.optimizers |= {argument: optimizers.optimizer_of(argument) for argument in source.uses}
                sources[key] = source
            except UnsureError as error:
                self.why_not[clip] = str(error)
        self.sources = self._complete(list(sources.values()))

    def _complete(self, sources: list[ClipSource]) -> list[ClipSource]:
        kept = {argument for source in sources for argument in source.uses}
        complete = []
        for source in sources:
            reasons = [self.why_not[clip] for clip in source.clips if clip in self.why_not]
            arguments = {argument for use in source.uses for argument in self.optimizers[use].arguments}
            if not reasons and arguments <= kept:
                complete.append(source)
                continue
            for clip in source.clips:
                self.why_not.setdefault(clip, (reasons or [OTHER_CLIP])[0])
        return complete if len(complete) == len(sources) else self._complete(complete)

    def _source(self, clip: FoundClip) -> tuple[object, ClipSource]:
        call = cast(ast.Call, clip.call)
        self._check(clip)
        node: ast.expr = call
        parent = self._module.parents[call]
        if isinstance(parent, ast.IfExp) and parent.test is not call:
            node = parent if is_name(parent.orelse if parent.body is call else parent.body, "None") else call
        passed = self._module.argument(node)
        if passed is not None and passed[1].keyword == "grad_clip":
            return node, ClipSource([clip], None, [passed[1]], may_be_none=node is not call)
        binding = self._module.binding(self._module.only_target(node))
        if binding.key is None:
            has_branches = isinstance(parent, ast.IfExp)
            line = "an if statement with clip = ... in each branch" if has_branches else "clip = ... in a separate line"
            raise UnsureError(NOT_ASSIGNED.format(line))
        return binding.key, self._source_in(binding)

    def _check(self, clip: FoundClip) -> None:
        if self._static:
            raise UnsureError(
                "The file builds static programs, which PyTorch does not have. Write the training step in PyTorch by "
                "hand: call backward(), clip the gradients, and call step()."
            )
        for name, reason in SELECTING_ARGUMENTS.items():
            if name in clip.arguments.passed:
                raise UnsureError(reason)

    def _source_in(self, binding: Binding) -> ClipSource:
        clips = []
        may_be_none = self._may_be_inherited(binding)
        for value in known_values(binding):
            inner = value
            if isinstance(value, ast.IfExp):
                inner = value.orelse if is_name(value.body, "None") else value.body
            may_be_none = may_be_none or is_name(value, "None") or inner is not value
            if is_name(value, "None"):
                continue
            clip = self._clips.get(cast(ast.Call, inner))
            if clip is None:
                line = self._module.position(value)[0]
                raise UnsureError(SOMETHING_ELSE.format(binding.text, "a clip of Paddle", line))
            if clip in self.why_not:
                raise UnsureError(self.why_not[clip])
            self._check(clip)
            clips.append(clip)
        if others := self._module.uses_on_other_objects(binding):
            code, line = self._module.code(others[0]), self._module.position(others[0])[0]
            raise UnsureError(
                f"{code} in line {line} might be the same attribute as {binding.text}. If these are two "
                f"attributes, rename one of them. {OTHERWISE}"
            )
        uses = list(self._uses(binding))
        if not uses:
            raise UnsureError(
                f"No optimizer in this file gets {binding.text} as grad_clip=. If no other file uses {binding.text}, "
                f"remove {binding.text}, because it clips nothing. {OTHERWISE}"
            )
        return ClipSource(clips, binding, uses, may_be_none)

    def _may_be_inherited(self, binding: Binding) -> bool:
        """Return whether the file sets the attribute only inside an `if`."""
        nodes = [bound.node for bound in binding.bounds if bound.node is not None]
        around = [self._module.enclosing(node, ast.If, *DEFINITIONS) for node in nodes]
        return "." in binding.text and all(isinstance(outer, ast.If) for outer in around)

    def _uses(self, binding: Binding) -> Iterator[Argument]:
        for read in binding.reads:
            passed = self._module.argument(read)
            if passed is not None and passed[1].keyword == "grad_clip":
                yield passed[1]
            elif not is_test(self._module, read) and not is_harmless(self._module, read):
                line, name = self._module.position(read)[0], binding.text
                raise UnsureError(
                    f"Line {line} uses {name}, but not as grad_clip={name}. To pass {name} to an optimizer, write "
                    f"grad_clip={name}. {OTHERWISE}"
                )


def is_static(module: Module) -> bool:
    """Return whether a file uses static programs, as in paddle.fluid without dygraph."""
    used = module.used_names
    in_fluid = any(name.startswith("paddle.fluid.") for name in used)
    eager = any(name.startswith("paddle.fluid.dygraph") for name in used)
    return any(map(STATIC.match, used)) or _uses_default_program(module) or (in_fluid and not eager)


def _uses_default_program(module: Module) -> bool:
    """Ignore the attribute random_seed, because code in dynamic mode sets random_seed, too."""
    calls = [call for call in module.calls if DEFAULT_PROGRAM.match(module.full_name(call.func))]
    parents = [module.parents[call] for call in calls]
    return any(not isinstance(parent, ast.Attribute) or parent.attr != "random_seed" for parent in parents)
