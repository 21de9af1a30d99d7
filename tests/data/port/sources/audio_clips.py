"""Cuts long recordings into clips of five seconds."""
import argparse
import wave
from dataclasses import dataclass

import numpy as np


@dataclass
class AudioClip:
    start: float
    samples: np.ndarray
    rate: int = 16000

    def clip(self, low=-1.0, high=1.0):
        """Hard clipping, as an overdriven amplifier does."""
        return AudioClip(self.start, np.clip(self.samples, low, high), self.rate)

    def clip_grad(self):
        # a gradual fade, to avoid clicks; "grad" is for gradual
        ramp = np.linspace(0, 1, self.rate // 100)
        faded = self.samples.copy()
        faded[:ramp.size] *= ramp
        faded[-ramp.size:] *= ramp[::-1]
        return AudioClip(self.start, faded, self.rate)


def read(path):
    with wave.open(path) as f:
        return np.frombuffer(f.readframes(f.getnframes()), np.int16) / 32768, f.getframerate()


def cut(samples, rate, seconds=5.0, clip_norm=None):
    size = int(seconds * rate)
    for i in range(0, len(samples) - size + 1, size):
        clip = samples[i:i + size]
        if clip_norm:  # peak normalisation
            clip = clip * clip_norm / max(1e-9, np.abs(clip).max())
        yield AudioClip(i / rate, clip, rate).clip().clip_grad()


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description='Nothing here is a gradient: tf.clip_by_norm would be one.')
    parser.add_argument('path'); parser.add_argument('--clip_norm', type=float)
    args = parser.parse_args()
    print(sum(1 for _ in cut(*read(args.path), clip_norm=args.clip_norm)), 'clips')
