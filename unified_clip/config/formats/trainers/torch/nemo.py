"""The YAML format of NeMo, with a clip key of Lightning, Megatron-Core or NeMo-Aligner."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ...base import Format, Imported, default_note, paths
from .lightning import ALGORITHM, VALUE, Lightning

MEGATRON = ("optim", "config", "clip_grad")
ALIGNER = ["sft", "rm", "ppo", "dpo", "kto", "rs", "reinforce", "spin", "knowledge_distillation", "draftp_sd"]
"""NeMo-Aligner reads `gradient_clip_val` in these tables of `trainer`, and ignores `trainer.gradient_clip_val`."""


class NeMo(Lightning):
    name, title = "nemo", "NeMo"
    kinds = ("yaml",)
    source = (
        "nemo/collections/nlp/models/language_modeling/megatron_base_model.py, nemo/core/config/pytorch_lightning.py; "
        "NeMo-Aligner: nemo_aligner/utils/train_utils.py"
    )
    newest = "2.6.0"
    extends = "lightning"
    instead = ""
    own_keys = paths("exp_manager optim.config.clip_grad model.train_ds.manifest_filepath")
    clip_keys = (
        *paths(f"trainer.{VALUE} trainer.{ALGORITHM}"),
        MEGATRON,
        *(("trainer", name, VALUE) for name in ALIGNER),
    )
    vocabulary = Lightning.vocabulary | {"model", "name", "exp_manager", "optim"}

    recognises = Format.recognises

    def read(self, document: Document, version: Version | None) -> Imported:
        if self._has_megatron_optimizer(document):
            return self._megatron(document)
        if tables := [name for name in ALIGNER if document.shows("trainer", name)]:
            return self._aligner(document, tables)
        is_megatron = document.has("model", "tensor_model_parallel_size")
        if is_megatron and str(document.get("trainer", ALGORITHM)).lower() == "value":
            problem = "NeMo's Megatron models clip by the global norm only. Set this key to norm, or remove this key."
            raise document.wrong(["trainer", ALGORITHM], problem)
        return super().read(document, version)

    def _aligner(self, document: Document, tables: list[str]) -> Imported:
        if len(tables) > 1:
            raise document.wrong(
                ["trainer", tables[1]],
                f"the file sets trainer.{tables[0]} too. Remove the section that your training does not use.",
            )
        if document.get("trainer", VALUE) is not None:
            raise document.wrong(
                ["trainer", VALUE],
                f"NeMo-Aligner ignores this key. Remove the key. To clip, set trainer.{tables[0]}.{VALUE}.",
            )
        place = ("trainer", tables[0], VALUE)
        notes = default_note(document, place, "NeMo-Aligner clips nothing")
        return Imported(self.settings("global_norm", self.read_threshold(document, place)), notes)

    def _has_megatron_optimizer(self, document: Document) -> bool:
        if not document.has("optim", "config"):
            return False
        target = document.get("optim", "config", "_target_")
        return document.has(*MEGATRON) or (isinstance(target, str) and target.startswith("megatron."))

    def _megatron(self, document: Document) -> Imported:
        if (self.read_threshold(document, ["trainer", VALUE])) is not None:
            raise document.wrong(
                ["trainer", VALUE], "Megatron-Core's optimizer clips. Set optim.config.clip_grad instead."
            )
        threshold = self.read_threshold(document, MEGATRON, 1.0, null="error")
        return Imported(
            self.settings("global_norm", threshold), default_note(document, MEGATRON, "Megatron-Core clips at 1.0")
        )
