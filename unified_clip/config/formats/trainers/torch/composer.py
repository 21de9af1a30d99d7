"""The YAML format of llm-foundry, which trains with Composer. The clip key is `algorithms.gradient_clipping`."""

from __future__ import annotations

import math
from typing import Any

from packaging.version import Version

from ....documents import Document, Key
from ....documents.inheritance.hydra import Hydra
from ....schema import Settings
from ...agc import agc_settings, exported_agc
from ...base import Format, Imported, words

ALGORITHM, KIND, THRESHOLD = "gradient_clipping", "clipping_type", "clipping_threshold"
ROOTS: tuple[tuple[str, ...], ...] = ((), ("parameters",))
"""In a file for `mcli run`, the configuration is in `parameters`. In other files, it is at the top level."""

BATCH_SIZES = ("device_train_microbatch_size", "global_train_batch_size")
"""A file of Composer has `train_loader` and one of these keys."""

AGC_FSDP = "training fails: with FSDP, Composer has no adaptive clipping. Set norm or value."
FSDP_VALUE = (
    "With FSDP 1, the clipping_type 'value' clips by the global norm with norm type inf. With FSDP 2 or without FSDP, "
    "Composer clips each element."
)


class Composer(Format):
    name, title = "composer", "Composer"
    kinds = ("yaml",)
    inheritance = Hydra()  # for the interpolations of OmegaConf
    source = "composer/algorithms/gradient_clipping/gradient_clipping.py, llm-foundry: llmfoundry/algorithms"
    newest = "0.32.1"
    own_keys = tuple((*root, "algorithms", ALGORITHM) for root in ROOTS)
    clip_keys = tuple(
        (*root, "algorithms", *within, ALGORITHM, *key)
        for key in ((THRESHOLD,), (KIND,), ())
        for root in ROOTS
        for within in ((), ("*",))
    )
    mode_keys = words(KIND)
    vocabulary = words("""
        max_duration eval_interval train_loader eval_loader optimizer scheduler algorithms fsdp_config callbacks
        precision parameters variables
    """)
    rules = ("global_norm", "value")
    zero = "zeros"

    def recognises(self, document: Document) -> bool:
        return super().recognises(document) or any(
            document.shows(*root, "train_loader") and any(document.shows(*root, size) for size in BATCH_SIZES)
            for root in ROOTS
        )

    def read(self, document: Document, version: Version | None) -> Imported:
        root: tuple[Key, ...] = () if document.has("algorithms") or not document.has("parameters") else ("parameters",)
        place = self._place(document, root)
        if place is None:
            return Imported(
                {"rule": "none"}, ["The file sets no gradient_clipping. By default, Composer clips nothing."]
            )
        if not isinstance(document.get(*place), dict):
            raise document.wrong(place, f"Composer needs {KIND} and {THRESHOLD}. Set both.")
        kind = document.get(*place, KIND)
        if not document.has(*place, KIND):
            raise document.wrong(place, f"training fails without {KIND}. Set it to norm, value or adaptive.")
        if kind not in ("norm", "value", "adaptive"):
            raise document.wrong([*place, KIND], f"{kind!r:.60} is not a clipping_type. Set norm, value or adaptive.")
        threshold = self.read_threshold(document, [*place, THRESHOLD], null="error")
        if kind == "adaptive" and document.get(*root, "fsdp_config"):
            raise document.wrong([*place, KIND], AGC_FSDP)
        if kind == "adaptive":
            return Imported(agc_settings(threshold, "composer"))
        if kind == "value" and document.get(*root, "fsdp_config"):
            return Imported(self.settings("global_norm", threshold, math.inf), [FSDP_VALUE])
        return Imported(self.settings("value" if kind == "value" else "global_norm", threshold))

    def _place(self, document: Document, root: tuple[Key, ...]) -> list[Key] | None:
        algorithms = document.get(*root, "algorithms")
        if isinstance(algorithms, list):
            tables = [[*root, "algorithms", i] for i, table in enumerate(algorithms) if isinstance(table, dict)]
        else:
            document.get(*root, "algorithms", ALGORITHM)  # raises unless both values are tables
            tables = [[*root, "algorithms"]]
        places: list[list[Key]] = [[*table, ALGORITHM] for table in tables if document.has(*table, ALGORITHM)]
        if len(places) > 1:
            raise document.wrong(
                places[1],
                "the file contains this algorithm twice. unified_clip does not support this. Remove the entry that "
                "your training does not use.",
            )
        return places[0] if places else None

    def write(self, settings: Settings, version: Version) -> Any:
        agc = exported_agc(self, settings, "composer")
        if agc is not None:
            return {"algorithms": {ALGORITHM: {KIND: "adaptive", THRESHOLD: agc.clip_factor}}}
        threshold = self.export_threshold(settings)
        clip = {KIND: "value" if settings.rule == "value" else "norm", THRESHOLD: threshold}
        return {"algorithms": {} if threshold is None else {ALGORITHM: clip}}
