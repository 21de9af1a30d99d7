"""The YAML format of MindFormers, with the keys `use_clip_grad` and `max_grad_norm` in `runner_wrapper`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document
from ....schema import Settings
from ...base import Format, Imported, SetElsewhereError, default_note, paths, words

SWITCH, KEY = ("runner_wrapper", "use_clip_grad"), ("runner_wrapper", "max_grad_norm")
PIPELINE = "MFPipelineWithLossScaleCell"
SCALES = (
    "If the norm is below the threshold c, MindFormers multiplies the gradients by c / (c + 1e-6). This scaling is not "
    "imported."
)


class MindFormers(Format):
    name, title = "mindformers", "MindFormers"
    kinds = ("yaml",)
    source = "mindformers/wrapper/wrapper.py, mindformers/core/clip_grad.py"
    newest = "1.6.0"
    own_keys = paths("runner_wrapper runner_config.sink_mode")
    clip_keys = (SWITCH, KEY)
    mode_keys = words("use_clip_grad")
    vocabulary = words("""
        trainer runner_config optimizer lr_schedule train_dataset train_dataset_task eval_dataset context parallel
        parallel_config model processor callbacks micro_batch_interleave_num use_parallel
    """)
    zero = "error"

    def read(self, document: Document, version: Version | None) -> Imported:
        if (mode := document.get("run_mode")) in ("predict", "eval", "export"):
            error = document.wrong(["run_mode"], f"with {mode!r}, MindFormers trains nothing.")
            raise SetElsewhereError(str(error), "Import the file that trains the model.")
        switch = document.get(*SWITCH, default=False)
        if not isinstance(switch, bool):
            raise document.wrong(SWITCH, f"{switch!r:.60} is neither True nor False. Set True or False.")
        if not document.has(*SWITCH) and document.get("runner_wrapper", "type") == PIPELINE:
            problem = f"{PIPELINE} clips by default. Set {SWITCH[1]} to True or False."
            raise document.wrong(["runner_wrapper", "type"], problem)
        notes = default_note(document, SWITCH, "MindFormers clips nothing")
        threshold = self.read_threshold(document, KEY, 1.0, null="error", infinite="error")
        if not switch:
            return Imported({"rule": "none"}, notes)
        notes += default_note(document, KEY, "it is 1.0")
        return Imported(self.settings("global_norm", threshold), [*notes, SCALES])

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        clip = {} if threshold is None else {KEY[1]: threshold}
        return {"runner_wrapper": {SWITCH[1]: threshold is not None, **clip}}
