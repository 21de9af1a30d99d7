"""optax's clips are imported and exported, and compared with optax."""

from __future__ import annotations

from typing import Any

import numpy as np
import optax
import pytest

from unified_clip import ClipConfig
from unified_clip.config.formats import FORMATS
from unified_clip.config.formats.base import parse_version

OPTAX = FORMATS["optax"]
GRADS = [np.array([3.0, -4.0], np.float32), np.array([[0.5, 12.0], [0.25, -0.125]], np.float32)]


@pytest.mark.parametrize(
    "text",
    ["optax.clip_by_global_norm(1.5)", "optax.clip_by_global_norm(0.0)", "optax.clip_by_global_norm(100)"]
    + ["optax.clip_by_global_norm(float('inf'))", "optax.clip(0.75)", "optax.clip(max_delta=0)"],
)
def test_source_clips_the_same_here_and_by_optax(text: str) -> None:
    config = ClipConfig(**OPTAX.read(OPTAX.parse(text, "train.py"), None).settings)
    exported: dict[str, Any] = {}
    exec(OPTAX.dump(OPTAX.write(config, parse_version(optax.__version__))), exported)
    for transformation in (eval(text, {"optax": optax}), exported["clip"]):
        native, _ = transformation.update(GRADS, transformation.init(GRADS))
        for expected, result in zip(native, config(GRADS), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_what_a_transformation_clips_cannot_be_read() -> None:
    with pytest.raises(TypeError, match=r"does not expose its clip settings\. Import the Python file"):
        ClipConfig.of(optax.clip(1.0))
