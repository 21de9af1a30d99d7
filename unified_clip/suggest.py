"""`unified_clip.suggest_threshold`: a threshold from the norms of a run that was recorded."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _install
from .recording.recorder import NO_CALLS, SCHEMA

FEWEST = 20
"""Of fewer norms no percentile means much."""


@dataclass(frozen=True)
class Suggestion:
    """A threshold, and the norms that it comes from."""

    threshold: float
    """In the gradients' own unit; three significant digits."""

    percentile: float
    clipped: float
    """The share of the recorded steps that it would have clipped, from 0 to 1."""

    norms: Sequence[float]
    """The finite ones, in the order of the steps."""

    not_finite: int
    """How many were left out."""

    def __str__(self) -> str:
        left_out = f"; {self.not_finite} that were NaN or infinite left out" if self.not_finite else ""
        return (
            f"threshold {self.threshold:g}: the {self.percentile:g}th percentile of {len(self.norms)} norms, which "
            f"clips {100 * self.clipped:.3g} % of them{left_out}"
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write a plot of the norms and the threshold, in a format that the file's name tells (.svg, .png, .pdf).

        Raises:
            ModuleNotFoundError: matplotlib is not installed; the message has the command that installs it.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            message = f"a plot needs matplotlib. Install the extra `bench`: {_install.command('bench')}"
            raise ModuleNotFoundError(message, name="matplotlib") from None

        figure = Figure((8, 3), layout="constrained")
        steps, shares = figure.subplots(1, 2, width_ratios=[3, 1], sharey=True)
        steps.plot(range(1, len(self.norms) + 1), self.norms, ".", markersize=3, color="#2757c4")
        steps.set_xlabel("step")
        steps.set_ylabel("norm before clipping")
        ordered = sorted(self.norms)
        shares.plot([100 * (i + 1) / len(ordered) for i in range(len(ordered))], ordered, color="#2757c4")
        shares.set_xlabel("% of the steps")
        for axes in (steps, shares):
            axes.axhline(self.threshold, color="#d1422a", linewidth=1)
            axes.grid(color="#eeeeee")
        if ordered[0] > 0:
            steps.set_yscale("log")
        steps.set_title(f"threshold {self.threshold:g}: {100 * self.clipped:.3g} % clipped", fontsize=9)
        figure.savefig(path)


def suggest_threshold(records: Any, percentile: float = 90.0, *, skip: int = 0) -> Suggestion:
    """Propose a threshold that leaves most steps alone: a percentile of the total norms of a run.

    Training that is clipped at a norm that most steps stay below is stopped from its rare large steps only. Record some
    hundred steps without clipping (a threshold of inf measures), or with a threshold well above what is usual: norms
    that were recorded while most steps were clipped belong to that training, and not to yours without it.

    Args:
        records: A file that `unified_clip.record` has written, or norms: numbers, or what `last` said of each clip.
        percentile: How many of a hundred steps are to be left alone, more than 0 and up to 100.
        skip: How many of the first norms to leave out, since the first steps of a training are unlike the rest.

    Returns:
        A `Suggestion`, with a `threshold` in the gradients' own unit, what it would have clipped, and `plot(path)`.

    Raises:
        TypeError: records hold something else than norms.
        ValueError: percentile is out of range; fewer than 20 finite norms are left; the file is no recording, or has no
            total norms.

    Source: the nearest-rank percentile; Seetharaman et al., "AutoClip: Adaptive gradient clipping for source separation
    networks", 2020, choose it so.

    Example:
        >>> import unified_clip
        >>> suggested = unified_clip.suggest_threshold([1.0] * 95 + [30.0] * 5, percentile=95)
        >>> suggested.threshold, suggested.clipped
        (1.0, 0.05)
    """
    if isinstance(percentile, bool) or not isinstance(percentile, int | float) or not 0 < percentile <= 100:
        raise ValueError(f"percentile is {percentile!r}; give a number above 0 and up to 100")
    if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
        raise ValueError(f"skip is {skip!r}; give a whole number of 0 or more")
    found = list(_norms(records))[skip:]
    finite = [norm for norm in found if math.isfinite(norm)]
    if len(finite) < FEWEST:
        raise ValueError(
            f"there are {len(finite)} finite norms, and {FEWEST} are the fewest to go by; record more steps"
        )
    nearest = sorted(finite)[max(1, math.ceil(percentile / 100 * len(finite))) - 1]
    threshold = _above(nearest)
    clipped = sum(norm > threshold for norm in finite) / len(finite)
    return Suggestion(threshold, float(percentile), clipped, finite, len(found) - len(finite))


def _above(norm: float) -> float:
    """Three significant digits, and not less than the norm."""
    if norm == 0:
        return 0.0
    near = float(f"{norm:.3g}")
    return near if near >= norm else float(f"{near + 10.0 ** (math.floor(math.log10(norm)) - 2):.3g}")


def _norms(records: Any) -> Iterator[float]:
    if isinstance(records, str | os.PathLike):
        yield from _recorded(Path(records))
        return
    if not isinstance(records, Iterable):
        raise TypeError(f"records is a {type(records).__name__}; pass a recorded file, or norms")
    for index, each in enumerate(records):
        norm = getattr(each, "norm", each)
        if isinstance(norm, bool) or (not isinstance(norm, int | float) and not hasattr(norm, "__float__")):
            raise TypeError(
                f"position {index} of records is a {type(each).__name__}; pass numbers, or what `last` says"
            )
        yield float(norm)


def _recorded(path: Path) -> Iterator[float]:
    """One for each step that measured: several norms of a step are one over all."""
    by_step: dict[int, list[float]] = {}
    try:
        header, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] or [{}]
        if header.get("schema") != SCHEMA or "unified_clip" not in header:
            raise ValueError(f"its first line has no header of schema {SCHEMA}")
        for line in lines:
            if line.get("norm") is not None:
                by_step.setdefault(line["step"], []).extend(_flat(line["norm"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no recording of unified_clip.record: {error}") from None
    if not lines:
        raise ValueError(f"{path}: {NO_CALLS}")
    if not by_step:
        raise ValueError(
            f"{path}: None of the {len(lines)} recorded calls has a total norm. Clips by value have none, nor have "
            "calls without gradients. Record clips by norm: clip_grad_norm_ with a threshold of inf measures only."
        )
    yield from (math.hypot(*norms) for norms in by_step.values())


def _flat(norm: Any) -> list[float]:
    return [each for item in norm for each in _flat(item)] if isinstance(norm, list) else [float(norm)]
