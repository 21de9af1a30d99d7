"""Read the known differences of the frameworks' own functions. The parity suite measured them.

The suite's list is not installed. `python tools/port_differences.py` writes `differences.json` from it.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources

from .. import catalog
from .model import KnownDifferenceSummary

FRAMEWORKS = {"tf": "tensorflow", "optax": "jax"}
"""The framework of each package, unless both have the same name."""

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
"""For each pattern of full names: the measured function that has the same result as functions with such names."""


def measured_as(name: str) -> str:
    """Return the measured function that computes the same result as the function `name`, or '' if there is none."""
    measured = catalog.names("measured")
    if name not in measured:
        function = catalog.clip_function(name)
        name = function.name if function else name
        computed = (match.expand(by) for pattern, by in COMPUTED_BY if (match := re.fullmatch(pattern, name)))
        name = next(computed, name)
    return name if name in measured else ""


def framework_of(function: str) -> str:
    """Return the framework of a measured function, such as "tensorflow" for "tf.clip_by_norm"."""
    package = function.partition(".")[0]
    return FRAMEWORKS.get(package, package)


def known_differences(function: str) -> list[KnownDifferenceSummary]:
    """Return the known differences of a measured function. Differences with a size come first.

    `number` of a difference is its index in `differences.json`, from 0.
    """
    own = [entry for entry in _read()[1] if entry.framework == framework_of(function)]
    entries = [entry for entry in own if fnmatchcase(function, entry.function)]
    return sorted(entries, key=lambda entry: entry.size is None)


def rounding() -> float:
    """Return the largest relative difference that counts as rounding. Differences up to this size are not listed."""
    return _read()[0]


@cache
def _read() -> tuple[float, list[KnownDifferenceSummary]]:
    data = json.loads(resources.files(__package__).joinpath("differences.json").read_text(encoding="utf-8"))
    return data["rounding"], [KnownDifferenceSummary(number=i, **entry) for i, entry in enumerate(data["known"])]
