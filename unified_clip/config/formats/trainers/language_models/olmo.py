"""The YAML format of OLMo, with the key `max_grad_norm`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ....documents.inheritance.hydra import Hydra
from ...base import ATTACH, Format, Imported, default_note, paths, words

KEY, RATIO = "max_grad_norm", "max_grad_norm_ratio"
WARMUP = ("scheduler", "grad_clip_warmup_steps")
FACTOR = ("scheduler", "grad_clip_warmup_factor")


class OLMo(Format):
    name, title = "olmo", "OLMo"
    kinds = ("yaml",)
    source = "olmo/config.py, olmo/optim.py, olmo/train.py"
    newest = "0.6.0"
    instead = ATTACH
    own_keys = paths(f"{RATIO} save_interval_unsharded save_num_unsharded_checkpoints_to_keep")
    inheritance = Hydra()
    clip_keys = paths(KEY)
    foreign_keys = paths(RATIO)
    vocabulary = words("""
        run_name seed model optimizer scheduler tokenizer save_folder save_interval max_duration precision fsdp
        global_train_batch_size device_train_microbatch_size data evaluators
    """)
    zero = "zeros"
    off = None

    def read(self, document: Document, version: Version | None) -> Imported:
        if document.get(RATIO) is not None:
            problem = (
                "this key limits the norm of each tensor to a multiple of the norm's moving average. unified_clip does "
                "not support this limit. Continue to clip with OLMo. Or remove this key to clip by max_grad_norm."
            )
            raise document.wrong([RATIO], problem)
        if document.get(*WARMUP) is not None and document.get(*FACTOR) is not None:
            problem = (
                f"{FACTOR[-1]} changes the threshold of the first steps. Write a clip configuration with a schedule."
            )
            raise document.wrong(WARMUP, problem)
        notes = default_note(document, [KEY], "OLMo clips nothing")
        return Imported(self.settings("global_norm", self.read_threshold(document, [KEY])), notes)
