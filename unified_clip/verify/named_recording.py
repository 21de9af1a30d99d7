"""The recording of a training step, whose gradients have the names of the yielded parameters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..recording.recorded_run import LoggedNumbers, OptimizerStep, RecordedCall, RecordedRun
from ..tensors.types import Dense
from .launch.outputs import ScriptRun


@dataclass
class NormalizedRecording:
    run: ScriptRun
    recorded: RecordedRun
    lines: list[RecordedCall] = field(default_factory=list)
    before: dict[int, dict[str, Dense]] = field(default_factory=lambda: defaultdict(dict))
    """{step: {name: gradient}}: the gradients before the clip calls, as far as the recording stores them."""

    clipped: dict[int, dict[str, Dense]] = field(default_factory=lambda: defaultdict(dict))

    unclipped: set[int] = field(default_factory=set)
    """The numbers of the steps whose yielded gradients are unclipped."""

    not_gradients: Counter[str] = field(default_factory=Counter)
    """{function: number of calls} for calls on tensors that are not gradients. `lines` does not contain these calls."""

    optimizer_steps: list[OptimizerStep] = field(default_factory=list)
    logged: Sequence[LoggedNumbers] = ()

    def at(self, step: int) -> list[RecordedCall]:
        return [line for line in self.lines if line.step == step]

    def loss(self, step: int) -> float | None:
        return next((line.logged["loss"] for line in self.logged if line.step == step), None)
