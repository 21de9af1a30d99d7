"""The YAML format of timm's train.py, with the keys `clip_grad` and `clip_mode`."""

from __future__ import annotations

from typing import Any

from packaging.version import Version

from ....documents import Document
from ....schema import Settings
from ...agc import agc_settings
from ...base import ATTACH, Format, Imported, default_note, paths, words

LAST_TWO = (
    "With agc, timm does not clip the last two parameters of the model, such as the head's weight and bias. Add their "
    "names to `exclude`."
)
LAST_TWO_UNCLIPPED = (
    "with `clip_mode: agc`, timm never clips the last two parameters of the model. Set `rule` to "
    '"global_norm" or "value", and set `threshold` instead of `adaptive`.'
)


class Timm(Format):
    name, title = "timm", "timm"
    kinds = ("yaml",)
    source = "timm: train.py, timm/utils/clip_grad.py, timm/optim/lamb.py"
    newest = "1.0.31"
    instead = ATTACH
    own_keys = paths("aug_repeats bce_loss clip_mode crop_pct model_ema_decay opt_betas opt_kwargs remode reprob")
    clip_keys = paths("clip_grad clip_mode")
    mode_keys = words("clip_mode")
    foreign_keys = paths("opt_kwargs.max_grad_norm")
    vocabulary = words("""
        model opt opt_eps sched lr epochs batch_size warmup_epochs warmup_lr min_lr decay_epochs cooldown_epochs
        drop_path mixup cutmix smoothing amp aa model_ema num_classes weight_decay
    """)
    rules = ("global_norm", "value")
    zero = "zeros"

    def read(self, document: Document, version: Version | None) -> Imported:
        notes = self._second_clip(document) + default_note(document, ["clip_grad"], "timm clips nothing")
        threshold = self.read_threshold(document, ["clip_grad"])
        if threshold is None:
            return Imported({"rule": "none"}, notes)
        if threshold == 0:
            notes.append("clip_grad = 0 makes all gradients 0. null switches clipping off.")
        mode = document.get("clip_mode", default="norm")
        if mode == "agc":
            return Imported(agc_settings(threshold, "timm"), [*notes, LAST_TWO])
        if mode not in ("norm", "value"):
            raise document.wrong(["clip_mode"], f"{mode!r:.60} is not a mode of timm. Set norm, value or agc.")
        return Imported(self.settings("value" if mode == "value" else "global_norm", threshold), notes)

    def _second_clip(self, document: Document) -> list[str]:
        has_argument = document.has("opt_kwargs", "max_grad_norm")  # only Lamb has this argument
        optimizer = str(document.get("opt", default="lamb" if has_argument else "sgd"))
        threshold = document.get("opt_kwargs", "max_grad_norm", default=1.0)
        if "lamb" not in optimizer.lower() or threshold is None:
            return []
        return [
            f"{optimizer} clips the global norm at {threshold} again inside step(). This clip is not imported. "
            "To switch this clip off, set opt_kwargs: {max_grad_norm: null}."
        ]

    def write(self, settings: Settings, version: Version) -> Any:
        if settings.adaptive is not None and settings.adaptive.rule == "agc":
            raise self.not_exported(LAST_TWO_UNCLIPPED + self.in_python)
        threshold = self.export_threshold(settings)
        mode = {} if threshold is None else {"clip_mode": "value" if settings.rule == "value" else "norm"}
        return {"clip_grad": threshold, **mode}
