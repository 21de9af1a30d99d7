"""The YAML format of MaxText, with the key `gradient_clipping_threshold`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from ....documents import Document
from ....documents.inheritance.base_files import BaseFiles
from ...base import Format, Imported, default_note, paths, words

KEY = "gradient_clipping_threshold"


@dataclass(frozen=True)
class MaxTextBases(BaseFiles):
    def path(self, text: str, folder: Path) -> Path | str:
        path = super().path(text, folder)
        own = [parent / text for parent in folder.resolve().parents if parent.name == "configs"]
        return next((each for each in own if each.is_file()), path) if not Path(path).is_file() else path


class MaxText(Format):
    name, title = "maxtext", "MaxText"
    kinds = ("yaml",)
    source = "src/maxtext/configs/base.yml, configs/types.py, configs/pyconfig.py, utils/maxtext_utils.py"
    newest = "2025.8.22"
    instead = f"wrap MaxText's optimizer by `clip.as_optax(optimizer)`, and set {KEY} to 0"
    own_keys = paths(f"{KEY} base_emb_dim base_num_decoder_layers")
    inheritance = MaxTextBases(
        "base_config", f"Correct the path of the base file, or set {KEY} in this file.", defaults="base.yml"
    )
    clip_keys = option_keys = paths(KEY)
    vocabulary = words("""
        base_output_directory per_device_batch_size dataset_path dataset_type model_name run_name steps hardware
        enable_checkpointing max_target_length tokenizer_path logical_axis_rules remat_policy attention
    """)
    family = "paddle"  # like Paddle's rule, optax's adds no eps

    def recognises(self, document: Document) -> bool:
        has_base = document.shows("base_config") and not self.vocabulary.isdisjoint(document.data)
        return has_base or super().recognises(document)

    def read(self, document: Document, version: Version | None) -> Imported:
        threshold = self.read_threshold(document, [KEY], 1.0, negative="error", null="error")
        return Imported(self.settings("global_norm", threshold), default_note(document, [KEY], "MaxText clips at 1.0"))
