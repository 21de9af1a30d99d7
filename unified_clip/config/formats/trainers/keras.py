"""The JSON format of a Keras optimizer, with the keys `clipnorm`, `global_clipnorm` and `clipvalue`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from packaging.version import Version

from ....facts.trainer_rows import Zero, trainers
from ...documents import Document, Key
from ...schema import Rule, Settings
from ..base import SEVERAL_OPTIMIZERS, Format, Imported, name_format

KEYS: dict[Rule, str] = {"norm": "clipnorm", "global_norm": "global_clipnorm", "value": "clipvalue"}
NAMES = tuple(KEYS.values())

TF_KERAS = Version("2.4")
"""From this version on, `clipnorm` limits the norm of each tensor. In earlier versions, it limits the global norm."""

NO_ZERO = Version("2.11")
"""From this version on, a threshold of 0 switches clipping off. From 2.4 to 2.10, 0 makes all gradients 0."""

NORM_AND_VALUE = (
    "With both keys, Keras 2.11 to 2.15 ignores clipvalue, and Keras 3 rejects clipvalue. For these versions, remove "
    "clipvalue. Older versions clip by both keys. unified_clip does not support this, so clip twice by hand."
)

Era = Literal["standalone", "tf.keras", "keras 3"]


class Keras(Format):
    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        place = _place(document)
        inner = document.get(*place)
        wrapped = [key for key, value in inner.items() if _clips(value)] if isinstance(inner, dict) else []
        return [*((*place, name) for name in NAMES), *((*place, key) for key in wrapped if key not in NAMES)]

    def recognises(self, document: Document) -> bool:
        config = document.get(*_place(document))
        return isinstance(config, dict) and not config.keys().isdisjoint(NAMES)

    def read(self, document: Document, version: Version | None) -> Imported:
        place = _place(document)
        config = document.get(*place)
        if not isinstance(config, dict):
            raise document.wrong(place, f"{config!r:.60} is not a table. Write a table of the optimizer's arguments.")
        for name, nested in config.items():
            if _clips(nested):
                raise document.wrong([*place, name], SEVERAL_OPTIMIZERS)
        names = [name for name in NAMES if document.get(*place, name) is not None]
        if names[:2] == list(NAMES[:2]):
            raise document.wrong([*place, names[1]], f"Keras rejects this key together with {names[0]}. Remove one.")
        if len(names) > 1:
            raise document.wrong([*place, names[1]], f"the file also sets {names[0]}. {NORM_AND_VALUE}")
        if not names:
            unset = config.keys().isdisjoint(NAMES)
            note = f"The file does not set {', '.join(NAMES)}. By default, Keras clips nothing."
            return Imported({"rule": "none"}, [note] if unset else [])
        (name,) = names
        keys = [*place, name]
        if name == "global_clipnorm" and version and self._era(document, place, version) == "standalone":
            raise document.wrong(
                keys,
                "Keras before 2.4 does not have this key. If a later version wrote the file, "
                f"{name_format('keras@VERSION')}. Otherwise rename the key to clipnorm, which limits the global norm "
                "in Keras before 2.4.",
            )
        value = document.get(*keys)
        is_clear = name != "clipnorm" and isinstance(value, int | float) and value > 0
        era: Era = "keras 3" if is_clear else self._era(document, place, version)
        zero: Zero = "zeros" if era == "tf.keras" else "off"
        threshold = self.read_threshold(document, keys, zero=zero, infinite="off" if name == "clipvalue" else "error")
        if name != "clipnorm" or threshold is None:
            return Imported(self.settings("value" if name == "clipvalue" else "global_norm", threshold))
        if era == "standalone":
            note = "In Keras before 2.4, clipnorm clips by the total norm. From 2.4 on, clipnorm clips per tensor."
            return Imported(self.settings("global_norm", threshold, family="paddle"), [note])
        return Imported(self.settings("norm", threshold), ["clipnorm clips per tensor, not by the total norm."])

    def _era(self, document: Document, place: list[str], version: Version | None) -> Era:
        config, wrapper = document.get(*place), document.get(*place[:-1])
        legacy = config.get("is_legacy_optimizer")
        if legacy is not None:
            return "tf.keras" if legacy else "keras 3"
        if version is None and ("registered_name" in wrapper or "loss_scale_factor" in config):
            return "keras 3"
        version = self.require_version(version, document)
        return "standalone" if version < TF_KERAS else "tf.keras" if version < NO_ZERO else "keras 3"

    def write(self, settings: Settings, version: Version) -> Any:
        if version < TF_KERAS:
            threshold = self.export_threshold(settings, rules=["global_norm", "value"], family="paddle", zero="off")
            return {"clipvalue" if settings.rule == "value" else "clipnorm": threshold or 0.0}
        threshold = self.export_threshold(settings, zero="zeros" if version < NO_ZERO else "off")
        return dict.fromkeys(NAMES) | ({} if threshold is None else {KEYS[settings.rule]: threshold})


KERAS = Keras(trainers()["keras"])


def _place(document: Document) -> list[str]:
    """Return the path of the optimizer's table, or of its inner optimizer's table if the optimizer scales the loss."""
    place: list[str] = []
    for keys in (["compile_config"], ["optimizer"], ["config"], ["inner_optimizer", "config"]):
        table = document.get(*place)
        if isinstance(table, dict) and keys[0] in table:
            place += keys
    return place


def _clips(nested: Any) -> bool:
    if isinstance(nested, list):
        return any(map(_clips, nested))
    if not isinstance(nested, dict):
        return False
    return any(nested.get(name) is not None for name in NAMES) or any(map(_clips, nested.values()))
