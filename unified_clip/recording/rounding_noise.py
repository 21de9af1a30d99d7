"""Find gradients whose true value is probably 0, such as the gradient of a bias before BatchNorm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ..causes.scaling import combined_norm
from .pairs.calls import CallPair
from .pairs.packed_parameters import JoinedParameter
from .recorded_run import RecordedCall
from .rounding import ROUNDING

Key = tuple[int, str | None]


class NoiseTracker:
    """Tracks how far rounding noise can move the weights. Call `is_noise` for a pair before `follow` yields the
    next pair."""

    def __init__(self) -> None:
        self._moved: dict[Key, float] = {}
        self._step = self._number = 0

    def follow(self, pairs: Iterable[CallPair]) -> Iterator[CallPair]:
        for pair in pairs:
            self._number = self._number + 1 if pair.a.step == self._step else 0
            self._step = pair.a.step
            yield pair
            for name in pair.names if pair.rate or pair.gain else ():
                elements, norm = _noise_size(pair, name)
                if elements:
                    moved = 2 * pair.rate * math.sqrt(elements) + pair.gain * norm
                    self._moved[self.key(name)] = self._moved.get(self.key(name), 0.0) + moved

    def key(self, name: str | None) -> Key:
        """Unnamed parameters are numbered per call, so their keys contain the number of the call."""
        return (self._number if name is not None and name.isdecimal() else 0, name)

    def is_noise(self, pair: CallPair, stage: str, name: str | None, a: float, b: float) -> bool:
        if stage == "weight":
            return a != b and abs(a - b) <= self._moved.get(self.key(name), 0.0)
        return is_noise_of(pair, name)


def _noise_size(pair: CallPair, name: str) -> tuple[int, float]:
    """Return the number of noise elements, and the largest possible norm of the difference between the runs."""
    a, b = pair.a.parameters[name], pair.b.parameters[pair.names[name]]
    for line, parameter in ((pair.a, a), (pair.b, b)):
        if isinstance(parameter, JoinedParameter):
            parts = [each for each in parameter.parts if each.norm <= noise_floor(line)]
            return sum(each.elements or 0 for each in parts), 2 * noise_floor(line) * len(parts)
    return (a.elements or 0, a.norm + b.norm) if is_noise_of(pair, name) else (0, 0.0)


def is_noise_of(pair: CallPair, name: str | None) -> bool:
    if name is None or name not in pair.names:
        return False
    norms = pair.a.parameters[name].norm, pair.b.parameters[pair.names[name]].norm
    return max(norms) > 0 and all(norm <= noise_floor(line) for norm, line in zip(norms, (pair.a, pair.b), strict=True))


def noise_floor(line: RecordedCall) -> float:
    total = total_norm(line)
    if not math.isfinite(total) or line.order < 1:
        return 0.0
    return ROUNDING * (2.0**-53 if line.dtype == "float64" else 2.0**-24) * total


def total_norm(line: RecordedCall) -> float:
    return line.norms()[0] if line.rule == "global" else combined_norm(line.known_norms(), line.order)
