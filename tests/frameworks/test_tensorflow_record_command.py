"""`unified-clip record` of a script that trains by Keras, which imports TensorFlow in the middle of its own import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unified_clip.recording import runs

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}

TRAIN = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(0.1, clipnorm=0.5), "mse")
model.fit(np.ones((8, 3)), np.zeros((8, 2)), batch_size=4, verbose=0)
print([weight.tobytes().hex() for weight in model.get_weights()])
"""


@pytest.mark.nightly
def test_fit_is_recorded_with_equal_weights(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    command = [sys.executable, "train.py"]
    record = [sys.executable, "-m", "unified_clip", "record", "run.jsonl", "--", *command]
    alone, recorded = (
        subprocess.run(each, cwd=tmp_path, env=ENVIRONMENT, text=True, capture_output=True, check=True, timeout=300)
        for each in (command, record)
    )
    assert recorded.stdout == alone.stdout
    assert "unified-clip" not in recorded.stderr
    assert [line.call for line in runs.read(tmp_path / "run.jsonl").lines] == ["keras.optimizers.Adam(clipnorm=)"] * 2
