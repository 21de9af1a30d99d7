"""MaxText's YAML: `gradient_clipping_threshold`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ..documents import Document
from ..schema import Settings
from .base import Format, FormatKey, Imported, exported_threshold, global_norm_settings, has_key, read_threshold

KEY = "gradient_clipping_threshold"
BASE = "base.yml"


class MaxText(Format):
    name = "maxtext"
    title = "MaxText"
    kinds = ("yaml",)
    source = "src/maxtext/configs/base.yml, configs/types.py, utils/maxtext_utils.py"
    newest = "2025.8.22"
    clip_keys = ((KEY,),)
    vocabulary = frozenset(
        {
            "base_output_directory",
            "per_device_batch_size",
            "dataset_path",
            "dataset_type",
            "model_name",
            "run_name",
            "steps",
            "hardware",
            "enable_checkpointing",
        }
    )
    keys = (
        FormatKey(KEY, "", "1.0", "the global norm, optax's rule (eps = 0); 0: off"),
        FormatKey(
            f"no {KEY}, but a base_config that is not base.yml",
            "",
            "dpo.yml 10.0, rl.yml 0.1",
            "that file sets it",
            "rejected",
        ),
    )

    def recognises(self, document: Document) -> bool:
        known = {KEY, "base_config", "base_emb_dim", "base_num_decoder_layers", "ici_fsdp_parallelism"}
        return document.kind == "yaml" and isinstance(document.data, dict) and not known.isdisjoint(document.data)

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = []
        if not has_key(document, KEY):
            base = str(document.get("base_config", default=BASE))
            if base.rpartition("/")[2] != BASE:
                raise document.wrong(["base_config"], f"the file does not set {KEY}, and {base} may. Import {base}.")
            notes.append(f"The file does not set {KEY}. By default, MaxText clips at 1.0.")
        return Imported(
            global_norm_settings(read_threshold(document, [KEY], 1.0, zero="off", null="error"), "paddle"), notes
        )

    def write(self, settings: Settings, version: Version) -> Any:
        limit = exported_threshold(settings, self, rules=["global_norm"], family="paddle", zero="off")
        return {KEY: limit or 0.0}
