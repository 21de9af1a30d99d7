"""Keras on its PyTorch backend."""

from __future__ import annotations

import os

import pytest

os.environ["KERAS_BACKEND"] = "torch"

from support.trainers.keras_cases import *  # noqa: F403

pytestmark = pytest.mark.nightly
