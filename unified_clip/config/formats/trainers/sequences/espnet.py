"""The YAML format of ESPnet, with the keys `grad_clip` and `grad_clip_type`. ESPnet 1 has the key `grad-clip`."""

from __future__ import annotations

import re

from packaging.version import Version

from ....documents import Document
from ...base import Format, Imported, default_note, paths, read_norm_type, words

KEY, NORM_TYPE, OLD_KEY = "grad_clip", "grad_clip_type", "grad-clip"
SKIPS = "ESPnet skips a step if the norm is not finite."
OLD_SKIPS = "ESPnet 1 skips a step only if the norm is NaN."

OLD_KEYS = (
    OLD_KEY, "mtlalpha", "elayers", "transformer-lr", "transformer-warmup-steps", "model-module", "batch-size",
    "accum-grad",
)  # fmt: skip
"""Only ESPnet 1 has these keys."""

SPEECH_KEYS = ("postnet-layers", "reduction-factor")
"""ESPnet 1 reads these keys only for speech synthesis and voice conversion."""

SPEECH_MODULE = re.compile(r"e2e_(tts|vc)")
TEXT_KEYS = ("mtlalpha", "lsm-weight", "lsm-type", "criterion", "sampling-probability")
"""A file of ESPnet 1 with one of these keys is for speech recognition or translation."""

TEXT_MODULE = re.compile(r"e2e_(asr|mt|st)")


class ESPnet(Format):
    name, title = "espnet", "ESPnet"
    kinds = ("yaml",)
    source = (
        "espnet2/tasks/abs_task.py, espnet2/train/trainer.py, espnet2/train/gan_trainer.py; "
        "espnet/bin, espnet/asr/pytorch_backend, espnet/tts/pytorch_backend"
    )
    newest = "202511"
    not_finite = f"{SKIPS} {OLD_SKIPS}"
    own_keys = paths("""
        best_model_criterion keep_nbest_models grad_clip_type val_scheduler_criterion num_att_plot
        mtlalpha transformer-lr transformer-warmup-steps elayers
    """)
    clip_keys = paths(f"{KEY} {NORM_TYPE} {OLD_KEY}")
    mode_keys = words(NORM_TYPE)
    vocabulary = words("""
        encoder encoder_conf decoder decoder_conf frontend frontend_conf model_conf accum_grad accum-grad batch_type
        batch_bins batch_size batch-size max_epoch epochs patience optim optim_conf opt scheduler scheduler_conf init
        specaug specaug_conf tts tts_conf lm lm_conf
    """)
    zero = "zeros"
    off = float("inf")
    norm_types = True
    norm_type_key = (NORM_TYPE,)

    def read(self, document: Document, version: Version | None) -> Imported:
        if (old := next(filter(document.has, OLD_KEYS), None)) is not None:
            if document.has(KEY):
                raise document.wrong(
                    [KEY],
                    f"{old} is a key of ESPnet 1, and {KEY} is a key of ESPnet 2. Remove the key that your version "
                    "does not read.",
                )
            return self._read_old(document)
        notes = default_note(document, [KEY], "ESPnet clips at 5")
        is_gan = any(document.has(name) for name in ("generator_first", "optim2"))
        threshold = self.read_threshold(document, [KEY], 5.0, zero="off" if is_gan else "zeros", null="error")
        norm_type = read_norm_type(document, [NORM_TYPE])
        not_finite = "" if threshold is None else SKIPS
        return Imported(self.settings("global_norm", threshold, norm_type), notes, not_finite)

    def _read_old(self, document: Document) -> Imported:
        module = str(document.get("model-module", default=""))
        is_speech = any(map(document.has, SPEECH_KEYS)) or SPEECH_MODULE.search(module)
        is_text = any(map(document.has, TEXT_KEYS)) or TEXT_MODULE.search(module)
        if not document.has(OLD_KEY) and bool(is_speech) == bool(is_text):
            raise document.wrong(
                [OLD_KEY],
                "ESPnet 1 clips at 1 in speech synthesis and voice conversion, and at 5 in other training. The file "
                f"does not show which threshold applies. Set {OLD_KEY}.",
            )
        default = 1 if is_speech else 5
        notes = default_note(document, [OLD_KEY], f"ESPnet clips at {default}")
        threshold = self.read_threshold(document, [OLD_KEY], float(default), zero="zeros", null="error")
        return Imported(self.settings("global_norm", threshold, 2.0), notes, OLD_SKIPS)
