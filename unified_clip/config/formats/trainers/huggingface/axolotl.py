"""The YAML format of Axolotl. Axolotl passes the key `max_grad_norm` to Hugging Face's TrainingArguments."""

from __future__ import annotations

import dataclasses

from packaging.version import Version

from ....documents import Document
from ...base import Imported, paths
from .training_arguments import HuggingFace


class Axolotl(HuggingFace):
    name, title = "axolotl", "Axolotl"
    kinds = ("yaml",)
    source = "src/axolotl/core/builders/base.py, src/axolotl/utils/schemas/training.py"
    newest = "0.18.0"
    extends = "hf"
    instead = ""
    own_keys = paths("""
        dataset_prepared_path sample_packing pad_to_sequence_len lora_target_linear sequence_len
        evals_per_epoch saves_per_epoch
    """)
    vocabulary = HuggingFace.vocabulary | {"base_model", "datasets", "adapter", "micro_batch_size", "num_epochs"}
    optimizer_key = "optimizer"
    is_yaml_11 = False  # Axolotl converts text

    def read(self, document: Document, version: Version | None) -> Imported:
        if document.has("max_grad_norm") and document.get("max_grad_norm") is None:
            data = {key: value for key, value in document.data.items() if key != "max_grad_norm"}
            document = dataclasses.replace(document, data=data)
        return super().read(document, version)
