"""The YAML format of ParallelWaveGAN, with the keys `generator_grad_norm` and `discriminator_grad_norm`."""

from __future__ import annotations

from packaging.version import Version

from ....documents import Document
from ...base import EACH_OPTIMIZER, SEVERAL_OPTIMIZERS, Format, Imported, paths, words

GENERATOR, DISCRIMINATOR = "generator_grad_norm", "discriminator_grad_norm"


class ParallelWaveGAN(Format):
    name, title = "parallel_wavegan", "ParallelWaveGAN"
    kinds = ("yaml",)
    source = "parallel_wavegan/bin/train.py"
    newest = "0.6.1"
    own_keys = paths("generator_optimizer_type generator_optimizer_params.lr discriminator_optimizer_params.lr")
    clip_keys = written_keys = paths(f"{GENERATOR} {DISCRIMINATOR}")
    vocabulary = words("""
        sampling_rate hop_size fft_size generator_type generator_params discriminator_params stft_loss_params lambda_adv
        batch_max_steps train_max_steps
    """)
    off = -1
    is_yaml_11 = True

    def recognises(self, document: Document) -> bool:
        """Require `generator_params`, which files of TensorFlowTTS do not have."""
        return document.shows("generator_params") and super().recognises(document)

    def read(self, document: Document, version: Version | None) -> Imported:
        for name in (GENERATOR, DISCRIMINATOR):
            if not document.has(name):
                advice = f"Set {name} to the threshold, or to -1 to clip nothing."
                raise document.wrong([], f"{name} is missing and has no default, so training fails. {advice}")
        generator, discriminator = (
            self.read_threshold(document, [name], null="error") for name in (GENERATOR, DISCRIMINATOR)
        )
        if generator != discriminator:
            raise document.wrong([DISCRIMINATOR], f"this value differs from {GENERATOR}: {SEVERAL_OPTIMIZERS}")
        return Imported(self.settings("global_norm", generator), [] if generator is None else [EACH_OPTIMIZER])
