"""The data and the initial weights of the training scripts in this directory, as a porter exports them to NumPy."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np


def array(name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * scale).astype(np.float32)


def weight(name: str, *shape: int) -> np.ndarray:
    """Return an initial weight: inputs by outputs, or a bias."""
    return array(name, *shape, scale=shape[0] ** -0.5 if len(shape) > 1 else 0.1)


# -- rollouts of an agent, for PPO and A2C

OBSERVATIONS, HIDDEN, ACTIONS, BATCH = 8, 64, 3, 64
"""The batch has as many entries as a bias."""


def rollouts(steps: int) -> Iterator[dict[str, np.ndarray]]:
    for step in range(steps):
        logprob = array(f"logprob {step}", BATCH, scale=0.2) - np.float32(np.log(ACTIONS))
        yield {
            "obs": array(f"obs {step}", BATCH, OBSERVATIONS),
            "action": np.random.default_rng(step).integers(0, ACTIONS, BATCH),
            "value": array(f"value {step}", BATCH),
            "returns": array(f"returns {step}", BATCH, scale=3.0),
            "logprob": logprob,
            "advantage": array(f"advantage {step}", BATCH),
        }


# -- text, for the recurrent network and the transformer

VOCABULARY, UNITS = 16, 32
CHAR_RNN = {
    "embedding": (VOCABULARY, UNITS),
    "inputs": (UNITS, UNITS),
    "states": (UNITS, UNITS),
    "bias": (UNITS,),
    "softmax": (UNITS, VOCABULARY),
}


def text(batches: int, sequences: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (batches, sequences, length + 1))


# -- a regression

INPUTS, TARGETS = array("inputs", 96, 8), array("targets", 96, 2, scale=2.0)


# -- a classification, and images for a convolutional network

CLASSES, STEPS, ROWS = 4, 10, 12
FEATURES = array("features", STEPS * ROWS, 8)
IMAGES = array("images", STEPS * ROWS, 6, 6, 2)
LABELS = np.random.default_rng(7).integers(0, CLASSES, STEPS * ROWS)


# -- noise and samples for two networks

LATENT, SAMPLE, PLAYED = 4, 6, 8
NOISE = array("noise", PLAYED, 2, ROWS, LATENT)
SAMPLES = array("samples", PLAYED, ROWS, SAMPLE) + np.float32(1.0)
