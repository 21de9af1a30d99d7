"""What a training step yields, and its recording, whose gradients have the names of the yielded parameters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..recording.recorded_run import LoggedNumbers, OptimizerStep, RecordedCall, RecordedRun
from ..tensors.arithmetic import Float64s
from ..tensors.types import Dense
from .launch.outputs import ScriptRun

Values = Mapping[str, Float64s]


def values(tensors: Mapping[str, Dense]) -> dict[str, Float64s]:
    return {name: dense.values() for name, dense in tensors.items()}


@dataclass
class NormalizedRecording:
    run: ScriptRun
    recorded: RecordedRun
    steps: int
    initial: Values = field(default_factory=dict)
    """The tensors of --weights, by the names of this side, and in its order of axes."""

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

    def yielded(self, step: int) -> dict[str, Float64s] | None:
        """Return the yielded gradients after the clip, or None if the function does not yield them."""
        output = self.run.output_at(step, self.steps)
        is_clipped = output is not None and output.gradients is not None and step not in self.unclipped
        return values(output.gradients or {}) if output is not None and is_clipped else None

    def gradients(self, step: int) -> dict[str, Float64s]:
        """Return the gradients that the optimizer gets: as yielded, or else the results of the clip calls."""
        yielded = self.yielded(step)
        return values(self.clipped.get(step) or self.before.get(step) or {}) if yielded is None else yielded

    def parameters(self, step: int) -> dict[str, Float64s]:
        output = self.run.output_at(step, self.steps)
        return {} if output is None else values(output.parameters)

    def weights_before(self, step: int) -> Values:
        """Return the weights before a step, or before all steps if the function returns once."""
        return self.initial if step == 1 or not self.run.yields else self.parameters(step - 1)

    def weights_of(self, step: int) -> tuple[Values, Values]:
        """Return the weights before and after a step, as far as they are known."""
        is_known = self.run.yields or self.steps == 1
        return (self.weights_before(step), self.parameters(step)) if is_known else ({}, {})

    def trained(self) -> set[str]:
        """Return the names that have a gradient at some step."""
        tables = [output.gradients or {} for output in self.run.outputs]
        return set().union(*tables, *self.before.values(), *self.clipped.values())
