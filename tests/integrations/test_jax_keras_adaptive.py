"""Adaptive thresholds in Keras's optimizers, on its backend jax."""

from __future__ import annotations

import os

import pytest

os.environ["KERAS_BACKEND"] = "jax"

from support.trainers.keras_adaptive import *  # noqa: F403

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.graphs,  # on JAX, Keras compiles its steps
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Keras's own
]
