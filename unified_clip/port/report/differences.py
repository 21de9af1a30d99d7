"""Read `differences.json`. `python tools/port_differences.py` writes this file."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from ..._kit import atomic_files
from .. import catalog
from .model import KnownDifferenceSummary

FRAMEWORKS = {"tf": "tensorflow", "optax": "jax"}
"""Maps a package to its framework if the two names differ."""

COMPUTED_BY = (
    (r"torch\.nn\.utils\.clip_grad_norm", "torch.nn.utils.clip_grad_norm_"),
    (r"paddle\.fluid\.(?:clip\.GradientClip|dygraph_grad_clip\.GradClip)By(\w+)", r"paddle.nn.ClipGradBy\1"),
    (r"paddle\.fluid\.layers\.clip_by_norm", "paddle.nn.ClipGradByNorm"),
    (r".*\(global_clipnorm=\)", "tf.clip_by_global_norm"),
    (r".*\(clipnorm=\)", "tf.clip_by_norm"),
    (r".*\(clipvalue=\)", "tf.clip_by_value"),
    (r"tf\.contrib\.(?:layers\.optimize_loss|estimator\.clip_gradients_by_norm)", "tf.clip_by_global_norm"),
    (r"tf_slim\.(?:learning|training)\.\w+", "tf.clip_by_norm"),
)
"""(pattern for a name, the function that `measured_as` returns for this name)"""


def measured_as(name: str) -> str:
    """Return a function that `unified-clip parity` measures and that has the same results as `name`, or ''."""
    measured = catalog.names("measured")
    if name not in measured:
        function = catalog.clip_function(name)
        name = function.name if function else name
        computed = (match.expand(by) for pattern, by in COMPUTED_BY if (match := re.fullmatch(pattern, name)))
        name = next(computed, name)
    return name if name in measured else ""


def framework_of(function: str) -> str:
    package = function.partition(".")[0]
    return FRAMEWORKS.get(package, package)


def known_differences(function: str) -> list[KnownDifferenceSummary]:
    own = [entry for entry in _read()[1] if entry.framework == framework_of(function)]
    return [entry for entry in own if fnmatchcase(function, entry.function)]


def rounding() -> float:
    return _read()[0]


@cache
def _read() -> tuple[float, list[KnownDifferenceSummary]]:
    data = json.loads(atomic_files.read_text(Path(__file__).with_name("differences.json")))
    return data["rounding"], [KnownDifferenceSummary(number=i, **entry) for i, entry in enumerate(data["known"])]
