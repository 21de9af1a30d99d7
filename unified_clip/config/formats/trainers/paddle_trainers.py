"""Formats of trainers on Paddle: PaddleNLP and PaddleFormers, PaddleDetection, PaddleClas, PaddleOCR."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ...._static_values import is_number
from ...documents import Document, Key
from ...schema import Rule, Settings
from ..base import Format, FormatKey, Imported, check_size, default_note, imported_key, paths, rejected_key, words
from .huggingface import TRAINING_ARGUMENTS
from .paddle import PER_GROUP, zero_of

PER_TENSOR = "clip_norm clips per tensor, not by the total norm."


class PaddleNLP(Format):
    """The format of PaddleNLP's TrainingArguments, JSON or YAML. Keys that Hugging Face's format lacks identify it."""

    name, title = "paddlenlp", "PaddleNLP, PaddleFormers"
    kinds = ("json", "yaml")
    source = "paddlenlp/trainer/trainer.py, paddleformers/trainer/trainer.py"
    newest = "2.8.1"
    own_keys = paths("""
        tensor_parallel_degree pipeline_parallel_degree pipeline_parallel_config sep_parallel_degree sharding
        sharding_parallel_degree sharding_parallel_config unified_checkpoint
    """)
    clip_keys = paths("max_grad_norm")
    vocabulary = TRAINING_ARGUMENTS
    family = "paddle"
    keys = (
        FormatKey("max_grad_norm", "the global norm, Paddle's rule; 0 or less: off, but not in prompt_trainer", "1.0"),
    )

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = default_note(document, ["max_grad_norm"], "PaddleNLP clips at 1.0")
        threshold = self.read_threshold(document, ["max_grad_norm"], 1.0, null="error", infinite="error")
        if threshold is None:
            notes.append("PaddleNLP's prompt_trainer does not switch clipping off with 0. All gradients become 0.")
        return Imported(self.settings("global_norm", threshold), notes)


BUILDER = "OptimizerBuilder"
NORM, VALUE = "clip_grad_by_norm", "clip_grad_by_value"


class PaddleDetection(Format):
    name, title = "paddledetection", "PaddleDetection"
    kinds = ("yaml",)
    source = "ppdet/optimizer/optimizer.py"
    newest = "2.6.0"
    own_keys = paths(BUILDER)
    clip_keys = ((BUILDER, NORM), (BUILDER, VALUE), (BUILDER, "optimizer", NORM), (BUILDER, "optimizer", VALUE))
    vocabulary = words("_BASE_ LearningRate architecture TrainReader epoch metric snapshot_epoch")
    rules = ("global_norm", "value")
    family = "paddle"
    zero = "zeros"
    keys = (
        FormatKey(f"{BUILDER}.{NORM}", "the global norm, whatever the name says; 0: all gradients become 0", "null"),
        FormatKey(f"{BUILDER}.{VALUE}", "each element; of a negative number, the magnitude counts", "null"),
        rejected_key("both of them", "the norm wins there"),
        rejected_key("one of them, with the optimizer AdamWDL", "AdamWDL is built without it: nothing is clipped"),
        rejected_key(f"{BUILDER}.optimizer.{NORM}, {VALUE}", "no optimizer has such an argument"),
    )

    def read(self, document: Document, version: Version | None) -> Imported:
        names = [name for name in (NORM, VALUE) if document.get(BUILDER, name) is not None]
        for name in (NORM, VALUE):
            if document.get(BUILDER, "optimizer", name) is not None:
                raise document.wrong([BUILDER, "optimizer", name], f"no optimizer has this key. Move it to {BUILDER}.")
        if len(names) > 1:
            raise document.wrong(
                [BUILDER, VALUE], f"PaddleDetection ignores this key if {NORM} is set. Remove one of them."
            )
        if not names:
            unset = [name for name in (NORM, VALUE) if not document.has(BUILDER, name)]
            if document.get("_BASE_") and unset:
                raise document.wrong(["_BASE_"], f"the _BASE_ files may set {NORM} or {VALUE}. Import them instead.")
            note = f"The file does not set {' or '.join(unset)}. By default, PaddleDetection clips nothing."
            return Imported({"rule": "none"}, [note] if unset else [])
        if document.get(BUILDER, "optimizer", "type") == "AdamWDL":
            raise document.wrong(
                [BUILDER, names[0]], "PaddleDetection builds AdamWDL without this clip. Remove the key."
            )
        notes = [PER_GROUP] if document.get(BUILDER, "optimizer", "param_groups") else []
        keys = [BUILDER, names[0]]
        if names == [VALUE]:
            return Imported(self.settings("value", self._magnitude(document, keys)), notes)
        threshold = self.read_threshold(document, keys, infinite="error")
        return Imported(self.settings("global_norm", threshold), [f"{NORM} clips by the total norm.", *notes])

    def _magnitude(self, document: Document, keys: list[str]) -> float | None:
        value = document.get(*keys)
        check_size(document, keys, value)
        return -float(value) if is_number(value) and value < 0 else self.read_threshold(document, keys)

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        clip = {} if threshold is None else {NORM if settings.rule == "global_norm" else VALUE: threshold}
        return {BUILDER: {NORM: None, VALUE: None} | clip}


class PaddleClas(Format):
    name, title = "paddleclas", "PaddleClas"
    kinds = ("yaml",)
    source = "ppcls/optimizer/__init__.py"
    newest = "2.6.0"
    clip_keys = paths("Optimizer.clip_norm Optimizer.*.*.clip_norm")
    vocabulary = words("Global Arch Optimizer DataLoader Loss")
    rules = ("norm",)
    family = "paddle"
    zero = "error"
    keys = (
        FormatKey("Optimizer.clip_norm", "each tensor by its own norm; 0 or less: fails", "absent"),
        imported_key("Optimizer.[].NAME.clip_norm", "the same for one of several optimizers", "absent"),
    )

    def recognises(self, document: Document) -> bool:
        return document.has("Arch") and document.has("Optimizer")

    def read(self, document: Document, version: Version | None) -> Imported:
        places = _optimizers(document)
        thresholds = [self._threshold(document, [*place, "clip_norm"]) for place in places]
        for place, threshold in zip(places, thresholds, strict=True):
            if threshold != thresholds[0]:
                raise document.wrong(
                    place, "its threshold differs from the first optimizer's. Import a file with one threshold."
                )
        unset = "The file does not set clip_norm. By default, PaddleClas clips nothing."
        return Imported(self.settings("norm", thresholds[0]), [unset if thresholds[0] is None else PER_TENSOR])

    def _threshold(self, document: Document, keys: list[Key]) -> float | None:
        document.get(*keys)  # raises unless it is in a table
        return self.read_threshold(document, keys, null="error", infinite="error") if document.has(*keys) else None

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        return {"Optimizer": {} if threshold is None else {"clip_norm": threshold}}


def _optimizers(document: Document) -> list[list[Key]]:
    """Return the path of each optimizer's table. `Optimizer` is one table, or a list of tables by name."""
    optimizers = document.get("Optimizer")
    if not isinstance(optimizers, list):
        return [["Optimizer"]]
    for index, optimizer in enumerate(optimizers):
        if not isinstance(optimizer, dict) or len(optimizer) != 1:
            raise document.wrong(["Optimizer", index], "give a table of one optimizer, such as AdamW: {clip_norm: 1}.")
    if not optimizers:
        raise document.wrong(["Optimizer"], "the list is empty. Add an optimizer.")
    return [["Optimizer", index, *optimizer] for index, optimizer in enumerate(optimizers)]


TENSOR, GLOBAL = "clip_norm", "clip_norm_global"


class PaddleOCR(Format):
    name, title = "paddleocr", "PaddleOCR"
    kinds = ("yaml",)
    source = "ppocr/optimizer/__init__.py"
    newest = "3.7.0"
    clip_keys = (("Optimizer", TENSOR), ("Optimizer", GLOBAL))
    vocabulary = words("Global Architecture Optimizer Train Eval PostProcess Loss")
    rules = ("norm", "global_norm")
    family = "paddle"
    keys = (
        FormatKey(f"Optimizer.{TENSOR}", "each tensor by its own norm; 0 or less: fails", "absent"),
        FormatKey(f"Optimizer.{GLOBAL}", "the global norm; 0: zeros", "absent", "not in the first 2.x"),
        rejected_key("both of them", f"{TENSOR} wins there"),
    )

    def recognises(self, document: Document) -> bool:
        return document.has("Architecture") and document.has("Optimizer")

    def read(self, document: Document, version: Version | None) -> Imported:
        document.get("Optimizer", TENSOR)  # raises unless it is in a table
        names = [name for name in (TENSOR, GLOBAL) if document.has("Optimizer", name)]
        if len(names) > 1:
            raise document.wrong(
                ["Optimizer", GLOBAL], f"PaddleOCR ignores this key if {TENSOR} is set. Remove one of them."
            )
        if not names:
            note = f"The file does not set {TENSOR} or {GLOBAL}. By default, PaddleOCR clips nothing."
            return Imported({"rule": "none"}, [note])
        rule: Rule = "norm" if names == [TENSOR] else "global_norm"
        keys = ["Optimizer", names[0]]
        threshold = self.read_threshold(document, keys, zero=zero_of(rule), null="error", infinite="error")
        return Imported(self.settings(rule, threshold), [PER_TENSOR] if rule == "norm" else [])

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings, zero=zero_of(settings.rule))
        return {"Optimizer": {} if threshold is None else {TENSOR if settings.rule == "norm" else GLOBAL: threshold}}
