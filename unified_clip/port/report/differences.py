"""Known differences of the frameworks' own functions, measured by the parity suite.

The suite's list is not installed, so `differences.json` beside this file repeats it:

    python -m unified_clip.port.report.differences            writes it; with `--check` it exits with 1 if it is stale
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from .. import catalog

FILE = Path(__file__).with_name("differences.json")

MEASURED = {
    "torch": (
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_value_",
        "torch.nn.utils.clip_grads_with_norm_",
        "torch.nn.utils.get_total_norm",
    ),
    "tensorflow": ("tf.clip_by_global_norm", "tf.clip_by_norm", "tf.clip_by_value", "tf.linalg.global_norm"),
    "paddle": (
        "paddle.nn.ClipGradByGlobalNorm",
        "paddle.nn.ClipGradByNorm",
        "paddle.nn.ClipGradByValue",
        "paddle.nn.clip.append_gradient_clip_ops",
        "paddle.nn.utils.clip_grad_norm_",
        "paddle.nn.utils.clip_grad_value_",
    ),
    "jax": ("optax.clip", "optax.clip_by_global_norm", "optax.tree.norm"),
}
"""By framework, the functions that the suite measures, named as in its list."""

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
"""Names, and the measured function that does the same. `catalog.toml` has their aliases."""


@dataclass(frozen=True)
class KnownDifferenceSummary:
    """A known difference between a framework's function and unified_clip, beyond rounding."""

    framework: str
    function: str
    """The name in the suite's list; * matches anything."""

    kind: str
    """What differs, as in `unified_clip.parity.known.entries.KINDS`."""

    size: float | str | None
    """Relative; 'inf' if a result is not finite; None if there is no size."""

    by: str
    """The size in words, or else what differs."""

    when: str
    why: str
    versions: str
    """Affected versions; '' for all."""


def measured_as(name: str) -> str:
    """Return the function whose measurements apply to this one; '' if none was measured."""
    if _is_measured(name):
        return name
    native = catalog.clip_function(name)
    name = native.name if native else name
    computed = (found.expand(by) for pattern, by in COMPUTED_BY if (found := re.fullmatch(pattern, name)))
    name = next(computed, name)
    return name if _is_measured(name) else ""


def _is_measured(name: str) -> bool:
    return any(name in functions for functions in MEASURED.values())


def of(function: str) -> list[KnownDifferenceSummary]:
    """Return the known differences of a function that `measured_as` returned, those with a size first."""
    (framework,) = (framework for framework, functions in MEASURED.items() if function in functions)
    found = [each for each in _read()[1] if each.framework == framework and fnmatchcase(function, each.function)]
    return sorted(found, key=lambda each: each.size is None)


def rounding() -> float:
    """Return the relative size below which a difference is rounding, and not listed."""
    return _read()[0]


@cache
def _read() -> tuple[float, list[KnownDifferenceSummary]]:
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return data["rounding"], [KnownDifferenceSummary(**each) for each in data["known"]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--known", type=Path, default=Path("parity/known.toml"), help="the suite's list")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is stale")
    options = parser.parse_args(arguments)
    new = json.dumps(_made(options.known), indent=1, allow_nan=False) + "\n"
    if not options.check:
        options.file.write_text(new, encoding="utf-8")
    elif options.file.read_text(encoding="utf-8") != new:
        print(f"{options.file.name} is stale; run python -m unified_clip.port.report.differences", file=sys.stderr)
        return 1
    return 0


def _made(path: Path) -> dict[str, Any]:
    from ... import _json
    from ...parity.known import entries
    from ...parity.suite.schema import TOLERANCE

    def entry(known: entries.KnownDifference) -> dict[str, Any]:
        has_size = known.kind in ("value", "touched")
        by = entries.size_in_words(known.size) if has_size else entries.KINDS[known.kind]
        size = known.size if has_size else None
        return asdict(
            KnownDifferenceSummary(
                known.framework, known.function, known.kind, size, by, known.title, known.reason, known.versions
            )
        )

    return {"rounding": TOLERANCE, "known": [_json.plain(entry(each)) for each in entries.read(path)]}


if __name__ == "__main__":
    sys.exit(main())
