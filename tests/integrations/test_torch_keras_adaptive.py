"""Adaptive thresholds in Keras's optimizers, on its backend torch."""

from __future__ import annotations

import os

import pytest

os.environ["KERAS_BACKEND"] = "torch"

from support.trainers.keras_adaptive import *  # noqa: F403

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # Keras's own
