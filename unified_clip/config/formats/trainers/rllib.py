"""The YAML and JSON format of RLlib, with the keys `config.grad_clip` and `config.grad_clip_by` of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from ....errors import ConfigError
from ...documents import Document, Key
from ...schema import FamilyName, Rule, Settings
from ..base import Format, Imported, name_format

KEY, MODE = "grad_clip", "grad_clip_by"
RULES: dict[str, Rule] = {"global_norm": "global_norm", "norm": "norm", "value": "value"}
FAMILIES: dict[str, FamilyName] = {"norm": "paddle"}
"""RLlib adds 1e-6 to the global norm, and adds nothing to the norm of a tensor."""

MODES: dict[str | None, str] = {rule: mode for mode, rule in RULES.items()}

NEW_STACK = Version("2.40")
"""From this version on, RLlib's new API stack is the default. The old API stack ignores `grad_clip_by`."""

DEFAULTS: dict[str, float | None] = {
    "PPO": None, "SAC": None, "CQL": None, "BC": None, "MARWIL": None,
    "DQN": 40.0, "SimpleQ": 40.0, "APEX": 40.0, "IMPALA": 40.0, "APPO": 40.0, "A2C": 40.0, "A3C": 40.0,
}  # fmt: skip
"""None means that the algorithm does not clip."""

SAVED = ("rollout_fragment_length", "sample_batch_size", "num_env_runners")
"""A file with any of these keys is a saved configuration, and not an experiment."""

PER_OPTIMIZER = "RLlib clips the gradients of each optimizer separately."


class RLlib(Format):
    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return self.clip_keys[2:] if self._is_saved(document) else self.clip_keys[:2]

    def _is_saved(self, document: Document) -> bool:
        return any(map(document.has, SAVED))

    def read(self, document: Document, version: Version | None) -> Imported:
        if self._is_saved(document):
            return self._configuration(document, [], str(document.get("algo_class", default="its algorithm")), version)
        tables = document.data if isinstance(document.data, dict) else {}
        experiments = [name for name, table in tables.items() if isinstance(table, dict)]
        if not experiments:
            raise ConfigError(
                f"{document.name}: the file has no experiment. Add an experiment, such as `my_run: {{run: PPO, config: "
                f"{{{KEY}: 40.0}}}}`. For a file of another trainer, {name_format('NAME')}."
            )
        imports = [self._experiment(document, name, version) for name in experiments]
        for name, imported in zip(experiments, imports, strict=True):
            if imported.settings != imports[0].settings:
                message = (
                    f"this experiment has other clip settings than {experiments[0]}. Import a file with one experiment."
                )
                raise document.wrong([name], message)
        notes = dict.fromkeys(note for imported in imports for note in imported.notes)
        return Imported(imports[0].settings, [*notes], imports[0].not_finite)

    def _experiment(self, document: Document, name: Key, version: Version | None) -> Imported:
        algorithm = str(document.get(name, "run"))
        of_dreamer = [key for _, table, key in self.foreign_keys if document.has(name, table, key)]
        is_dreamer = algorithm.lower() == "dreamerv3"
        if is_dreamer or of_dreamer:
            raise document.wrong(
                [name, "run"] if is_dreamer else [name, "config", of_dreamer[0]],
                "DreamerV3 has three optimizers, each with its own threshold. Write a clip configuration for each "
                "optimizer.",
            )
        return self._configuration(document, [name, "config"], algorithm, version)

    def _configuration(self, document: Document, table: list[Key], algorithm: str, version: Version | None) -> Imported:
        place, notes = [*table, KEY], []
        default = None
        if not document.has(*place):
            default = self._default(document, algorithm)
            effect = "clips nothing" if default is None else f"clips at {default:g}"
            notes.append(f"The file does not set {KEY}. By default, {algorithm} {effect}.")
        is_old = version is not None and version < NEW_STACK
        if is_old and document.get(*place, default=default) == 0:
            problem = (
                "with 0, some versions below 2.40 clip nothing, and others make all gradients 0. Set null to clip "
                "nothing, or 1.0e-30 to make gradients nearly 0."
            )
            raise document.wrong(place, problem)
        threshold = self.read_threshold(document, place, default, negative="error")
        rule = self._rule(document, [*table, MODE], version) if threshold is not None else "global_norm"
        has_norm = threshold is not None and rule != "value"
        notes += [PER_OPTIMIZER] if has_norm else []
        not_finite = self.not_finite if has_norm and not is_old else ""
        return Imported(self.settings(rule, threshold, family=FAMILIES.get(rule)), notes, not_finite)

    def _rule(self, document: Document, keys: list[Key], version: Version | None) -> Rule:
        mode = document.get(*keys, default="global_norm")
        if not isinstance(mode, str) or mode not in RULES:
            raise document.wrong(keys, f"{mode!r:.60} is not supported. Set one of {', '.join(RULES)}.")
        if mode == "global_norm" or self.require_version(version, document) < NEW_STACK:
            return "global_norm"
        return RULES[mode]

    def _default(self, document: Document, algorithm: str) -> float | None:
        if algorithm not in DEFAULTS:
            raise ConfigError(
                f"{document.name}: the file does not set {KEY}, and the default of {algorithm} is unknown. Set {KEY}."
            )
        return DEFAULTS[algorithm]

    def write(self, settings: Settings, version: Version) -> Any:
        old = version < NEW_STACK
        rules: Sequence[Rule] = ("global_norm",) if old else ()
        threshold = self.export_threshold(settings, rules=rules, family=FAMILIES.get(settings.rule))
        clip = {KEY: threshold, **({} if threshold is None or old else {MODE: MODES[settings.rule]})}
        return {"experiment": {"run": "PPO", "config": clip}}
