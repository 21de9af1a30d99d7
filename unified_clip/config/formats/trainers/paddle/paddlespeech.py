"""The YAML format of PaddleSpeech, with keys such as `global_grad_clip`, `grad_clip` and `optimizer.max_grad_norm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packaging.version import Version

from ....documents import Document, Key
from ....schema import Settings
from ...base import AS_PADDLE, EACH_OPTIMIZER, SEVERAL_OPTIMIZERS, Format, Imported, Zero, paths, words

SPEECH, SIMPLE, TTS = ("global_grad_clip",), ("grad_clip",), ("optimizer", "max_grad_norm")
KALDI = ("optim_conf", "global_grad_clip")
GAN = (("generator_grad_norm",), ("discriminator_grad_norm",))
DIFFUSION = ("ds_grad_norm",)
PYTORCH_RULE = Version("1.4.2")
"""From this version on, PaddleSpeech clips models with an encoder by PyTorch's rule."""


OLD = "Before 1.4.2, PaddleSpeech clipped by Paddle's rule, which does not add 1e-6 to the norm."
INSTEAD = (
    "Set the key that your recipe reads. Recipes for kws, ERNIE-SAT and WaveRNN read grad_clip. Recipes for GANs read "
    "generator_grad_norm and discriminator_grad_norm. All other t2s recipes read optimizer.max_grad_norm."
)
PRETRAINED = ("freeze_wav2vec2", "freeze_hubert", "freeze_wavlm")


class PaddleSpeech(Format):
    name, title = "paddlespeech", "PaddleSpeech"
    kinds = ("yaml",)
    source = (
        "paddlespeech/s2t/exps, paddlespeech/t2s/exps, paddlespeech/t2s/training/optimizer.py, paddlespeech/kws/exps"
    )
    newest = "1.5.0"
    instead = AS_PADDLE
    own_keys = paths(
        "global_grad_clip ds_grad_norm generator_scheduler_params.learning_rate vocab_filepath spm_model_prefix"
    )
    clip_keys = (SPEECH, SIMPLE, TTS, KALDI, *GAN, DIFFUSION)
    vocabulary = words("""
        encoder decoder encoder_conf decoder_conf accum_grad optim optim_conf scheduler scheduler_conf train_manifest
        fs n_shift n_mels model updater optimizer max_epoch num_snapshots backbone n_epoch
    """)
    family = "paddle"
    zero = "zeros"

    def places(self, document: Document) -> Sequence[tuple[Key, ...]]:
        speech = (SPEECH, KALDI)
        others = tuple(place for place in self.clip_keys if place not in speech)
        return (*others, *speech) if _is_tts(document) else self.clip_keys

    def recognises(self, document: Document) -> bool:
        if super().recognises(document):
            return True
        backbone = document.get("backbone") if document.has("backbone") else None
        if isinstance(backbone, str) and backbone.startswith("paddlespeech."):
            return True
        optimizer = document.get("optimizer") if document.has("optimizer") else {}
        is_simple = document.has(*SIMPLE) or (document.has("model") and document.has("num_snapshots"))
        return _is_tts(document) and (is_simple or (isinstance(optimizer, dict) and "optim" in optimizer))

    def read(self, document: Document, version: Version | None) -> Imported:
        places = [place for place in self.clip_keys if document.has(*place)]
        if not places:
            return self._absent(document)
        if set(places) <= set(GAN):
            return self._gan(document, places)
        if len(places) > 1:
            raise document.wrong(
                places[1],
                f"the file sets {'.'.join(map(str, places[0]))} too. Remove the key that your recipe does not read.",
            )
        place = places[0]
        if place in (SPEECH, KALDI) and (_is_tts(document) or document.has("backbone")):
            raise document.wrong(place, f"only speech recognition (s2t) reads this key. {INSTEAD}")
        if place == SPEECH and any(document.has(name) for name in PRETRAINED):
            return self._by_function(document, [])
        if place == SPEECH and document.has("encoder") and not document.has("model_conf", "asr_weight"):
            return self._encoder(document, version)
        zero: Zero = "off" if place == TTS else "zeros"
        null: Any = "off" if place == TTS else "error"
        threshold = self.read_threshold(document, place, zero=zero, negative="error", null=null, infinite="error")
        notes = ["ds_grad_norm clips only the gradients of the diffusion model."] if place == DIFFUSION else []
        return Imported(self.settings("global_norm", threshold), notes)

    def _absent(self, document: Document) -> Imported:
        if any(document.has(name) for name in ("optimizer", "fs2_optimizer", "generator_scheduler_params")):
            return Imported({"rule": "none"}, ["The file sets no clip key. By default, PaddleSpeech clips nothing."])
        if _is_tts(document):
            raise document.wrong([], f"ERNIE-SAT and WaveRNN have no default threshold, so training fails. {INSTEAD}")
        raise document.wrong(
            [],
            "PaddleSpeech has no default threshold for this recipe, so training fails. Set the key that your recipe "
            "reads. Recipes for kws, ERNIE-SAT and WaveRNN read grad_clip. Recipes for s2t with Kaldi features read "
            "optim_conf.global_grad_clip. All other s2t recipes read global_grad_clip.",
        )

    def _encoder(self, document: Document, version: Version | None) -> Imported:
        if version is None or version >= PYTORCH_RULE:
            return self._by_function(document, [] if version else [OLD])
        threshold = self.read_threshold(document, SPEECH, null="error", infinite="error")
        return Imported(self.settings("global_norm", threshold))

    def _by_function(self, document: Document, notes: list[str]) -> Imported:
        threshold = self.read_threshold(document, SPEECH, zero="off", negative="error", null="error")
        return Imported(self.settings("global_norm", threshold, family="pytorch"), notes)

    def _gan(self, document: Document, places: Sequence[tuple[Key, ...]]) -> Imported:
        thresholds = [self.read_threshold(document, place, zero="off", null="error") for place in places]
        if len(set(thresholds)) > 1:
            raise document.wrong(places[1], f"this value differs from {places[0][0]}: {SEVERAL_OPTIMIZERS}")
        notes = [] if thresholds[0] is None else [EACH_OPTIMIZER]
        return Imported(self.settings("global_norm", thresholds[0]), notes)

    def write(self, settings: Settings, version: Version) -> Any:
        threshold = self.export_threshold(settings)
        if threshold is None:
            return {TTS[0]: {TTS[1]: None}}
        return {SPEECH[0]: threshold}


def _is_tts(document: Document) -> bool:
    return document.has("fs") and document.has("n_shift")
