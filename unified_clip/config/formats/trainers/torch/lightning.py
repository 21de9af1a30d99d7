"""The YAML format of LightningCLI, with the keys `trainer.gradient_clip_val` and `trainer.gradient_clip_algorithm`.

A Hydra configuration of a Trainer has the same keys at its top level. The programs of CompVis and Stability AI have the
same keys in `lightning.trainer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar

from packaging.version import Version

from ....documents import Document, Key
from ....documents.inheritance.hydra import Hydra
from ....schema import Rule, Settings
from ... import engines
from ...base import FP16, Format, Imported, default_note, words

VALUE, ALGORITHM = "gradient_clip_val", "gradient_clip_algorithm"
BATCHES = "limit_train_batches"

ROOTS: tuple[tuple[str, ...], ...] = (("trainer",), ("fit", "trainer"), ("lightning", "trainer"))

HYDRA_TRAINER = re.compile(r"(lightning|pytorch_lightning|pl)(\.\w+)*\.Trainer")


class Lightning(Format):
    name, title = "lightning", "Lightning"
    kinds: ClassVar[tuple[str, ...]] = ("yaml", "json")
    source = (
        "lightning: src/lightning/pytorch/plugins/precision/precision.py, src/lightning/pytorch/strategies; "
        "hydra: hydra/_internal/defaults_list.py; latent-diffusion: main.py"
    )
    newest = "2.6.6"
    instead = "pass `ClipCallback(clip)` of `unified_clip.integrations.lightning_callback` to the Trainer"
    own_keys: ClassVar[Sequence[tuple[str, ...]]] = (
        *((*root, key) for root in ROOTS for key in (VALUE, "max_epochs", "accelerator", "fast_dev_run", BATCHES)),
        ROOTS[-1],
    )
    inheritance = Hydra()
    clip_keys: ClassVar[Sequence[tuple[str, ...]]] = tuple((*root, key) for root in ROOTS for key in (VALUE, ALGORITHM))
    mode_keys = words(ALGORITHM)
    vocabulary: ClassVar[Set[str]] = words("trainer fit lightning seed_everything ckpt_path")
    rules = ("global_norm", "value")
    fp16: ClassVar[Mapping[str, Sequence[Any]]] = {"precision": ("16-mixed", "16", 16)}
    not_finite = FP16

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        return ((VALUE,), (ALGORITHM,)) if _is_hydra_trainer(document) else self.clip_keys

    def recognises(self, document: Document) -> bool:
        if _target(document, "trainer") and not _is_hydra_trainer(document, "trainer"):
            return False
        return _is_hydra_trainer(document) or super().recognises(document)

    def read(self, document: Document, version: Version | None) -> Imported:
        place = _trainer(document)
        notes = default_note(document, [*place, VALUE], "Lightning clips nothing")
        threshold = self.read_threshold(document, [*place, VALUE])
        algorithm = document.get(*place, ALGORITHM)
        name = "norm" if algorithm is None else str(algorithm).lower()
        if name not in ("norm", "value"):
            raise document.wrong([*place, ALGORITHM], f"{algorithm!r:.60} is not supported. Set norm or value.")
        rule: Rule = "value" if name == "value" else "global_norm"
        if threshold is not None:
            strategy = engines.strategy_name(document.get(*place, "strategy", default="auto"))
            if engines.REJECTED.get(("lightning", engines.of_strategy(strategy))) == rule:
                other = "norm" if name == "value" else "value"
                problem = f"Lightning rejects {ALGORITHM} = {name} with this strategy, {strategy}."
                advice = f"Set {ALGORITHM} to {other}, or choose another strategy."
                raise document.wrong([*place, "strategy"], f"{problem} {advice}")
            notes.append(
                "Lightning clips each optimizer separately. If you have several, attach the clip configuration to "
                "every optimizer."
            )
        return Imported(self.settings(rule, threshold), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        mode = {} if threshold is None else {ALGORITHM: "value" if settings.rule == "value" else "norm"}
        return {"trainer": {VALUE: threshold, **mode}}


def _target(document: Document, *table: str) -> Any:
    return document.get(*table, "_target_") if document.shows(*table, "_target_") else None


def _is_hydra_trainer(document: Document, *table: str) -> bool:
    target = _target(document, *table)
    return isinstance(target, str) and HYDRA_TRAINER.fullmatch(target) is not None


def _trainer(document: Document) -> list[str]:
    if _is_hydra_trainer(document):
        return []
    for table, _ in ROOTS[1:]:
        if document.shows(table):
            document.get(table, "trainer", VALUE)  # raises unless the values on the path are tables
    shown = [root for root in ROOTS if document.shows(*root)] or [ROOTS[0]]
    if len(shown) > 1:
        raise document.wrong(
            shown[0], f"the file also sets {'.'.join(shown[1])}. Remove the section that your program does not read."
        )
    return list(shown[0])
