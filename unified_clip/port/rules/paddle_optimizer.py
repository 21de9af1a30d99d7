"""Clips that optimizers of Paddle take: `Adam(grad_clip=clip)`. In PyTorch, the clip stands before each step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import cast

import libcst as cst

from ..clip_call import FoundClip
from ..file_rewrite import FileRewrite
from ..source.edits import Edits
from ..source.module import Module
from ..steps.paddle import ClipSource, Optimizer, OptimizerStep, Wiring, is_fresh
from ..to_config import UnsureError
from . import native_function
from .native_function import WriteClip
from .need_clip import is_need_clip
from .paddle_class import is_class
from .registry import Stage, register

NEED_CLIP = "Paddle excludes parameters with need_clip=False: set need_clip = False on PyTorch's parameters, too."
EXCLUDE = "Paddle excludes parameters with need_clip=False: do not pass those to PyTorch's function."
NEED_CLIP_IGNORED = "PyTorch's functions clip parameters with need_clip=False, too."
IN_PLACE = "Code that reads or accumulates gradients after the step gets clipped ones. Paddle may clip copies."
ANNOTATION = "It is a type annotation, and clips nothing."
NEW_PARTS = ("add_sublayer", "add_parameter", "append", "extend", "insert")
"""Methods that give a model more parameters."""

ALL = '[parameter for group in {}.param_groups for parameter in group["params"]]'


@register(Stage.STEPS, matches=is_class, target="torch")
def rewrite(file: FileRewrite, clips: Sequence[FoundClip]) -> None:
    """Rewrite the clips that optimizers take, and rename the classes in type annotations."""
    makers = [clip for clip in clips if clip.call is not None]
    if makers:
        if file.native and any(map(is_need_clip, file.clips)):
            for clip in makers:
                file.flag(clip, NEED_CLIP_IGNORED)
            return
        _rewrite_steps(file, makers)
    _rename_annotations(file, makers, [clip for clip in clips if clip.call is None])
    for clip in clips:
        file.check(clip, EXCLUDE if file.native else NEED_CLIP, IN_PLACE)


def _rewrite_steps(file: FileRewrite, makers: Sequence[FoundClip]) -> None:
    wiring = Wiring(file.module, makers)
    writer = Writer(file.module, file.edits, wiring)
    for source in wiring.sources:
        try:
            write_clip = native_function.of_class(file.module, source) if file.native else None
            writer.write(source, write_clip)
        except UnsureError as unsure:
            for maker in source.makers:
                wiring.reasons[maker.node] = str(unsure)
            continue
        for maker in source.makers:
            if file.native:
                name = native_function.remove(file.module, file.edits, source, maker)
                file.rewrite(maker, name, family="pytorch")
            else:
                file.rename(maker, "torch")
    for maker in makers:
        if maker.node in wiring.reasons:
            file.flag(maker, wiring.reasons[maker.node])


def _rename_annotations(file: FileRewrite, makers: Sequence[FoundClip], named: Sequence[FoundClip]) -> None:
    """Rename classes in type annotations, if all clips of the file are renamed."""
    for clip in named:
        if file.module.enclosing(clip.node, cst.Annotation) is None:
            continue
        if file.native:
            file.leave(clip, ANNOTATION)
        elif all(file.sites[maker].verdict == "rewritten" for maker in makers):
            file.rename(clip, "torch")


class Writer:
    """Insert a clip before each step of its optimizers."""

    def __init__(self, module: Module, edits: Edits, wiring: Wiring) -> None:
        self._module, self._edits, self._wiring = module, edits, wiring

    def write(self, source: ClipSource, write_clip: WriteClip | None = None) -> None:
        """Insert the lines, by `write_clip` instead of a call of the clip. Raises UnsureError before any change."""
        optimizers = [self._wiring.optimizers[self._wiring.by_argument[each]] for each in source.uses]
        if write_clip is not None and any(set(each.arguments) - set(source.uses) for each in optimizers):
            raise UnsureError("The optimizer may have another clip, too.")
        for argument in source.uses:
            optimizer = self._wiring.optimizers[self._wiring.by_argument[argument]]
            self._edits.remove_argument(argument)
            name = self._clip_name(argument, optimizer, hoist=write_clip is None)
            for step in optimizer.steps:
                self._put(step, optimizer, name, source.may_be_none, write_clip or _call)

    def _clip_name(self, argument: cst.Arg, optimizer: Optimizer, hoist: bool) -> str:
        """Return the name of the clip at the steps. A clip without one gets a new variable."""
        code = self._module.code(argument.value)
        if not hoist:
            return code
        if isinstance(argument.value, cst.Name | cst.Attribute) and all(
            self._module.has_same_value_at(argument.value, step.call) for step in optimizer.steps
        ):
            return code
        name = self._module.unused_name(f"{optimizer.binding.text}_clip")
        statement = cast(cst.BaseSmallStatement, self._module.small_statement(argument))
        self._edits.hoist(statement, name, argument.value)
        return name

    def _put(self, step: OptimizerStep, optimizer: Optimizer, clip: str, may_be_none: bool, write: WriteClip) -> None:
        lines = [] if step.kind != "scaler" else list(self._unscaled(step, optimizer))
        if optimizer.grouped:
            group = self._module.unused_name("group")
            clips = _block(f"for {group} in {optimizer.binding.text}.param_groups", write(clip, f'{group}["params"]'))
        else:
            clips = write(clip, self._parameters(step, optimizer))
        if may_be_none:
            clips = _block(f"if {clip} is not None", clips)
        self._edits.insert(step.statement, [*lines, *clips])
        if step.kind == "minimize":
            self._edits.change(step.call, _as_step)

    def _parameters(self, step: OptimizerStep, optimizer: Optimizer) -> str:
        given = optimizer.parameters
        fresh = given is not None and is_fresh(given) and self._module.has_same_value_at(given, step.call)
        if given is not None and fresh and not self._has_new_parts(given):
            return self._module.code(given)
        return ALL.format(optimizer.binding.text)

    def _has_new_parts(self, given: cst.BaseExpression) -> bool:
        """Return whether the file adds attributes or layers, and perhaps parameters, to the model."""
        model = self._module.code(given).removesuffix(".parameters()")
        found = [each.target for each in self._module.nodes if isinstance(each, cst.AssignTarget)]
        calls = [each for each in self._module.nodes if isinstance(each, cst.Call)]
        methods = [each.func for each in calls if isinstance(each.func, cst.Attribute)]
        found += [each for each in methods if each.attr.value in NEW_PARTS]
        if any(self._module.code(each).startswith(f"setattr({model},") for each in calls):
            return True
        return any(self._module.code(each).startswith(f"{model}.") for each in found)

    def _unscaled(self, step: OptimizerStep, optimizer: Optimizer) -> Iterator[str]:
        """Yield scaler.unscale_(optimizer), unless it stands before the step."""
        scaler = self._module.code(cast(cst.Attribute, step.call.func).value)
        who = optimizer.binding.text
        code = f"{scaler}.unscale_({who})"
        ends = re.compile(rf"\.update\(|\.step\([^)]*\b{re.escape(who)}\b|\b{re.escape(who)}\.step\(")
        if not self._is_done_before(step.statement, code, ends):
            yield code

    def _is_done_before(self, statement: cst.CSTNode, code: str, ends: re.Pattern[str]) -> bool:
        """Return whether a line stands before a step, after the end of the previous step, in the same iteration."""
        inner = self._module.parents[statement]
        for block in self._module.ancestors(inner):
            if isinstance(block, cst.IndentedBlock | cst.Module):
                lines = list(block.body)
                for line in reversed(lines[: next(i for i, each in enumerate(lines) if each is inner)]):
                    text = self._module.code(line).partition("#")[0].strip()
                    if text in (code, code.replace("(", "(optimizer=")):
                        return True
                    if ends.search(text):
                        return False
            elif isinstance(block, cst.For | cst.While | cst.FunctionDef):
                return False
            inner = block if isinstance(block, cst.BaseStatement) else inner
        return False


def _block(header: str, lines: Sequence[str]) -> list[str]:
    """Return a compound statement."""
    return ["\n".join([f"{header}:", indent("\n".join(lines), "    ")])]


def _call(clip: str, parameters: str) -> list[str]:
    return [f"{clip}.clip_({parameters})"]


def _as_step(updated: cst.Call) -> cst.Call:
    func = cast(cst.Attribute, updated.func)
    return updated.with_changes(func=func.with_changes(attr=cst.Name("step")), args=[])
