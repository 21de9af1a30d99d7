"""Train with `clip.toml` on Keras, and write a line for every clip: python examples/train_keras.py RECORDS.jsonl"""

from __future__ import annotations

import sys
from pathlib import Path

import data
import keras
import numpy as np

import unified_clip
from unified_clip import ClipConfig


def model() -> keras.Model:
    layers = [keras.Input((data.INPUTS,)), keras.layers.Dense(data.UNITS, "tanh", name="hidden")]
    network = keras.Sequential([*layers, keras.layers.Dense(1, name="output")])
    network.set_weights(list(data.weights().values()))
    return network


def main(records: str) -> None:
    net, optimizer = model(), keras.optimizers.SGD(data.LEARNING_RATE)
    clip = ClipConfig.load(Path(__file__).with_name("clip.toml")).attach_to(optimizer)
    net.compile(optimizer, "mse", run_eagerly=True)  # nonfinite = "raise" needs eager steps
    inputs, targets = map(np.concatenate, zip(*data.batches(), strict=True))
    with unified_clip.record(records, norms=True):
        net.fit(inputs, targets, batch_size=data.BATCH, shuffle=False, verbose=0)
    loss = net.evaluate(inputs[-data.BATCH :], targets[-data.BATCH :], verbose=0)
    print({"loss after": loss, **clip.last.metrics(), "clip_rate": clip.rate})


if __name__ == "__main__":
    main(sys.argv[1])
