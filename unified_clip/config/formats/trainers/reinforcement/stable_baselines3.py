"""The YAML format of Stable-Baselines3's RL Zoo, with a key `max_grad_norm` for each environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from ....._kit.display import enumeration
from .....errors import ConfigError
from ....documents import Document, Key
from ...base import Format, Imported, paths
from ...naming import name_format

KEY = "max_grad_norm"
DEFAULTS: dict[str, float | None] = {"a2c": 0.5, "ppo": 0.5, "ppo_lstm": 0.5, "dqn": 10.0, "qrdqn": None}
"""None means that the algorithm does not clip."""

WITHOUT = ("ars", "crossq", "ddpg", "her", "sac", "td3", "tqc", "trpo")
"""These algorithms do not have the key `max_grad_norm`."""


class StableBaselines3(Format):
    name, title = "stable_baselines3", "Stable-Baselines3"
    kinds = ("yaml",)
    source = (
        "stable_baselines3: common/on_policy_algorithm.py, ppo/ppo.py, a2c/a2c.py, dqn/dqn.py; rl_zoo3/exp_manager.py"
    )
    newest = "2.9.2"
    placeholder = "ENVIRONMENT"
    clip_keys = paths(f"*.{KEY}")
    written_keys = paths(f"default.{KEY}")
    zero = "zeros"
    off = math.inf

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return ((KEY,),) if _is_run(document) else self.clip_keys

    def recognises(self, document: Document) -> bool:
        if _is_run(document):
            return True
        tables = [document.get(name) for name in self._environments(document)]
        return any("policy" in table and "n_timesteps" in table for table in tables)

    def read(self, document: Document, version: Version | None) -> Imported:
        if _is_run(document):
            return self._run(document)
        environments = self._environments(document)
        if not environments:
            raise ConfigError(
                f"{document.name}: the file has no environment. Add an environment, such as `default: "
                f"{{max_grad_norm: 0.5}}`. For a file of another trainer, {name_format('NAME')}."
            )
        algorithm = document.name.rpartition(".")[0].lower()
        set_by = [name for name in environments if document.has(name, KEY)]
        if algorithm in WITHOUT:
            if set_by:
                raise document.wrong([set_by[0], KEY], f"{algorithm} has no such argument. Remove this key.")
            return Imported({"rule": "none"}, [f"By default, {algorithm} clips nothing."])
        notes, thresholds = [], {name: self._threshold(document, name, algorithm) for name in set_by}
        if unset := [name for name in environments if name not in set_by]:
            default = self._default(document, algorithm)
            thresholds |= dict.fromkeys(unset, default)
            effect = "clips nothing" if default is None else f"clips at {default:g}"
            verb = "does" if len(unset) == 1 else "do"
            notes.append(f"{enumeration(unset)} {verb} not set {KEY}. By default, {algorithm} {effect}.")
        if len(set(thresholds.values())) > 1:
            values = ", ".join(f"{name} {value}" for name, value in thresholds.items())
            raise document.wrong(
                [], f"the environments differ in {KEY}: {values:.200}. Import a file with one environment."
            )
        return Imported(self.settings("global_norm", next(iter(thresholds.values()))), notes)

    def _run(self, document: Document) -> Imported:
        if not document.has(KEY):
            problem = f"the file does not set {KEY}, and the default depends on the algorithm. Set {KEY}"
            advice = f'If the algorithm does not support {KEY}, write a clip configuration with rule = "none".'
            raise ConfigError(f"{document.name}: {problem}. {advice}")
        return Imported(self.settings("global_norm", self.read_threshold(document, [KEY], null="error")))

    def _environments(self, document: Document) -> list[str]:
        tables = document.data if isinstance(document.data, dict) else {}
        return [name for name, table in tables.items() if isinstance(table, dict)]

    def _threshold(self, document: Document, name: str, algorithm: str) -> float | None:
        null: Any = "off" if algorithm == "qrdqn" else "error"
        return self.read_threshold(document, [name, KEY], null=null)

    def _default(self, document: Document, algorithm: str) -> float | None:
        if algorithm not in DEFAULTS:
            names = ", ".join(DEFAULTS)
            raise ConfigError(
                f"{document.name}: not every environment sets {KEY}, and the default depends on the algorithm. Set "
                f"{KEY}, or name the file after the algorithm, as RL Zoo does. Algorithms with a default are {names}."
            )
        return DEFAULTS[algorithm]


def _is_run(document: Document) -> bool:
    return document.shows("policy") and document.shows("n_timesteps")
