"""Keras' JSON of an optimizer: `clipnorm`, `global_clipnorm`, `clipvalue`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from packaging.version import Version

from ..documents import Document
from ..documents import Key as Part
from ..schema import Settings
from .base import Format, Imported, Key, finite, global_norm, norm, plain_threshold, threshold, value

NAMES = ("clipnorm", "global_clipnorm", "clipvalue")

TF_KERAS = Version("2.4")
"""From which on Keras is TensorFlow's; before, it was a package of its own with a `clipnorm` over all gradients."""

NO_ZERO = Version("2.11")
"""From which on 0 switches clipping off."""

Era = Literal["standalone", "tf.keras", "keras 3"]


class Keras(Format):
    name = "keras"
    title = "Keras"
    kinds = ("json",)
    source = "keras/src/optimizers/base_optimizer.py; 2.3.1: keras/optimizers.py"
    newest = "3.15.1"
    instead = "`ClipConfig.attach_to`"
    clip_keys = tuple((name,) for name in NAMES)
    vocabulary = frozenset({"learning_rate", "class_name", "config", "name", "optimizer", "compile_config"})
    needs_version = (
        "clipnorm is one norm over all gradients in Keras 2.3.1 and before, and that of each tensor in tf.keras and "
        "Keras 3; and 0 makes gradients 0 before 2.11, and is off from then on (tf.keras of TensorFlow 2.0 to 2.3 "
        "counts as keras@2.4)"
    )
    keys = (
        Key("clipnorm", "2.0 to 2.3.1", "absent", "the global norm, with eps = 0; 0 or less: off"),
        Key("clipnorm", "tf.keras to 2.10", "null", "each tensor by its own norm; 0: all gradients become 0"),
        Key("clipnorm", "2.11 and later", "null", "each tensor by its own norm; 0 or less: off"),
        Key("global_clipnorm", "tf.keras to 2.10", "null", "the global norm; 0: all gradients become 0"),
        Key("global_clipnorm", "2.11 and later", "null", "the global norm, TensorFlow's rule; 0 or less: off"),
        Key("clipvalue", "2.0 to 2.3.1", "absent", "each element; 0 or less: off"),
        Key("clipvalue", "tf.keras to 2.10", "null", "each element; 0: all gradients become 0"),
        Key("clipvalue", "2.11 and later", "null", "each element; 0 or less: off"),
        Key("global_clipnorm", "2.0 to 2.3.1", "", "is not known there", "refused"),
        Key("optimizer_specs.[].optimizer", "", "", "several optimizers, each with its own", "refused"),
        Key("two of them", "", "", "refused by Keras 3; before, both clip or one wins", "refused"),
    )

    def places(self, document: Document) -> Sequence[tuple[Part, ...]]:
        place = _place(document)
        inner = document.get(*place)
        wrapped = [key for key, value in inner.items() if _clips(value)] if isinstance(inner, dict) else []
        return [*((*place, name) for name in NAMES), *((*place, key) for key in wrapped if key not in NAMES)]

    def recognises(self, document: Document) -> bool:
        if document.kind != "json" or not isinstance(document.data, dict):
            return False
        config = document.get(*_place(document))
        return isinstance(config, dict) and not config.keys().isdisjoint(NAMES)

    def read(self, document: Document, version: Version | None) -> Imported:
        place = _place(document)
        config = document.get(*place)
        if not isinstance(config, dict):
            raise document.wrong(place, f"it is {config!r:.60}; it should be a table with the optimizer's arguments")
        for name, nested in config.items():
            if _clips(nested):
                raise document.wrong(
                    [*place, name],
                    "there are optimizers in it, each with a clip of its own; write a configuration for each, and "
                    "attach it to that optimizer",
                )
        given = [name for name in NAMES if document.get(*place, name) is not None]
        if len(given) > 1:
            raise document.wrong(
                [*place, given[1]], f"{given[0]} is there too, and what both do depends on Keras; leave one of them"
            )
        if not given:
            unset = config.keys().isdisjoint(NAMES)
            note = f"The file does not set {', '.join(NAMES)}. By default, Keras clips nothing."
            return Imported({"rule": "none"}, [note] if unset else [])
        keys = [*place, given[0]]
        if given[0] == "global_clipnorm" and version and self._era(document, place, version) == "standalone":
            raise document.wrong(keys, "Keras before 2.4 does not have it; write clipnorm, which is the same there")
        era: Era = "keras 3"
        if given[0] == "clipnorm" or not _is_above_0(document.get(*keys)):
            era = self._era(document, place, version)
        limit = threshold(
            document,
            keys,
            None,
            zero="zeros" if era == "tf.keras" else "off",
            negative="error" if era == "tf.keras" else "off",
        )
        if given[0] == "clipvalue":
            return Imported(value(limit))
        limit = finite(document, keys, limit)
        if given[0] == "global_clipnorm":
            return Imported(global_norm(limit, "tensorflow"))
        told = (
            "one norm over all gradients; from 2.4 on it is" if era == "standalone" else "not over all gradients, but"
        )
        notes = [] if limit is None else [f"clipnorm of this Keras is {told} that of each tensor"]
        return Imported(global_norm(limit, "paddle") if era == "standalone" else norm(limit, "tensorflow"), notes)

    def _era(self, document: Document, place: list[str], version: Version | None) -> Era:
        """Which Keras has written it, which newer ones tell."""
        config, wrapper = document.get(*place), document.get(*place[:-1])
        legacy = config.get("is_legacy_optimizer")
        if legacy is not None:
            return "tf.keras" if legacy else "keras 3"
        if version is None and ("registered_name" in wrapper or "loss_scale_factor" in config):
            return "keras 3"
        version = self.version(version, document)
        return "standalone" if version < TF_KERAS else "tf.keras" if version < NO_ZERO else "keras 3"

    def write(self, settings: Settings, version: Version) -> Any:
        old = version < TF_KERAS
        limit = plain_threshold(
            settings,
            self,
            rules=["global_norm", "value"] if old else ["norm", "global_norm", "value"],
            family="paddle" if old else "tensorflow",
            zero="zeros" if TF_KERAS <= version < NO_ZERO else "off",
        )
        name = {"global_norm": "clipnorm" if old else "global_clipnorm", "norm": "clipnorm", "value": "clipvalue"}
        if old:
            return {name.get(settings.rule, "clipnorm"): limit or 0.0}
        return dict.fromkeys(NAMES) | ({} if limit is None else {name[settings.rule]: limit})


def _place(document: Document) -> list[str]:
    """Where the configuration stands: all of the file, or what wraps it.

    `keras.optimizers.serialize` wraps it, `model.get_compile_config()` that, and the config.json of a .keras file both;
    an optimizer that scales the loss wraps another.
    """
    place: list[str] = []
    for keys in (["compile_config"], ["optimizer"], ["config"], ["inner_optimizer", "config"]):
        found = document.get(*place)
        if isinstance(found, dict) and keys[0] in found:
            place += keys
    return place


def _clips(nested: Any) -> bool:
    """Whether a clip stands anywhere inside."""
    if isinstance(nested, list):
        return any(map(_clips, nested))
    if not isinstance(nested, dict):
        return False
    return any(nested.get(name) is not None for name in NAMES) or any(map(_clips, nested.values()))


def _is_above_0(found: Any) -> bool:
    return isinstance(found, int | float) and found > 0
