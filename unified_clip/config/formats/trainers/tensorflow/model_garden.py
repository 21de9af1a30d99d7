"""The YAML format of TensorFlow Model Garden, with the clip keys of the selected optimizer."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document, Key
from ....schema import Rule, Settings
from ...base import Format, Imported, paths, words
from .keras import NORM_AND_VALUE

ROOT = ("trainer", "optimizer_config", "optimizer")
RULES: dict[str, Rule] = {"global_clipnorm": "global_norm", "clipnorm": "norm", "clipvalue": "value"}
LEGACY = ("adamw", "gradient_clip_norm")
AGGREGATED = (
    "AdamWeightDecay clips the gradients of each replica, and then averages them. If experimental_aggregate_gradients "
    "is False, AdamWeightDecay does not clip."
)


class ModelGarden(Format):
    name, title = "tf_model_garden", "TensorFlow Model Garden"
    kinds = ("yaml",)
    source = (
        "official/modeling/optimization/configs/optimizer_config.py, official/modeling/optimization/legacy_adamw.py"
    )
    newest = "2.20.0"
    own_keys = paths("trainer.optimizer_config")
    placeholder = "OPTIMIZER"
    clip_keys = tuple((*ROOT, "*", key) for key in (*RULES, LEGACY[1]))
    foreign_keys = paths("runtime.differential_privacy_config trainer.optimizer_config.dp_config")
    vocabulary = words("trainer task runtime")
    rules = ("global_norm", "norm", "value")
    family = "tensorflow"
    zero = "error"

    def read(self, document: Document, version: Version | None) -> Imported:
        for keys in self.foreign_keys:
            if document.get(*keys) is not None:
                raise document.wrong(
                    keys,
                    "this key clips the gradient of each example, which is not supported. Continue to clip with the "
                    "trainer.",
                )
        name = document.get(*ROOT, "type")
        if not isinstance(name, str):
            raise document.wrong(
                [*ROOT, "type"],
                "the file does not name an optimizer, so the clip keys are unknown. Set a type, such as `type: sgd`.",
            )
        table: list[Key] = [*ROOT, name]
        used = [key for key in RULES if document.get(*table, key) is not None]
        if len(used) > 1:
            remedy = (
                NORM_AND_VALUE
                if "clipvalue" in used[1:] and len(used) == 2
                else "Keras rejects both keys together. Remove one."
            )
            raise document.wrong([*table, used[1]], f"the file also sets {used[0]}. {remedy}")
        if name == LEGACY[0] and not used:
            return self._legacy(document, table)
        if not used:
            return Imported(
                {"rule": "none"}, [f"The file sets no clip key of {name}. By default, {name} clips nothing."]
            )
        if document.get(*table, used[0]) == 0:
            raise document.wrong(
                [*table, used[0]],
                "from TensorFlow 2.11 on, 0 clips nothing. Before 2.11, 0 makes all gradients 0. Set null to clip "
                "nothing.",
            )
        return Imported(self.settings(RULES[used[0]], self.read_threshold(document, [*table, used[0]])))

    def _legacy(self, document: Document, table: list[Key]) -> Imported:
        place = [*table, LEGACY[1]]
        notes = [] if document.has(*place) else [f"The file does not set {LEGACY[1]}. By default, adamw clips at 1.0."]
        threshold = self.read_threshold(document, place, 1.0, zero="off", null="error")
        notes += [] if threshold is None else [AGGREGATED]
        return Imported(self.settings("global_norm", threshold), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        keys = {rule: key for key, rule in RULES.items()}
        clip = {} if threshold is None else {keys[settings.rule]: threshold}
        data: Any = {"type": "sgd", "sgd": clip}
        for key in reversed(ROOT):
            data = {key: data}
        return data
