"""Read the outputs of a training step: its parameters and gradients after each step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...tensors.files import safetensors
from ...tensors.types import Dense
from ..errors import VerifyError, WorkerError
from .script import Script
from .worker import ENDED, OUTPUT, OUTPUT_PARTS, RESYNCED


@dataclass(frozen=True)
class StepOutput:
    """The field `gradients` is None if the training step yields only parameters."""

    parameters: Mapping[str, Dense]
    gradients: Mapping[str, Dense] | None
    unclipped: Mapping[str, Dense] | None
    resynced: Mapping[str, Dense] | None = None
    """The parameters after --resync has copied the old weights. The value is None without --resync."""

    @property
    def next_parameters(self) -> Mapping[str, Dense]:
        """The parameters at the beginning of the next step. With --resync, these are the copied weights of the old
        training step."""
        return self.parameters if self.resynced is None else self.resynced


@dataclass(frozen=True)
class ScriptRun:
    script: Script
    outputs: Sequence[StepOutput]
    """One output for each step. If `yields` is false, there is only one output, from the end of the last step."""

    directory: Path
    yields: bool
    """Whether the function yields after each step, or returns once after the last step."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.outputs[0].parameters.items()}

    def output_at(self, step: int, steps: int) -> StepOutput | None:
        index = step - 1 if self.yields else step - steps
        return self.outputs[index] if 0 <= index < len(self.outputs) else None


def read_outputs(script: Script, out: Path, steps: int) -> ScriptRun:
    """Read the outputs of a training step. Raise an error if the function did not yield once for each batch."""
    try:
        ended = json.loads((out / ENDED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise WorkerError(
            f"{script} ended its process before its last step. Remove the call that ends the process, such as "
            "sys.exit() or os._exit()."
        ) from None
    if "invalid" in ended:
        raise VerifyError(f"{script}: {ended['invalid']}")
    count = ended["given"]
    if ended["yields"] and count != steps:
        raise VerifyError(
            f"{script} yielded {count} time{'s' * (count != 1)} for {steps} batches. Yield once for each batch."
        )
    outputs = [_step_output(out, number) for number in range(1, count + 1)]
    return ScriptRun(script, outputs, out, ended["yields"])


def _step_output(out: Path, number: int) -> StepOutput:
    parts: dict[str, dict[str, Dense]] = {}
    for key, tensor in safetensors.load(out / OUTPUT.format(number)).items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    parameters, gradients, unclipped = (parts.get(part) for part in OUTPUT_PARTS)
    resynced = out / RESYNCED.format(number)
    return StepOutput(parameters or {}, gradients, unclipped, safetensors.load(resynced) if resynced.exists() else None)
