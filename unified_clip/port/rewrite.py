"""One file, ported: `port`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import libcst as cst

from . import keras_versions, suggest, trainer_arguments
from .catalog import engines, may_clip, words
from .clip_call import Arguments, Found
from .clip_site import Meaning, Ported, Site, Target
from .find import find, is_tested
from .rules import native_calls
from .rules.paddle_optimizer import Wiring, Writer
from .rules.rename import Renames, is_taken
from .rules.tape_rewrite import STEPS_ELSEWHERE, TapePort
from .source.edits import Edits
from .source.gradient_flow import Gradients
from .source.module import Module
from .source.parse_guard import identifiers
from .to_config import UnsureError, meaning, of_family

NEED_CLIP = "parameters that Paddle leaves out (need_clip=False) need the attribute need_clip in PyTorch too"
NEED_CLIP_NATIVE = "parameters that Paddle leaves out (need_clip=False) have to be left out of the call"
ONE_NUMBER = "the loss has to be one number: the tape adds up others, and backward() refuses them"
IN_PLACE = "what reads the gradients after the step finds them clipped, where TensorFlow keeps them as they were"
IN_PLACE_PADDLE = "what reads the gradients after the step, or adds to them, finds them clipped; Paddle may clip copies"
OFF_WHEN_RUN = "a limit of 0 or None is off in Keras 3, and not here: see that it is neither"
SCALED_LIMIT = "if the limit is multiplied by the loss's scale, take that out: gradients are unscaled before the clip"
KERAS = (
    "standalone Keras clips by the global norm up to 2.3.1, and each tensor by its own norm from 2.4: see which it is"
)
BY_ITS_NAME = "it is called like a gradient, and cannot be traced to one"
MADE_OF_ONE = "there is a gradient in what it clips, and whether the whole is one cannot be seen"
NO_GRADIENT = "what it clips is no gradient, as far as can be seen"
NO_ARGUMENTS = "its arguments cannot be told ({})"
ANNOTATION = "it is a type annotation, and clips nothing"
ONLY_NAMED = "it is named, and not called, so that where it is used cannot be seen"
TAKEN = "the name unified_clip is something else in this file"
PROGRAM = "it belongs to a program of Paddle, which PyTorch has not: clip in the step"


def port(path: Path, content: bytes, target: Target = "torch", native: bool = False) -> Ported:
    """Port the clips in a file.

    Args:
        path: What it is called.
        content: Its bytes.
        target: "torch", or "drop-in".
        native: With PyTorch's own functions, and not ours; to "torch" only.

    Raises:
        UnreadableError: It is no Python that can be read.
    """
    if not words().search(content):
        return Ported(path, content, content)
    told = identifiers(content)
    if told is not None and not may_clip(told):
        return Ported(path, content, content)
    module = Module(content, path)
    found = find(module)
    if not found:
        return Ported(path, content, content)
    work = _Work(module, found, target, native)
    sites = sorted((work.site(each) for each in work.reported()), key=lambda site: (site.line, site.column))
    return Ported(path, content, work.made(), sites)


@dataclass
class _Decision:
    """What becomes of a clip."""

    becomes: str = ""
    reason: str = ""
    left: bool = False


class _Work:
    """A file on its way."""

    def __init__(self, module: Module, found: list[Found], target: Target, native: bool) -> None:
        self._module, self._found, self._target, self._native = module, found, target, native
        self._is_taken = is_taken(module)
        self._edits = Edits(module)
        self._renames = Renames(module, self._edits)
        self._gradients = Gradients(module)
        self._meanings: dict[Found, Meaning | None] = {}
        self._decided: dict[Found, _Decision] = {}
        for each in found:
            self._decided[each] = self._at_once(each)
        if target == "drop-in":
            self._drop_in()
        else:
            self._to_torch()

    def made(self) -> bytes:
        self._renames.make()
        return self._edits.made()

    def reported(self) -> list[Found]:
        """Return the clips, without calls that clamp what is no gradient."""
        return [
            found
            for found, decision in self._decided.items()
            if not (decision.left and found.native is not None and found.native.quiet)
        ]

    def site(self, found: Found) -> Site:
        """The record."""
        decision = self._decided[found]
        line, column = self._module.position(found.node)
        means = self._meanings.get(found)
        verdict = "left" if decision.left else "flagged" if decision.reason else "rewritten"
        becomes_meaning = None
        if verdict == "rewritten":
            becomes_meaning = of_family(means, _family(found, decision.becomes))
        return Site(
            line=line,
            column=column,
            name=found.name,
            text=self._module.line(line),
            verdict=verdict,  # type: ignore[arg-type]
            meaning=means,
            becomes=decision.becomes if verdict == "rewritten" else "",
            becomes_meaning=becomes_meaning,
            reason=decision.reason,
            suggestion=suggest.lines(self._module, found, self._target) if verdict == "flagged" else (),
            checks=self._checks(found) if verdict == "rewritten" and self._target == "torch" else (),
        )

    def _checks(self, found: Found) -> list[str]:
        """What a person should look at in a step that took PyTorch's shape."""
        checks = []
        if _is_of(found, "paddle") and found.native is not None and found.native.kind == "class":
            checks += [NEED_CLIP_NATIVE if self._native else NEED_CLIP, IN_PLACE_PADDLE]
        if _is_keras(found) or _is_of(found, "tensorflow"):
            checks.append(ONE_NUMBER)
        if _is_keras(found):
            checks.append(IN_PLACE)
        means = self._meanings.get(found)
        if _is_keras(found) and means is not None and means.threshold:
            checks.append(OFF_WHEN_RUN)
        if suggest.scale(self._module, found) or (means is not None and "scal" in means.threshold):
            checks.append(SCALED_LIMIT)
        return checks

    # -- what is decided for either target

    def _at_once(self, found: Found) -> _Decision:
        """What is clear from the clip alone."""
        if found.setting is not None and trainer_arguments.is_off(self._module, found):
            return _Decision(reason="None and 0 clip nothing", left=True)
        decision = _Decision(reason=TAKEN if self._is_taken else found.unsure)
        try:
            self._meanings[found] = meaning(self._module, found)
        except UnsureError as unsure:
            decision.reason = decision.reason or str(unsure)
        known = found.native
        if not decision.reason and keras_versions.is_standalone_clipnorm(self._module, found):
            decision.reason = KERAS
        if not decision.reason and _is_off(self._module, found):
            decision.left, decision.reason = True, "None clips nothing"
        if decision.reason or known is None:
            return decision
        if known.kind == "any tensor":
            self._judge_tensor(found, decision)
        if not decision.left and not decision.reason:
            decision.reason = self._problem(found)
        return decision

    def _judge_tensor(self, found: Found, decision: _Decision) -> None:
        call, known = found.call, found.native
        if call is None or known is None:
            decision.reason = ONLY_NAMED
            return
        arguments = Arguments(call, known.parameters)
        tensor = found.tensor or arguments.value(known.parameters[0])
        if tensor is not None and self._gradients.is_one(tensor):
            return
        if tensor is None and arguments.strange:
            decision.reason = NO_ARGUMENTS.format(", ".join(arguments.strange))
        elif tensor is not None and known.name != "paddle.clip" and self._gradients.is_like_one(tensor):
            decision.reason = BY_ITS_NAME
        elif tensor is not None and self._gradients.is_made_of_one(tensor):
            decision.reason = MADE_OF_ONE
        else:
            decision.left, decision.reason = True, NO_GRADIENT

    def _problem(self, found: Found) -> str:
        """Why ours cannot take the place of a native."""
        known = found.native
        assert known is not None
        if not known.ours:
            return known.why_not
        if found.call is None:
            return ""
        arguments = Arguments(found.call, known.parameters)
        strange = [each for each in arguments.strange if each.rstrip("=") not in known.renamed]
        if [each for each in strange if not each.startswith("*")] or (strange and known.renamed):
            return NO_ARGUMENTS.format(", ".join(strange))
        if known.name == "paddle.clip" and not {"min", "max"} <= set(arguments.given):
            return "it has one bound only"
        return ""

    # -- the framework stays

    def _drop_in(self) -> None:
        for found, decision in self._open():
            if found.native is None:
                decision.reason = "it is the optimizer's own: attach a configuration in its place"
                if _is_need_clip(found):
                    decision.left, decision.reason = True, "unified_clip heeds it as it is"
            else:
                decision.reason = self._not_dropped_in(found)
                if not decision.reason:
                    decision.becomes = self._renames.add(found, found.native.framework)

    def _not_dropped_in(self, found: Found) -> str:
        """Return why a class has to stay; '' if it can be replaced."""
        return self._engine if found.native is not None and found.native.kind == "class" else ""

    @cached_property
    def _engine(self) -> str:
        """Why the clip classes of this file have to stay: it uses an engine that tests for Paddle's own."""
        used = [engine for engine in engines() if any(map(engine.has, self._module.used_names))]
        return next((engine.why_not for engine in used if is_tested(self._module, engine)), "")

    # -- to PyTorch

    def _to_torch(self) -> None:
        self._wire_paddle()
        self._wire_tapes()
        for found, decision in self._open():
            known = found.native
            if _is_need_clip(found):
                decision.reason = "set need_clip = False on PyTorch's parameters, which unified_clip heeds"
            elif known is None:
                decision.reason = STEPS_ELSEWHERE
            elif known.kind == "program":
                decision.reason = PROGRAM
            elif known.kind == "class":
                decision.reason = ONLY_NAMED
            elif self._native:
                native_calls.replace(self._module, self._edits, found, decision)
            else:
                decision.becomes = self._renames.add(found, "torch")

    def _open(self) -> list[tuple[Found, _Decision]]:
        """What is not decided yet."""
        pairs = [(found, self._decided[found]) for found in self._found]
        return [(found, each) for found, each in pairs if not each.reason and not each.becomes]

    def _wire_paddle(self) -> None:
        makers = [
            found
            for found, _ in self._open()
            if found.native is not None and found.native.kind == "class" and found.call is not None
        ]
        if not makers:
            self._annotate(makers)
            return
        wiring = Wiring(self._module, makers)
        if self._native and any(map(_is_need_clip, self._found)):
            for found in makers:
                self._decided[found].reason = "PyTorch's functions clip parameters whose need_clip is False too"
            return
        writer = Writer(self._module, self._edits, wiring)
        for source in wiring.sources:
            try:
                write = native_calls.of_class(self._module, source) if self._native else None
                writer.write(source, write)
            except UnsureError as unsure:
                for maker in source.makers:
                    wiring.reasons[maker.node] = str(unsure)
                continue
            for maker in source.makers:
                decision = self._decided[maker]
                decision.becomes = (
                    native_calls.remove(self._module, self._edits, source, maker)
                    if self._native
                    else self._renames.add(maker, "torch")
                )
        for found in makers:
            if found.node in wiring.reasons:
                self._decided[found].reason = wiring.reasons[found.node]
        self._annotate(makers)

    def _annotate(self, makers: list[Found]) -> None:
        """Rename classes in type annotations, where all clips of the file are renamed."""
        for found, decision in self._open():
            is_class = found.native is not None and found.native.kind == "class" and found.call is None
            if not is_class or self._module.enclosing(found.node, cst.Annotation) is None:
                continue
            if self._native:
                decision.left, decision.reason = True, ANNOTATION
            elif all(self._decided[each].becomes for each in makers):
                decision.becomes = self._renames.add(found, "torch")

    def _wire_tapes(self) -> None:
        able = [found for found, _ in self._open() if _is_keras(found) or _is_of(found, "tensorflow")]
        work = TapePort(self._module, self._gradients, able, self._meanings, self._native)
        work.stay([found for found, decision in self._decided.items() if decision.reason and not decision.left])
        for found, reason in work.reasons.items():
            self._decided[found].reason = reason
        for found, name in work.write(self._edits).items():
            self._decided[found].becomes = name


def _is_keras(found: Found) -> bool:
    return found.native is None and isinstance(found.node, cst.Arg) and not _is_need_clip(found)


def _family(found: Found, becomes: str) -> str:
    """Whose rule takes the place of a clip: '' for its own."""
    if becomes.startswith("torch."):
        return "pytorch"
    return "paddle" if _is_keras(found) else ""


def _is_off(module: Module, found: Found) -> bool:
    """Whether an optimizer is told not to clip."""
    return isinstance(found.node, cst.Arg) and module.code(found.node.value) == "None"


def _is_need_clip(found: Found) -> bool:
    return found.name == "need_clip" or found.name.endswith("(need_clip=)")


def _is_of(found: Found, framework: str) -> bool:
    return found.native is not None and found.native.framework == framework
