"""Advise what to write instead of a clip that differs from the shared clip configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from .._kit.static_values import is_number
from ..config import documents
from ..config.clip_config import ClipConfig
from ..config.families import family_difference
from ..config.formats import FORMATS, convert, engines
from ..errors import NotRepresentableError
from .clip_use import ARGUMENT_FORMATS, ONE_PER_GROUP, THRESHOLD, ClipUse, shown
from .model import Difference
from .rules import patterns
from .trainer_keys import TrainerKeys, find_keys, leaves

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
    "jax": f"{GRADIENTS}, or clip.as_optax() as the first argument of optax.chain",
    "optax": "clip.as_optax() as the first argument of optax.chain",
    "unified_clip": f"clip.attach_to(optimizer, model), or {GRADIENTS}",
    "accelerate": FORMATS["accelerate"].instead,
    "fabric": "clip.attach_to(optimizer, model), in place of fabric.clip_gradients",
    "fsdp": "clip.clipper(process_group=model.process_group, ownership='distinct').clip_(model.parameters())",
    "lightning": FORMATS["lightning"].instead,
    "pytorch_lightning": FORMATS["lightning"].instead,
    "transformers": FORMATS["hf"].instead,
    "trl": FORMATS["hf"].instead,
}

SOURCE_FORMATS = {"optax": "optax", "paddle": "paddle"}

REMOVE = "Remove this clip. If the check reads the file in a wrong format, set the right format in check.formats."

SWITCH_OFF_OUTSIDE = (
    "Switch the clip off in the configuration file that sets it. If you set the clip on the command line, move the "
    "clip to a configuration file first."
)

NOT_VALID = re.compile(r"this is not (TOML|YAML|JSON)")
UNPARSABLE = "Correct line {line} of {file}. The check can then read the file. If no program reads the file, add"

NOT_EXPOSED = "{engine} does not expose the gradients of a step, so code cannot clip them."

ONLY_OWN = (
    f"{NOT_EXPOSED} Set the threshold in the configuration of {{engine}} or of the trainer, as "
    "docs/integrations/engines.md describes."
)

REMOVE_SETTING = "Remove such settings from {file}, or add the clip to check.ignore with a reason."

UNREAD = (
    "If a clip was deleted, restore the clip. Otherwise, remove the setting. If other code reads {name}, also check "
    "that code. An entry of check.ignore for this setting does not satisfy check.require or check.each."
)

UNSUPPORTED = "unified_clip does not support"

DECLARE = (
    "{reads} to {file}, with the rule by which your code clips. The check then compares the value. If the code does "
    "not clip with a value such as 0, also list that value in off, as in off = [0]."
)

BY_CODE = "To clip by"
RECOMMENDED = (
    "{advice} This edit is recommended, because the check can then compare the threshold with the clip configuration."
)
ANY_THRESHOLD = (
    'Or to accept every threshold, add the clip to check.ignore with rule = "{rule}" and a reason. The check then '
    "does not compare the threshold of this clip with the clip configuration."
)

KEEP = "To keep this clip, add it to check.ignore with a reason."

PASS_NEAREST = "pass --nearest, or add this file to check.nearest."
ACCEPT_NEAREST = f"With this edit, only the family or the eps still differs. To accept the difference, {PASS_NEAREST}"


class Advisor:
    def __init__(self, config: ClipConfig, file: Path, *, nearest: bool) -> None:
        self._config, self._file, self._nearest = config, file, nearest

    def edit(self, use: ClipUse, differences: Sequence[Difference], *, is_near: bool) -> str:
        """is_near: Whether only the family or the eps differs."""
        if is_near:
            return _lines(
                f"To accept a difference of only the family or the eps, {PASS_NEAREST}", self._or_by_code(use)
            )
        if use.format in FORMATS:
            return self._settings_edit(use)
        if literal := self._literal(use):
            return _lines(literal, self._or_by_code(use))
        name = "" if use.call else ARGUMENT_FORMATS.get(use.package, "")
        if unsupported := self._unsupported(name):
            return f"{unsupported} {self.advice_by_code(use)}"
        if [each.about for each in differences] == ["threshold"]:
            return f"Set the threshold to {differences[0].wanted}. {self.advice_by_code(use)}"
        return self.advice_by_code(use)

    def edit_of_unknown(self, use: ClipUse) -> str:
        advice = self.advice_by_code(use)
        rule = use.rule_of_any_threshold
        if rule is None:
            return advice
        advice = RECOMMENDED.format(advice=advice) if advice.startswith(BY_CODE) else advice
        return _lines(advice, ANY_THRESHOLD.format(rule=rule.rule))

    def settings(self, use: ClipUse) -> str:
        return self._settings_edit(use) if use.format in FORMATS else self._arguments(use) or self.advice_by_code(use)

    def switch_off(self, use: ClipUse) -> str:
        if use.is_set_outside:
            return SWITCH_OFF_OUTSIDE
        name = use.format or ARGUMENT_FORMATS.get(use.package, "")
        if use.call or name not in FORMATS:
            return REMOVE
        if use.format:
            keys = self._keys(use)
            return REMOVE if keys is None else keys.with_problem
        return self._exported_arguments(name) or REMOVE

    def advice_by_code(self, use: ClipUse) -> str:
        if use.format == convert.UNIFIED_CLIP:
            return f"Use {self._file.name} instead of this file."
        if use.unused:
            return UNREAD.format(name=use.unused)
        if use.engine in engines.UNREACHABLE:
            return ONLY_OWN.format(engine=use.engine)
        if (not use.package and use.config is None) or use.why_unknown == ONE_PER_GROUP:
            return self._approval(use)
        if use.package not in ATTACH:
            return f"Change the clip to match {self._file.name}, or add the clip to check.ignore with a reason."
        advice = self._by_code(use, ARGUMENT_FORMATS.get(use.package, use.package), ATTACH[use.package])
        return f"{KEEP}\nOr {advice[0].lower()}{advice[1:]}" if UNSUPPORTED in use.why_unknown and advice else advice

    def _approval(self, use: ClipUse) -> str:
        correction = self._correction(use)
        advice = f"{'Or, to accept the file' if correction else 'Correct the file. Or, to accept it'} as it is, add"
        if NOT_VALID.search(use.why_unknown):
            advice = UNPARSABLE.format(line=use.line, file=shown(use.path))
        numbers = [each.name for each in use.values if is_number(each.value)]
        if numbers and not use.unused:
            reads = f"{'Or, if' if correction else 'If'} your own code reads this key, add"
            declare = DECLARE.format(reads=reads, file=self._file.name)
            return _lines(correction, declare, *(self._key(use, name) for name in dict.fromkeys(numbers)))
        return _lines(correction, f"{advice} to {self._file.name}:", self._entry(use))

    def _key(self, use: ClipUse, name: str) -> str:
        path = patterns.relative(use.path, self._file.resolve().parent)
        rule = self._config.rule if self._config.rule in ("value", "norm", "global_norm") else "global_norm"
        key = {"path": path, "key": name, "rule": rule}
        return documents.dump({"check": {"key": [key]}}, documents.kind_of(self._file)).rstrip()

    def _entry(self, use: ClipUse) -> str:
        path = patterns.relative(use.path, self._file.resolve().parent)
        entry = {"path": path, "reason": "..."}
        return documents.dump({"check": {"ignore": [entry]}}, documents.kind_of(self._file)).rstrip()

    def _by_code(self, use: ClipUse, format_: str, instead: str) -> str:
        adapted = engines.adapted(instead, use.engine)
        if not adapted:
            return ""
        under = "" if use.engine else engines.except_under(format_)
        return f'{BY_CODE} {self._file.name}{under}: clip = ClipConfig.load("{shown(self._file)}"), then {adapted}.'

    def _or_by_code(self, use: ClipUse) -> str:
        if use.engine in engines.UNREACHABLE:
            return ""
        instead = FORMATS[use.format].instead if use.format in FORMATS else ""
        advice = self._by_code(use, use.format, instead) if instead else self.advice_by_code(use)
        return f"Or {advice[0].lower()}{advice[1:]}"

    def _settings_edit(self, use: ClipUse) -> str:
        if keys := self._keys(use):
            if self._is_same(use, keys):
                return keys.text
            return _lines(keys.with_problem, "" if keys.problem else ACCEPT_NEAREST, self._or_by_code(use))
        instead = self._by_code(use, use.format, FORMATS[use.format].instead)
        no_code = NOT_EXPOSED.format(engine=use.engine) if use.engine in engines.UNREACHABLE else ""
        otherwise = f"{no_code} {REMOVE_SETTING.format(file=self._file.name)}".lstrip()
        return f"{self._unsupported(use.format)} {instead or otherwise}"

    def _unsupported(self, name: str) -> str:
        """Return a sentence that names the settings that a format does not support, or ''."""
        if name not in FORMATS:
            return ""
        try:
            convert.write(self._config, name, nearest=True)
        except NotRepresentableError as error:
            problem = str(error).partition(": ")[2].partition(". ")[0]
            if problem.startswith("it "):
                return f"{FORMATS[name].title} {problem.removeprefix('it ')}."
            return f"{problem[:1].upper()}{problem[1:]}."
        return ""

    def _is_same(self, use: ClipUse, keys: TrainerKeys) -> bool:
        is_accepted = self._is_accepted(use.format) if keys.same is None else self._nearest or keys.same
        return is_accepted and not keys.problem

    def _correction(self, use: ClipUse) -> str:
        keys = self._keys(use) if use.format in FORMATS and use.document is not None else None
        if keys is None or keys.same is None or keys.problem:
            return ""
        return keys.text if self._is_same(use, keys) else _lines(keys.text, ACCEPT_NEAREST)

    def _keys(self, use: ClipUse) -> TrainerKeys | None:
        try:
            return find_keys(use, self._config)
        except NotRepresentableError:
            return None

    def _literal(self, use: ClipUse) -> str:
        threshold = self._config.threshold
        if THRESHOLD in use.call and use.config is not None and isinstance(threshold, float):
            changed = ClipConfig(**{**use.config.data(), "threshold": threshold})
            if (difference := family_difference(changed, self._config)) is not None:
                text = use.call.replace(THRESHOLD, repr(threshold))
                return text if difference.same or self._nearest else f"{text}\n{ACCEPT_NEAREST}"
        return self._arguments(use)

    def _arguments(self, use: ClipUse) -> str:
        if use.call and use.package in SOURCE_FORMATS:
            name = SOURCE_FORMATS[use.package]
            return self._with_note(self._exported(name, None), name)
        name = ARGUMENT_FORMATS.get(use.package, "")
        is_rejected = engines.REJECTED.get((use.package, use.engine)) == self._config.rule
        text = self._exported_arguments(name) if name and not use.call and not is_rejected else ""
        return self._with_note(text, name)

    def _with_note(self, text: str, name: str) -> str:
        return f"{text}\n{ACCEPT_NEAREST}" if text and not self._is_accepted(name) else text

    def _exported(self, name: str, kind: str | None) -> str:
        try:
            return convert.write(self._config, name, nearest=True, kind=kind)[0].rstrip()
        except NotRepresentableError:
            return ""

    def _exported_arguments(self, name: str) -> str:
        text = self._exported(name, "json")
        return ", ".join(f"{path[-1]}={value!r}" for path, value in leaves(json.loads(text))) if text else ""

    def _is_accepted(self, name: str) -> bool:
        try:
            convert.write(self._config, name, nearest=self._nearest)
        except NotRepresentableError:
            return False
        return True


def is_of_trainer(use: ClipUse, format_: str) -> bool:
    return ARGUMENT_FORMATS.get(use.package) == format_ != ""


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))
