"""Suggest a threshold from recorded norms."""

from __future__ import annotations

import io
import json
import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._kit import atomic_files, install
from ._kit.atomic_files import LARGEST_REPORT
from .recording.lines import READABLE, without_calls

RULE_COLORS = ("#2c9c69", "#9a5fc4", "#c98a1b")

NO_FILE = "{path}: no such file. Correct the path. To record a run, type: unified-clip record {file} -- python train.py"

MIN_NORMS = 20


@dataclass(frozen=True)
class Replay:
    """The thresholds that an adaptive rule computes for the norms of a run."""

    thresholds: Sequence[float]
    """The threshold for each norm, or inf if the rule does not limit the norm."""

    clipped: float
    """The share of norms above their thresholds, from 0 to 1."""

    def __str__(self) -> str:
        limits = [threshold for threshold in self.thresholds if threshold < math.inf]
        text = f"clips {100 * self.clipped:.3g} % of {len(self.thresholds)} norms"
        return f"{text}, at thresholds from {min(limits):.3g} to {max(limits):.3g}" if limits else text


@dataclass(frozen=True)
class Suggestion:
    """A suggested threshold, and the recorded norms."""

    threshold: float
    """The threshold, rounded upward to three significant digits."""

    percentile: float
    clipped: float
    """The share of `norms` above the threshold, from 0 to 1."""

    norms: Sequence[float]
    """The finite norms, in the order of the steps."""

    not_finite: int
    """The number of norms that are NaN or infinite."""

    def __str__(self) -> str:
        text = (
            f"threshold {self.threshold:g}: the {self.percentile:g}th percentile of {len(self.norms)} norms. It "
            f"clips {100 * self.clipped:.3g} % of the norms"
        )
        return f"{text}. Number of ignored NaN or infinite norms: {self.not_finite}" if self.not_finite else text

    def replay(self, rule: Any) -> Replay:
        """Return the thresholds that an adaptive rule computes for these norms, and the share of clipped norms.

        The replay does not repeat the training. In a training with this rule, each clip would change the parameters,
        and so all later norms.

        Args:
            rule: A rule for the total norm, such as `adaptive.ZClip()` or a rule of your own.

        Raises:
            TypeError: `rule` is not a rule for the total norm.

        Example:
            >>> import unified_clip
            >>> from unified_clip.adaptive import EmaRatio
            >>> suggested = unified_clip.suggest_threshold([1.0] * 95 + [30.0] * 5, percentile=95)
            >>> replay = suggested.replay(EmaRatio(ratio=2.0))
            >>> print(replay)
            clips 5 % of 100 norms, at thresholds from 2 to 2.25
        """
        from ._compute.host import HOST  # imports NumPy, which `import unified_clip` does not need
        from .adaptive import state as states

        states.check_rule(rule)
        state: Any = states.initial(rule)
        thresholds: list[float] = []
        for norm in self.norms:
            threshold, state = states.advance(rule, state, HOST, norm)
            thresholds.append(threshold)
        clipped = sum(norm > threshold for norm, threshold in zip(self.norms, thresholds, strict=True))
        return Replay(thresholds, clipped / len(self.norms))

    def plot(self, path: str | os.PathLike[str], rules: Mapping[str, Any] | None = None) -> None:
        """Write a plot of the norms and the threshold.

        Args:
            path: The file to write. Its suffix sets the format: .svg, .png or .pdf.
            rules: {name: adaptive rule}. For each rule, the plot also shows the thresholds, and the share
                of norms above them.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.
            TypeError: An entry of `rules` is not a rule for the total norm.
            ValueError: matplotlib does not support the suffix of the file.
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            message = f"a plot needs matplotlib. Install the extra `bench`: {install.command('bench')}"
            raise ModuleNotFoundError(message, name="matplotlib") from None

        figure = Figure((8, 3), layout="constrained")
        steps, shares = figure.subplots(1, 2, width_ratios=[3, 1], sharey=True)
        steps.plot(range(1, len(self.norms) + 1), self.norms, ".", markersize=3, color="#2757c4")
        steps.set_xlabel("step (not counting NaN and infinite norms)" if self.not_finite else "step")
        steps.set_ylabel("norm before clipping")
        ordered = sorted(self.norms)
        shares.plot([100 * (i + 1) / len(ordered) for i in range(len(ordered))], ordered, color="#2757c4")
        shares.set_xlabel("% of the steps")
        for axes in (steps, shares):
            axes.axhline(self.threshold, color="#d1422a", linewidth=1)
            axes.grid(color="#eeeeee")
        for index, (name, rule) in enumerate((rules or {}).items()):
            replay = self.replay(rule)
            label = f"{name}: {100 * replay.clipped:.3g} % clipped"
            limits = [math.nan if threshold == math.inf else threshold for threshold in replay.thresholds]
            places, color = range(1, len(limits) + 1), RULE_COLORS[index % len(RULE_COLORS)]
            steps.plot(places, limits, ".-", color=color, linewidth=1, markersize=4, label=label)
        if rules:
            steps.legend(fontsize=8)
        smallest = next((norm for norm in ordered if norm > 0), 0.0)
        if smallest and ordered[0]:
            steps.set_yscale("log")
        elif smallest:
            steps.set_yscale("symlog", linthresh=smallest)  # which also shows 0
        steps.set_title(f"threshold {self.threshold:g}: {100 * self.clipped:.3g} % clipped", fontsize=9)
        image = io.BytesIO()
        figure.savefig(image, format=Path(path).suffix[1:] or None)
        atomic_files.write(Path(path), image.getvalue())


def suggest_threshold(records: Any, percentile: float = 90.0, *, skip: int = 0) -> Suggestion:
    """Suggest a percentile of a run's total norms as the threshold, to clip only rare large steps.

    Record a few hundred steps with a threshold well above the usual norms, or with the threshold inf, which clips
    nothing. Clips during the recording would change the later norms.

    Args:
        records: The path of a file from `unified_clip.record`, or an iterable with the total norm of each step.
            In place of a norm, you can pass the value of `clip.last` after the step.
        percentile: The percentage of steps that the threshold does not clip, above 0 and up to 100.
        skip: The number of steps to ignore at the start of the run, where norms are often larger.

    Returns:
        A `Suggestion` with `threshold`, `clipped` (the share of norms above the threshold) and `plot(path)`.

    Raises:
        TypeError: `records` is not a path or an iterable of norms.
        FileNotFoundError: The file does not exist.
        ValueError: `percentile` or `skip` is out of range. Fewer than 20 norms are finite. The file is not a recording.
            The recording has no total norm.
        OSError: The file cannot be read.

    Source: Seetharaman et al., "AutoClip: Adaptive gradient clipping for source separation networks", 2020. The
    percentile is computed by the nearest-rank method.

    Example:
        >>> import unified_clip
        >>> suggested = unified_clip.suggest_threshold([1.0] * 95 + [30.0] * 5, percentile=95)
        >>> suggested.threshold, suggested.clipped
        (1.0, 0.05)
    """
    if isinstance(percentile, bool) or not isinstance(percentile, int | float | np.number) or not 0 < percentile <= 100:
        raise ValueError(f"percentile is {percentile!r}. Pass a number above 0 and up to 100.")
    if isinstance(skip, bool) or not isinstance(skip, int | np.integer) or skip < 0:
        raise ValueError(f"skip is {skip!r}. Pass a whole number that is at least 0.")
    norms = list(_norms(records))[skip:]
    finite = [norm for norm in norms if math.isfinite(norm)]
    if len(finite) < MIN_NORMS:
        file = f"{os.fspath(records)}: " if isinstance(records, str | os.PathLike) else ""
        after = f" after the first {skip}" if skip else ""
        raise ValueError(
            f"{file}there are {len(finite)} finite norms{after}, and at least {MIN_NORMS} are needed. Record more steps"
            f"{', or lower skip' if skip else ''}."
        )
    nearest = sorted(finite)[max(1, math.ceil(percentile / 100 * len(finite))) - 1]
    threshold = _above(nearest)
    clipped = sum(norm > threshold for norm in finite) / len(finite)
    return Suggestion(threshold, float(percentile), clipped, finite, len(norms) - len(finite))


def _above(norm: float) -> float:
    if norm == 0:
        return 0.0
    near = float(f"{norm:.3g}")
    return near if near >= norm else float(f"{near + 10.0 ** (math.floor(math.log10(norm)) - 2):.3g}")


def _norms(records: Any) -> Iterator[float]:
    if isinstance(records, str | os.PathLike):
        yield from _recorded(Path(records))
        return
    if not isinstance(records, Iterable):
        raise TypeError(
            f"records has the type {type(records).__name__}. Pass the path of a recording, or a list of norms."
        )
    for index, record in enumerate(records):
        norm = record if hasattr(record, "__float__") else getattr(record, "norm", record)  # Tensor.norm is a method
        if isinstance(norm, bool) or (not isinstance(norm, int | float) and not hasattr(norm, "__float__")):
            raise TypeError(
                f"position {index} of records has the type {type(record).__name__}. Pass the total norm "
                "of each step, or the attribute `last` of your clip after each step."
            )
        yield float(norm)


def _recorded(path: Path) -> Iterator[float]:
    """Yield a norm for each step. If a step has several total norms, yield their 2-norm."""
    if not path.exists():
        raise FileNotFoundError(NO_FILE.format(path=path, file=shlex.quote(path.name)))
    by_step: dict[int, list[float]] = {}
    try:
        text = atomic_files.read_text(path, LARGEST_REPORT)
        header, *lines = [json.loads(line) for line in text.splitlines()] or [{}]
        if header.get("schema") not in READABLE or "unified_clip" not in header:
            raise ValueError(
                f"the first line is not the header of a recording with `schema` {' or '.join(map(str, READABLE))}"
            )
        lines = [line for line in lines if "call" in line and not line.get("process")]  # of the first process
        for line in lines:
            if line.get("norm") is not None:
                by_step.setdefault(line["step"], []).extend(_flat(line["norm"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a complete recording from unified_clip.record: {error}. Pass another file, or record again."
        ) from None
    if not lines:
        raise ValueError(f"{path}: {without_calls(header.get('exit_status'), header.get('processes', ()))}")
    if not by_step:
        raise ValueError(
            f"{path}: None of the {len(lines)} recorded calls has a total norm, because all calls clip by value or "
            "have no gradients. Record calls of clip_grad_norm_. To measure without clipping, set the threshold to inf."
        )
    yield from (math.hypot(*norms) for norms in by_step.values())


def _flat(norm: Any) -> list[float]:
    return [number for item in norm for number in _flat(item)] if isinstance(norm, list) else [float(norm)]
