"""The outcome of a clip."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from .._api.groups import Outcome
from .._core.exact import FORMATS, nearest
from .._core.path import Path
from .._core.rule import AdaptiveThreshold, ClipRule, OwnThresholds, StepThreshold
from .._core.types import Scalar, Tensor
from ..recorder.lines import unique_names
from .schema import Settings


class Traced(NamedTuple):
    """Clipped gradients and their outcome, as tensors for a compiled graph."""

    gradients: Any
    norm: Tensor
    coef: Tensor
    finite: Tensor
    """1 if the total norm and the norms of all groups are finite, else 0."""

    states: list[Tensor]


class GroupOutcome(NamedTuple):
    """The outcome for one group of a configuration, or for all parameters that are in no group."""

    rule: str
    threshold: float | None
    """The threshold at the step of the clip, or None if it is unknown or is not a single number."""

    norm: float | None
    """The total norm of the group before the clip, or None for the rules `value` and `norm`."""

    coef: float | None
    """The smallest clip coefficient, or None for the rule `value` and for skipped steps."""

    clipped: bool | None
    """Whether any gradient of the group changed, or None if this is unknown."""

    def __str__(self) -> str:
        return in_words(self.norm, None, self.coef, self.clipped)


class ClipOutcome:
    """The outcome of one clip. `print(outcome)` prints the outcome in one line.

    When you first read a number such as `norm`, Python waits for the device. After a clip in a compiled graph, reading
    a number raises RuntimeError.
    """

    def __init__(
        self,
        outcome: Outcome,
        step: int | None,
        settings: Settings,
        parts: Sequence[tuple[range, ClipRule]],
        names: Sequence[str],
        dtypes: Sequence[set[str]],
    ) -> None:
        self.step, self.skipped = step, outcome.skipped
        self._nonfinite = settings.nonfinite
        self._rules = [part.kind for _, part in parts]
        self._named = [part.rule for part in settings.parts]
        limits = zip(self._named, map(_limit, (part for _, part in parts)), strict=True)
        self._limits = [None if rule == "none" else limit for rule, limit in limits]
        self._titles = [*(group.name for group in settings.groups), ""]
        self._is_adaptive = [isinstance(part.threshold, AdaptiveThreshold) for _, part in parts]
        self._orders = [part.p for _, part in parts]
        self._dtypes = dtypes
        self._names = unique_names(names[norm.group.start] for norm in outcome.per_tensor)
        self._reading = _DeferredNumbers(outcome, self._is_adaptive)

    def __repr__(self) -> str:
        try:
            numbers = {"norm": self.norm, "norm_clipped": self.norm_clipped, "coef": self.coef, "clipped": self.clipped}
        except RuntimeError:  # inside a graph
            return f"ClipOutcome(step={self.step}, clipped inside a graph: the numbers are unknown)"
        shown: dict[str, Any] = {"step": self.step, **numbers, "skipped": self.skipped}
        shown |= {name: count for name, count in (("nan", self.nan), ("inf", self.inf)) if count}
        shown |= {"parts": self.parts} if len(self._titles) > 1 else {}
        return f"ClipOutcome({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def __str__(self) -> str:
        start = "" if self.step is None else f"step {self.step}: "
        try:
            text = in_words(self.norm, self.norm_clipped, self.coef, self.clipped, self.skipped)
        except RuntimeError:
            return f"{start}clipped inside a graph, so the norm is unknown"
        counts = [f"{count} {name}" for count, name in ((self.nan, "NaN"), (self.inf, "infinite")) if count]
        elements = f" (elements: {', '.join(counts)})" if counts else ""
        parts = [f"{title or 'all others'}: {part}" for title, part in self.parts.items()]
        return start + "; ".join([text + elements, *(parts if len(parts) > 1 and not self.skipped else [])])

    @property
    def norm(self) -> float:
        """The total norm of all included gradients before the clip.

        For the rule "global_norm" without groups, this norm uses the `norm_type` of the configuration. Otherwise, it is
        a 2-norm.
        """
        return self._numbers.total

    @property
    def norm_clipped(self) -> float | None:
        """The total norm after the clip.

        None for skipped steps, and if the norm is not computed, as with the rule "value".
        """
        if self.skipped:
            return None
        if self._is_zeroed:
            return 0.0
        if self._rules == ["global_norm"]:
            ((_, coef),) = self._numbers.norms[0]
            return self.norm * coef
        squares = [(n * c) ** 2 for norms in self._numbers.norms for n, c in norms]
        known = all(rule in ("norm", "global_norm") for rule in self._rules) and set(self._orders) == {2.0}
        return math.sqrt(math.fsum(squares)) if known and all(map(math.isfinite, squares)) else None

    @property
    def coef(self) -> float | None:
        """The smallest clip coefficient, in float64, or 1 if nothing was scaled.

        None for skipped steps, and for the rule "value".
        """
        coefs = [part.coef for part in self.parts.values() if part.coef is not None]
        return None if self.skipped else _smallest(coefs)

    @property
    def clipped(self) -> bool | None:
        """Whether any gradient changed. None for skipped steps, or if the effect of the rule "value" is unknown."""
        clipped = [part.clipped for part in self.parts.values()]
        return None if None in clipped and True not in clipped else any(clipped)

    @cached_property
    def parts(self) -> dict[str, GroupOutcome]:
        """A dict from group names to outcomes. The key '' is for parameters in no group."""
        return {title: self._part(index) for index, title in enumerate(self._titles)}

    @property
    def parameters(self) -> dict[str, float]:
        """A dict with the norm of each gradient, from the largest norm to the smallest norm. NaN comes first.

        The keys are names such as "layers.0.w", or positions for gradients without names. The second of two equal
        names becomes "w#2". Only a clipper with `details=True` fills this
        dict.
        """
        norms = zip(self._names, self._numbers.each, strict=True)
        return dict(sorted(norms, key=lambda item: -math.inf if math.isnan(item[1]) else -item[1]))

    @property
    def nan(self) -> int | None:
        """The number of NaN elements, or None if unknown. A clipper with `details=True` always counts them."""
        return self._count(0)

    @property
    def inf(self) -> int | None:
        """The number of infinite elements, or None if unknown. A clipper with `details=True` always counts them."""
        return self._count(1)

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Return a dict for logs. Its keys are `grad_norm` (before the clip), `grad_norm_clipped` and `clip_coef`.
        Unknown numbers are left out.

        prefix: A text to put before each name, such as "train/".
        """
        return metrics(self.norm, self.norm_clipped, self.coef, prefix)

    @property
    def _numbers(self) -> _Numbers:
        return self._reading.values

    def _count(self, index: int) -> int | None:
        if self._numbers.counts is not None:
            return int(self._numbers.counts[index])
        return 0 if math.isfinite(self.norm) else None

    @property
    def _is_zeroed(self) -> bool:
        norms = [self.norm, *(n for part in self._numbers.norms for n, _ in part)]
        return self._nonfinite == "zero" and not all(map(math.isfinite, norms))

    def _part(self, index: int) -> GroupOutcome:
        rule, limit, norms = self._named[index], self._limits[index], self._numbers.norms[index]
        if self._is_adaptive[index]:
            limit = self._numbers.thresholds[index]
        norm = norms[0][0] if self._rules[index] == "global_norm" else None
        if self.skipped:
            return GroupOutcome(rule, limit, norm, None, None)
        coefs = [0.0 if self._is_zeroed else coef for _, coef in norms]
        if rule == "value":
            return GroupOutcome(rule, limit, None, None, self._is_zeroed or self._exceeds(index))
        return GroupOutcome(rule, limit, norm, _smallest(coefs), any(coef != 1 for coef in coefs))

    def _exceeds(self, index: int) -> bool | None:
        greatest, limit = self._numbers.greatest[index], self._limits[index]
        if greatest is None or limit is None or math.isnan(greatest):
            return None
        bounds = [nearest(limit, dtype) for dtype in self._dtypes[index] if dtype in FORMATS] or [limit]
        if greatest <= min(bounds):
            return False
        return True if greatest > max(bounds) else None


class OutcomeProperties:
    """Adds `last`, `rate`, `state_dict` and `load_state_dict` to classes with a `Clipper`."""

    _clipper: Any

    @property
    def last(self) -> ClipOutcome:
        """The outcome of the last clip. Before the first clip, reading this property raises NothingClippedError."""
        outcome: ClipOutcome = self._clipper.last
        return outcome

    @property
    def rate(self) -> float | None:
        """The share of the last 100 clips that changed a gradient. Clips with `clipped=None` are not counted."""
        rate: float | None = self._clipper.rate
        return rate

    def state_dict(self) -> dict[str, Any]:
        """Return the step number and the states of adaptive rules. The data can be stored in a JSON file, or in a
        checkpoint of any framework.

        The call waits until the device has computed the states.
        """
        state: dict[str, Any] = self._clipper.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict` returned. The state can come from another framework.

        Raises:
            ValueError: `state` is not from `state_dict`, or has an unsupported version. The adaptive rules of `state`
                and the configuration differ.
        """
        self._clipper.load_state_dict(state)


def in_words(
    norm: float | None,
    norm_clipped: float | None,
    coef: float | None,
    clipped: bool | None,
    skipped: bool = False,
) -> str:
    """Return a text such as "norm 5, clipped to 1 (coefficient 0.2)"."""
    if skipped:
        effect = "the step is skipped"
    elif clipped is None:
        effect = "it is unknown whether a gradient changed"
    elif not clipped:
        effect = "unchanged"
    else:
        to = "" if norm_clipped is None else f" to {norm_clipped:.6g}"
        effect = f"clipped{to}" + ("" if coef in (None, 1.0) else f" (coefficient {coef:.6g})")
    return effect if norm is None else f"norm {norm:.6g}, {effect}"


def metrics(norm: float, norm_clipped: float | None, coef: float | None, prefix: str) -> dict[str, float]:
    numbers = {"grad_norm": norm, "grad_norm_clipped": norm_clipped, "clip_coef": coef}
    return {prefix + name: value for name, value in numbers.items() if value is not None}


def _smallest(coefs: Sequence[float]) -> float:
    return math.nan if any(map(math.isnan, coefs)) else min(coefs, default=1.0)


def _limit(part: ClipRule) -> float | None:
    if part.bounds is not None:
        return part.bounds[1] if part.bounds[0] == -part.bounds[1] else None
    return None if isinstance(part.threshold, StepThreshold | AdaptiveThreshold | OwnThresholds) else part.threshold


class _Numbers(NamedTuple):
    total: float
    norms: list[list[tuple[float, float]]]
    """`norms[i]` has the (norm, coefficient) tuples of `settings.parts[i]`."""

    greatest: list[float | None]
    """`greatest[i]` is the largest magnitude in the gradients of `settings.parts[i]`, for the rule `value`."""

    each: list[float]
    """The norm of each gradient, only with `details=True`."""

    counts: list[float] | None
    """The numbers of NaN elements and of infinite elements."""

    thresholds: list[float | None]
    """`thresholds[i]` is the adaptive threshold of `settings.parts[i]`."""


class _DeferredNumbers:
    """Numbers that the device might not have computed yet. This object keeps no gradients in memory."""

    def __init__(self, outcome: Outcome, is_adaptive: Sequence[bool]) -> None:
        self._late: list[tuple[Path, Scalar]] = []
        self._in_graph = False
        self._numbers = (
            self._take(outcome.path, outcome.n),
            [[(self._take(m.path, m.n), self._take(m.path, 1.0 if m.coef is None else m.coef)) for m in part]
             for part in outcome.norms],
            [None if greatest is None else self._take(outcome.path, greatest) for greatest in outcome.max_abs],
            [self._take(norm.path, norm.n) for norm in outcome.per_tensor],
            outcome.counts and [self._take(outcome.path, count) for count in outcome.counts],
            [self._take(part[0].path, part[0].threshold) if adaptive else None
             for part, adaptive in zip(outcome.norms, is_adaptive, strict=True)],
        )  # fmt: skip
        kinds: dict[type[Path], list[int]] = {}  # a path reads only scalars of paths of its type
        for index, (path, _) in enumerate(() if self._in_graph else self._late):
            kinds.setdefault(type(path), []).append(index)
        self._later = [
            (indices, self._late[indices[0]][0].read_later([self._late[index][1] for index in indices]))
            for indices in kinds.values()
        ]
        self._late = []

    def _take(self, path: Path, scalar: Scalar) -> Any:
        if isinstance(scalar, float):
            return float(scalar)  # a Python float instead of a NumPy scalar
        if path.on_host:
            return path.read_later([scalar]).values()[0]
        self._in_graph = self._in_graph or path.in_graph([scalar])
        index = len(self._late)
        self._late.append((path, scalar))
        return lambda values: values[index]

    @cached_property
    def values(self) -> _Numbers:
        if self._in_graph:
            raise RuntimeError(
                "this clip was part of a compiled graph, so its norms and coefficients are unknown here. Clip outside "
                "the graph, or let the graph return the norm, which is the result of clip_. Or clip with "
                "as_optax(optimizer) on JAX or attach_to(optimizer) on Keras, which keep the norms and coefficients."
            )
        late = {
            index: value for indices, later in self._later for index, value in zip(indices, later.values(), strict=True)
        }
        total, norms, *rest = _read(self._numbers, late)
        return _Numbers(total, [[pair for n, coef in part for pair in _pairs(n, coef)] for part in norms], *rest)


def _read(numbers: Any, late: dict[int, Any]) -> Any:
    if isinstance(numbers, list | tuple):
        return [_read(number, late) for number in numbers]
    return numbers(late) if callable(numbers) else numbers


def _pairs(n: Any, coef: Any) -> list[tuple[float, float]]:
    if not isinstance(n, list):
        return [(n, coef)]
    coefs = coef if isinstance(coef, list) else [coef] * len(n)
    return [pair for both in zip(n, coefs, strict=True) for pair in _pairs(*both)]
