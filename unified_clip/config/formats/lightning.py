"""LightningCLI's YAML: `trainer.gradient_clip_val` and `trainer.gradient_clip_algorithm`.

Hydra's configuration of a Trainer (`_target_: lightning.pytorch.Trainer`) has the same keys at its top level.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from ..documents import Document, Key
from ..schema import Settings
from .base import Format, FormatKey, Imported, exported_threshold, global_norm_settings, has_key, read_threshold

VALUE, ALGORITHM = "gradient_clip_val", "gradient_clip_algorithm"

HYDRA_TRAINER = re.compile(r"(lightning|pytorch_lightning|pl)(\.\w+)*\.Trainer")
"""The class in Hydra's `_target_`."""


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
        FormatKey("trainer.gradient_clip_val", "", "null", "the threshold, for each optimizer; null, 0 or less: off"),
        FormatKey("trainer.gradient_clip_algorithm: norm", "", "norm", "the global norm, PyTorch's rule"),
        FormatKey("trainer.gradient_clip_algorithm: value", "", "", "each element"),
        FormatKey("fit.trainer", "", "", "the same, for the subcommand fit", "imported"),
        FormatKey("trainer.strategy: fsdp, with norm", "", "", "Lightning rejects it", "rejected"),
        FormatKey("trainer.strategy: deepspeed, with value", "", "", "Lightning rejects it", "rejected"),
    )

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return ((VALUE,), (ALGORITHM,)) if _is_hydra_trainer(document) else self.clip_keys

    def recognises(self, document: Document) -> bool:
        if _is_hydra_trainer(document):
            return True
        own = ("gradient_clip_val", "max_epochs", "max_steps", "accelerator", "fast_dev_run", "limit_train_batches")
        return any(has_key(document, *place, key) for place in (["trainer"], ["fit", "trainer"]) for key in own)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        place = _trainer(document)
        if not has_key(document, *place, VALUE):
            notes.append("The file does not set gradient_clip_val. By default, Lightning clips nothing.")
        limit = read_threshold(document, [*place, VALUE], None, zero="off", negative="off")
        algorithm = document.get(*place, ALGORITHM)
        name = "norm" if algorithm is None else str(algorithm).lower()
        if name not in ("norm", "value"):
            raise document.wrong(
                [*place, ALGORITHM], f"{algorithm!r:.60} is not an algorithm of Lightning. Set norm or value."
            )
        if limit is None:
            return Imported({"rule": "none"}, notes)
        self._check_strategy(document, place, name)
        notes.append("Lightning clips per optimizer. With several, attach the configuration to each.")
        if name == "value":
            return Imported({"rule": "value", "threshold": limit}, notes)
        return Imported(global_norm_settings(limit, "pytorch"), notes)

    def _check_strategy(self, document: Document, place: list[str], algorithm: str) -> None:
        strategy = document.get(*place, "strategy", default="auto")
        if isinstance(strategy, dict):
            strategy = strategy.get("class_path", "")
        for rejected, name in (("norm", "fsdp"), ("value", "deepspeed")):
            if algorithm == rejected and name in str(strategy).lower():
                raise document.wrong(
                    [*place, "strategy"],
                    f"Lightning rejects gradient_clip_algorithm = {rejected!r} with {strategy}. Change one of them.",
                )

    def write(self, settings: Settings, version: Version) -> Any:
        limit = exported_threshold(settings, self, rules=["global_norm", "value"], family="pytorch", zero="off")
        if limit is None:
            return {"trainer": {VALUE: None}}
        algorithm = "value" if settings.rule == "value" else "norm"
        return {"trainer": {VALUE: limit, ALGORITHM: algorithm}}


def _is_hydra_trainer(document: Document) -> bool:
    target = document.get("_target_") if has_key(document, "_target_") else None
    return isinstance(target, str) and HYDRA_TRAINER.fullmatch(target) is not None


def _trainer(document: Document) -> list[str]:
    """Return the path of the trainer's table. A file may have one per subcommand; only fit clips."""
    if _is_hydra_trainer(document):
        return []
    document.get("fit", "trainer", VALUE)  # raises unless they are tables
    if not has_key(document, "fit", "trainer"):
        return ["trainer"]
    if has_key(document, "trainer"):
        raise document.wrong(["trainer"], "the file sets fit.trainer too. Remove one of them.")
    return ["fit", "trainer"]
