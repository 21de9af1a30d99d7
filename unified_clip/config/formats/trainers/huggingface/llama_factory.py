"""The YAML and JSON format of LLaMA-Factory, with the keys of Hugging Face's TrainingArguments and more keys."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document, infinity
from ...base import Imported, default_note, paths
from .training_arguments import NULL, WITHOUT_CLIPPING, HuggingFace

LAYERWISE = ("galore_layerwise", "apollo_layerwise")
V1_SKIPS = "LLaMA-Factory's v1 trainer skips a step if the norm is not finite."
V1_KEYS = ("dist_config", "kernel_config", "sample_backend", "batching_strategy")
"""Only the trainer of the package llamafactory.v1 has these keys."""


class LlamaFactory(HuggingFace):
    name, title = "llama_factory", "LLaMA-Factory"
    source = "src/llamafactory/hparams, src/llamafactory/train, src/llamafactory/v1/core/base_trainer.py"
    newest = "0.9.5"
    extends = "hf"
    is_yaml_11 = False  # OmegaConf reads the file
    instead = ""
    own_keys = paths("""
        finetuning_type pure_bf16 use_badam use_galore use_apollo dataset_dir plot_loss
        sample_backend kernel_config dist_config.name
    """)
    vocabulary = HuggingFace.vocabulary | {
        "stage",
        "template",
        "dataset",
        "model_name_or_path",
        "model",
        "train_dataset",
    }
    not_finite = f"{V1_SKIPS} {HuggingFace.not_finite}"

    def read(self, document: Document, version: Version | None) -> Imported:
        if document.get("export_dir") is not None and not document.has("stage"):
            problem = "the file exports a model, and trains nothing. Import the file that trains the model."
            raise document.wrong(["export_dir"], problem)
        for name in LAYERWISE:
            if document.get(name) is True:
                problem = "with this key, the optimizer updates parameters in the backward pass, before Trainer clips."
                raise document.wrong([name], f"{problem} {WITHOUT_CLIPPING}")
        if document.get("max_grad_norm", default=1.0) is None:
            raise document.wrong(["max_grad_norm"], NULL)
        if any(document.has(name) for name in V1_KEYS):
            return self._v1(document)
        imported = super().read(document, version)
        if document.get("stage") == "ppo" and imported.settings["rule"] == "none":
            remedy = f"Set {infinity(document.kind)} to clip nothing."
            problem = "with 0, TRL's PPO makes all gradients 0. Negative numbers change the signs of gradients."
            raise document.wrong(["max_grad_norm"], f"{problem} {remedy}")
        return imported

    def _v1(self, document: Document) -> Imported:
        if document.has("dist_config") and str(document.get("dist_config", "name")) == "deepspeed":
            raise document.wrong(
                ["dist_config"], "DeepSpeed's own configuration sets the clip. Import that configuration."
            )
        threshold = self.read_threshold(document, ["max_grad_norm"], 1.0, zero="zeros", null="error")
        notes = default_note(document, ["max_grad_norm"], "LLaMA-Factory clips at 1.0")
        return Imported(self.settings("global_norm", threshold), notes, V1_SKIPS, "skip")
