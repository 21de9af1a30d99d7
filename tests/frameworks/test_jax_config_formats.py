"""Exported source for optax is compared with the configuration."""

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
    "settings",
    [
        *({"rule": "global_norm", "threshold": threshold} for threshold in (1.5, 0.0, 100.0, "inf")),
        *({"rule": "value", "threshold": threshold} for threshold in (0.75, 0.0)),
    ],
)
def test_the_exported_source_clips_the_same_as_the_configuration(settings: dict[str, Any]) -> None:
    config = ClipConfig(**settings | ({"family": "paddle"} if settings["rule"] == "global_norm" else {}))
    exported: dict[str, Any] = {}
    exec(OPTAX.dump(OPTAX.write(config, parse_version(optax.__version__))), exported)
    native, _ = exported["clip"].update(GRADS, exported["clip"].init(GRADS))
    for expected, result in zip(native, config(GRADS), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_what_a_transformation_clips_cannot_be_read() -> None:
    with pytest.raises(TypeError, match=r"does not expose its clip settings\. Pass the threshold of its clip"):
        ClipConfig.of(optax.clip(1.0))
