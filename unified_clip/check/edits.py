"""Suggest what to write in place of a clip that differs from the shared clip configuration."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._static_values import is_number
from ..config import documents
from ..config.clip_config import ClipConfig
from ..config.families import family_difference
from ..config.formats import FORMATS, convert, engines
from ..errors import NotRepresentableError
from . import patterns
from .clip_use import ONE_PER_GROUP, THRESHOLD, ClipUse, shown
from .file_edits import FileEdit, file_edit
from .model import Difference

MODEL = "clip.attach_to(optimizer, model), or clip.clip_(model.named_parameters()) before optimizer.step()"
GRADIENTS = "clip(gradients)"

ATTACH = {
    "torch": MODEL,
    "apex": MODEL,
    "keras": "clip.attach_to(optimizer)",
    "tf_keras": "clip.attach_to(optimizer)",
    "tf": GRADIENTS,
    "tensorflow": GRADIENTS,
    "paddle": "grad_clip=clip.as_paddle(model) for the optimizer",
    "jax": f"{GRADIENTS}, or clip.as_optax() first in optax.chain",
    "optax": "clip.as_optax() first in optax.chain",
    "unified_clip": f"clip.attach_to(optimizer, model), or {GRADIENTS}",
    "accelerate": FORMATS["accelerate"].instead,
    "fabric": "clip.attach_to(optimizer, model), in place of fabric.clip_gradients",
    "fsdp": "clip.clipper(process_group=model.process_group, ownership='distinct').clip_(model.parameters())",
    "lightning": FORMATS["lightning"].instead,
    "pytorch_lightning": FORMATS["lightning"].instead,
    "transformers": FORMATS["hf"].instead,
    "trl": FORMATS["hf"].instead,
}
"""The code that clips by a shared configuration, by the package that the training script uses."""

CALLS = {
    ("torch", "global_norm"): ("pytorch", f"torch.nn.utils.clip_grad_norm_(model.parameters(), {THRESHOLD})"),
    ("torch", "value"): ("", f"torch.nn.utils.clip_grad_value_(model.parameters(), {THRESHOLD})"),
    ("tensorflow", "global_norm"): ("tensorflow", f"gradients, norm = tf.clip_by_global_norm(gradients, {THRESHOLD})"),
}
"""(family, call) of a framework's function, by its package and rule."""

SOURCE_FORMATS = {"optax": "optax", "paddle": "paddle"}
"""The format whose export is Python source with a clip, by package."""

ARGUMENT_FORMATS = {
    "keras": "keras", "tf_keras": "keras", "lightning": "lightning", "pytorch_lightning": "lightning",
    "transformers": "hf", "trl": "hf",
}  # fmt: skip
"""The format whose keys are also arguments in Python, by package."""

REMOVE = (
    "Remove this clip, or remove the file from check.off. If the trainer's format is wrong, set the right one in "
    "check.formats."
)

SWITCH_OFF_OUTSIDE = (
    "Switch the clip off in the file that sets it, and add that file to check.off, too. If you set the clip on the "
    "command line, move it to such a file."
)

STILL = "With these keys alone, the check still fails:"

ONLY_OWN = (
    "{engine} does not expose the gradients of a step, so code cannot clip them. Set the threshold in the "
    "configuration of {engine} or of the trainer: docs/integrations/engines.md."
)

UNUSED = (
    "Nothing is clipped by this configuration now. If that is intended, remove the configuration. Otherwise, clip by "
    "it, as in clip(gradients), which changes the training."
)

UNSUPPORTED = "which unified_clip does not support"
"""A part of the reason for a clip that no clip configuration can replace with the same effect."""

KEEP = "To keep this clip, ignore it with a reason in check.ignore."

ACCEPT = "This still differs in family or eps. To accept it, pass --nearest, or add the file to check.nearest."


class Edits:
    """Suggests edits for clips.

    wanted: The shared clip configuration. file: Its file.
    nearest: Whether the check accepts clips that differ in family or eps only.
    """

    def __init__(self, config: ClipConfig, file: Path, *, nearest: bool) -> None:
        self._wanted, self._file, self._nearest = config, file, nearest

    def edit(self, use: ClipUse, differences: Sequence[Difference]) -> str:
        """Return the edit for a clip that differs from the configuration, in up to two parts.

        The first part is the smallest change, if there is one: the settings of the trainer's file, or the call or the
        arguments of the framework. For a clip that differs in family or eps only, the first part is advice to accept
        the clip instead. The second part is advice to clip by the configuration itself. After settings of a trainer's
        file that the check accepts, there is no second part.
        """
        if use.config is not None and family_difference(use.config, self._wanted) is not None:
            accept = "To accept differences of this size, pass --nearest, or add the file to check.nearest."
            return "\n".join(filter(None, [accept, self._or_remedy(use)]))
        if use.format in FORMATS:
            return self._settings_edit(use)
        if literal := self._literal(use):
            return "\n".join(filter(None, [literal, self._or_remedy(use)]))
        if [each.about for each in differences] == ["threshold"]:
            return f"Set the threshold to {differences[0].wanted}. {self.remedy(use)}"
        return self.remedy(use)

    def settings(self, use: ClipUse) -> str:
        """Return the keys or the arguments with which a trainer has the effect of the configuration, or advice."""
        return self._settings_edit(use) if use.format in FORMATS else self._arguments(use) or self.remedy(use)

    def switch_off(self, use: ClipUse) -> str:
        """Return the keys or arguments that switch a trainer's own clip off, or advice."""
        if use.is_set_outside:
            return SWITCH_OFF_OUTSIDE
        name = use.format or ARGUMENT_FORMATS.get(use.package, "")
        if use.call or name not in FORMATS:
            return REMOVE
        if use.format:
            return self._keys(use) or REMOVE
        text = self._exported(name, "json")
        if not text:
            return REMOVE
        return ", ".join(_leaves(json.loads(text)))

    def has_off_key(self, use: ClipUse) -> bool:
        """Return whether a key or an argument switches a trainer's clip off. False: the clip key has to be left out."""
        text = self.switch_off(use)
        keys = FORMATS[use.format].clip_keys if use.format in FORMATS else ()
        return not use.format or any(str(key[-1]) in text for key in keys)

    def is_of_trainer(self, use: ClipUse, format_: str) -> bool:
        """Return whether the trainer whose clip is `use`, in Python source, reads files of a format."""
        return ARGUMENT_FORMATS.get(use.package) == format_ != ""

    def remedy(self, use: ClipUse) -> str:
        """Return advice to clip by the configuration itself. For a clip of an unknown package, advise to change it."""
        if use.format == convert.UNIFIED_CLIP:
            return f"Use {self._file.name} instead of this file."
        if use.unused:
            return UNUSED
        if use.engine in engines.UNREACHABLE:
            return ONLY_OWN.format(engine=use.engine)
        if (not use.package and use.config is None) or use.why_unknown == ONE_PER_GROUP:
            return self._approval(use)
        if use.package not in ATTACH:
            return f"Change the clip to match {self._file.name}, or ignore it with a reason in check.ignore."
        advice = self._by_code(use, ARGUMENT_FORMATS.get(use.package, use.package), ATTACH[use.package])
        return f"{KEEP}\nOr {advice[0].lower()}{advice[1:]}" if UNSUPPORTED in use.why_unknown and advice else advice

    def _approval(self, use: ClipUse) -> str:
        """Return the entry of check.ignore that accepts a clip of unknown effect, in the syntax of the configuration.

        For a key that no known trainer reads, the entry approves only the rule and threshold of the configuration.
        """
        entry: dict[str, Any] = {"path": patterns.relative(use.read or use.path, self._file.resolve().parent)}
        threshold = self._wanted.threshold
        advice = f"Correct the file. Or, to accept it as it is, add to {self._file.name}:"
        numbers = {value for value in use.values if is_number(value)}
        if numbers and isinstance(threshold, float):
            entry |= {"rule": self._wanted.rule, "threshold": threshold}
            change = "" if numbers == {threshold} else f"set it to {threshold!r}, and "
            advice = f"If your own code reads this key, {change}add to {self._file.name}:"
        kind = documents.kind_of(self._file)
        text = documents.dump({"check": {"ignore": [{**entry, "reason": "..."}]}}, kind).rstrip()
        return f"{advice}\n{text}"

    def _adopt(self, instead: str, under: str = "") -> str:
        """Return the advice to clip by code. `under`: the phrase with the engines to which it does not apply."""
        return f'To clip by {self._file.name}{under}: clip = ClipConfig.load("{shown(self._file)}"), then {instead}.'

    def _by_code(self, use: ClipUse, format_: str, instead: str) -> str:
        """Return the advice to clip by code instead of `use`, or '' if code cannot clip under the engine of `use`.

        format_: The name of the trainer's format. instead: The advice without an engine.
        """
        adapted = engines.adapted(instead, use.engine)
        return self._adopt(adapted, "" if use.engine else engines.except_under(format_)) if adapted else ""

    def _or_remedy(self, use: ClipUse) -> str:
        """Return the second part of an edit, which begins with "Or", or '' if code cannot clip under the engine."""
        if use.engine in engines.UNREACHABLE:
            return ""
        instead = FORMATS[use.format].instead if use.format in FORMATS else ""
        remedy = self._by_code(use, use.format, instead) if instead else self.remedy(use)
        return f"Or {remedy[0].lower()}{remedy[1:]}"

    def _settings_edit(self, use: ClipUse) -> str:
        """Return the edit for a trainer's file: the keys to set, or advice if keys cannot have the effect.

        If the check does not accept the keys, because they have another family or eps, add advice.
        """
        if edit := self._file_edit(use):
            is_same = self._is_accepted(use.format) if edit.same is None else self._nearest or edit.same
            if is_same and not edit.problem:
                return edit.text
            more = f"{STILL} {edit.problem}" if edit.problem else ACCEPT
            return "\n".join(filter(None, [edit.text, more, self._or_remedy(use)]))
        command = f"unified-clip config export {shlex.quote(shown(self._file))} --to {use.format}"
        title = FORMATS[use.format].title
        problem = f"{title} does not support a setting of {self._file.name}. To see which, type: {command}."
        return f"{problem} {self._or_remedy(use) or f'Remove that setting: {self.remedy(use)}'}"

    def _keys(self, use: ClipUse) -> str:
        """Return the keys to set in a trainer's file and what is wrong with them.

        Return '' if the trainer does not support a setting.
        """
        edit = self._file_edit(use)
        if edit is None:
            return ""
        return f"{edit.text}\n{STILL} {edit.problem}" if edit.problem else edit.text

    def _file_edit(self, use: ClipUse) -> FileEdit | None:
        """Return the keys to set in a trainer's file, by the nearest rule.

        Return None if the trainer does not support a setting.
        """
        try:
            return file_edit(use, self._wanted)
        except NotRepresentableError:
            return None

    def _literal(self, use: ClipUse) -> str:
        """Return the call or the arguments in source that have the effect of the configuration, or ''.

        They may have another family or eps. If the check does not accept that, ACCEPT follows.
        """
        threshold = self._wanted.threshold
        if not isinstance(threshold, float) or use.config is None:
            return self._arguments(use)
        same_rule = {**use.config.data(), "threshold": threshold}
        if THRESHOLD in use.call and (text := self._accepted(same_rule, use.call)):
            return text
        if use.call and (use.package, self._wanted.rule) in CALLS:
            family, call = CALLS[use.package, self._wanted.rule]
            rule = {"rule": self._wanted.rule, "threshold": threshold, **({"family": family} if family else {})}
            return self._accepted(rule, call)
        return self._arguments(use)

    def _arguments(self, use: ClipUse) -> str:
        if use.call and use.package in SOURCE_FORMATS:
            name = SOURCE_FORMATS[use.package]
            return self._with_note(self._exported(name, None), name)
        name = ARGUMENT_FORMATS.get(use.package, "")
        is_rejected = engines.REJECTED.get((use.package, use.engine)) == self._wanted.rule
        text = self._exported(name, "json") if name and not use.call and not is_rejected else ""
        return self._with_note(", ".join(_leaves(json.loads(text))), name) if text else ""

    def _with_note(self, text: str, name: str) -> str:
        return f"{text}\n{ACCEPT}" if text and not self._is_accepted(name) else text

    def _accepted(self, settings: dict[str, Any], call: str) -> str:
        """Return `call` with the configuration's threshold for THRESHOLD, or '' if more than family and eps differ.

        If the check does not accept the family or eps, ACCEPT follows.
        settings: The settings with the effect of that call.
        """
        difference = family_difference(ClipConfig(**settings), self._wanted)
        if difference is None:
            return ""
        text = call.replace(THRESHOLD, repr(self._wanted.threshold))
        return text if difference.same or self._nearest else f"{text}\n{ACCEPT}"

    def _exported(self, name: str, kind: str | None) -> str:
        """Return the configuration in a trainer's format, by the nearest rule, or '' if it is not supported."""
        try:
            return convert.write(self._wanted, name, nearest=True, kind=kind)[0].rstrip()
        except NotRepresentableError:
            return ""

    def _is_accepted(self, name: str) -> bool:
        """Return whether the check accepts what `_exported` returns."""
        try:
            convert.write(self._wanted, name, nearest=self._nearest)
        except NotRepresentableError:
            return False
        return True


def _leaves(data: Any) -> list[str]:
    """Return the values in nested tables as arguments of Python, such as "clipnorm=1.0"."""
    if not isinstance(data, dict):
        return []
    return [each for name, value in data.items() for each in (_leaves(value) or [f"{name}={value!r}"])]
