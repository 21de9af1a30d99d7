"""LightningCLI's YAML: `trainer.gradient_clip_val` and `trainer.gradient_clip_algorithm`.

Hydra's configuration of a Trainer (`_target_: lightning.pytorch.Trainer`) has the same keys at its top level.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from ..documents import Document
from ..documents import Key as Part
from ..schema import Settings
from .base import Format, Imported, Key, global_norm, holds, plain_threshold, threshold

VALUE, ALGORITHM = "gradient_clip_val", "gradient_clip_algorithm"

HYDRA_TRAINER = re.compile(r"(lightning|pytorch_lightning|pl)(\.\w+)*\.Trainer")
"""The class that Hydra's `_target_` names."""


class Lightning(Format):
    name = "lightning"
    title = "Lightning"
    kinds = ("yaml", "json")
    source = "lightning: src/lightning/pytorch/plugins/precision/precision.py, src/lightning/pytorch/strategies"
    newest = "2.6.6"
    instead = "`ClipCallback`"
    clip_keys = (("trainer", VALUE), ("trainer", ALGORITHM), ("fit", "trainer", VALUE), ("fit", "trainer", ALGORITHM))
    mode_keys = frozenset({ALGORITHM})
    vocabulary = frozenset({"trainer", "fit", "seed_everything", "ckpt_path"})
    keys = (
        Key("trainer.gradient_clip_val", "", "null", "the threshold, for each optimizer; null, 0 or less: off"),
        Key("trainer.gradient_clip_algorithm: norm", "", "norm", "the global norm, PyTorch's rule"),
        Key("trainer.gradient_clip_algorithm: value", "", "", "each element"),
        Key("fit.trainer", "", "", "the same, of the subcommand fit", "imported"),
        Key("trainer.strategy: fsdp, with norm", "", "", "Lightning refuses it", "refused"),
        Key("trainer.strategy: deepspeed, with value", "", "", "Lightning refuses it", "refused"),
    )

    def places(self, document: Document) -> Sequence[tuple[Part, ...]]:
        return ((VALUE,), (ALGORITHM,)) if _is_hydra_trainer(document) else self.clip_keys

    def recognises(self, document: Document) -> bool:
        if _is_hydra_trainer(document):
            return True
        own = ("gradient_clip_val", "max_epochs", "max_steps", "accelerator", "fast_dev_run", "limit_train_batches")
        return any(holds(document, *place, key) for place in (["trainer"], ["fit", "trainer"]) for key in own)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        place = _trainer(document)
        if not holds(document, *place, VALUE):
            notes.append("The file does not set gradient_clip_val. By default, Lightning clips nothing.")
        limit = threshold(document, [*place, VALUE], None, zero="off", negative="off")
        algorithm = document.get(*place, ALGORITHM)
        name = "norm" if algorithm is None else str(algorithm).lower()
        if name not in ("norm", "value"):
            raise document.wrong([*place, ALGORITHM], f"it is {algorithm!r:.60}; Lightning knows norm and value")
        if limit is None:
            return Imported({"rule": "none"}, notes)
        self._check_strategy(document, place, name)
        notes.append("Lightning clips each optimizer's gradients on their own; with several, attach it to each")
        if name == "value":
            return Imported({"rule": "value", "threshold": limit}, notes)
        return Imported(global_norm(limit, "pytorch"), notes)

    def _check_strategy(self, document: Document, place: list[str], algorithm: str) -> None:
        strategy = document.get(*place, "strategy", default="auto")
        if isinstance(strategy, dict):
            strategy = strategy.get("class_path", "")
        for refused, spelled in (("norm", "fsdp"), ("value", "deepspeed")):
            if algorithm == refused and spelled in str(strategy).lower():
                raise document.wrong(
                    [*place, "strategy"],
                    f"it is {strategy}, with which Lightning refuses gradient_clip_algorithm = {refused!r}; choose "
                    "another of the two",
                )

    def write(self, settings: Settings, version: Version) -> Any:
        limit = plain_threshold(settings, self, rules=["global_norm", "value"], family="pytorch", zero="off")
        if limit is None:
            return {"trainer": {VALUE: None}}
        algorithm = "value" if settings.rule == "value" else "norm"
        return {"trainer": {VALUE: limit, ALGORITHM: algorithm}}


def _is_hydra_trainer(document: Document) -> bool:
    target = document.get("_target_") if holds(document, "_target_") else None
    return isinstance(target, str) and HYDRA_TRAINER.fullmatch(target) is not None


def _trainer(document: Document) -> list[str]:
    """Where the trainer's table stands: a file may have one for each subcommand, of which only fit clips."""
    if _is_hydra_trainer(document):
        return []
    document.get("fit", "trainer", VALUE)  # a table, if it is there
    if not holds(document, "fit", "trainer"):
        return ["trainer"]
    if holds(document, "trainer"):
        raise document.wrong(["trainer"], "fit.trainer is there too, and which of them counts cannot be told")
    return ["fit", "trainer"]
