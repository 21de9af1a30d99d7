"""Write and read what a training function yields: the parameters and gradients after each step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._dispatch import adapter_of
from ..._kit import atomic_files, safetensors_files
from ...tensors.files import formats
from ...tensors.files.convert_worker import read_tensor
from ...tensors.types import PARTS, Dense, UnreadableError, densify
from ..errors import InvalidStepError, VerifyError, WorkerError
from .script import Script

ENDED = "ended.json"

OUTPUT = "{}.safetensors"
"""The file name of one step's output. The file gets this name only when its content is complete."""

OUTPUT_PARTS = ("parameters", "gradients", "unclipped")
"""The parts of the tuple that a training step yields. Only the parameters are required."""

PART_TITLES = {part: part for part in OUTPUT_PARTS} | {"unclipped": "unclipped gradients"}


def store_output(out: Path, step: int, output: Any) -> None:
    if not isinstance(output, tuple | list) or not 1 <= len(output) <= len(OUTPUT_PARTS):
        is_sequence = isinstance(output, tuple | list)
        what = f"has {len(output)} values" if is_sequence else f"is of type {type(output).__name__}"
        raise InvalidStepError(
            f"output {step} of the function {what}. Yield or return a tuple of dicts {{name: tensor}}: (parameters, "
            "gradients) or (parameters, gradients, unclipped). You can append the loss as a number."
        )
    stored: dict[str, tuple[str, Any]] = {}
    for part, tensors in zip(OUTPUT_PARTS, output, strict=False):
        if tensors is None and part != "parameters":
            continue
        if not isinstance(tensors, Mapping):
            loss = "" if part == "parameters" else " If this value is the loss, yield a single number."
            raise InvalidStepError(
                f"output {step} of the function has {PART_TITLES[part]} of type {type(tensors).__name__}. Yield or "
                f"return a dict {{name: tensor}}.{loss}"
            )
        if part == "parameters" and not tensors:
            raise InvalidStepError(
                f"output {step} of the function has no parameters. Put all parameters into the first dict of the "
                "output: {name: tensor}."
            )
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        stored |= {f"{part}/{name}": dtype_and_array(part, name, step, tensor) for name, tensor in present.items()}
    safetensors_files.write(out / OUTPUT.format(step), stored)


def dtype_and_array(part: str, name: Any, step: int, tensor: Any) -> tuple[str, Any]:
    try:
        dense = densify(read_tensor(str(name), np.asarray(tensor) if adapter_of(type(tensor)) is None else tensor))
    except (UnreadableError, ValueError, TypeError, KeyError) as error:
        raise InvalidStepError(
            f"output {step} of the function has invalid {PART_TITLES[part]}: {_reason(name, error)}."
        ) from None
    assert dense is not None
    dtype = PARTS.get(dense.dtype, dense.dtype)
    if dtype not in safetensors_files.CODES:
        raise InvalidStepError(
            f"output {step} of the function has invalid {PART_TITLES[part]}: {name!r} has dtype {dense.dtype}. Convert "
            "this tensor to float32, or leave the tensor out if it is not trained."
        )
    return dtype, dense.array


def _reason(name: Any, error: Exception) -> str:
    if isinstance(error, UnreadableError):  # it has its own remedy
        return str(error)
    return f"{name!r} cannot be read: {error}. Convert {name!r} to a dense float32 tensor or array"


@dataclass(frozen=True)
class StepOutput:
    """The output of one step. `gradients` is None if the function yields only parameters."""

    parameters: Mapping[str, Dense]
    gradients: Mapping[str, Dense] | None
    unclipped: Mapping[str, Dense] | None


@dataclass(frozen=True)
class ScriptRun:
    script: Script
    outputs: Sequence[StepOutput]
    """One output for each step. If `yields` is False, there is only the output of the last step."""

    directory: Path
    yields: bool
    """Whether the function yields after each step. If False, the function returns once, after the last step."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.outputs[0].parameters.items()}

    def output_at(self, step: int, steps: int) -> StepOutput | None:
        index = step - 1 if self.yields else step - steps
        return self.outputs[index] if 0 <= index < len(self.outputs) else None


def read_outputs(script: Script, out: Path, steps: int) -> ScriptRun:
    try:
        ended = json.loads(atomic_files.read_text(out / ENDED))
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
    parts = read_parts(out / OUTPUT.format(number))
    parameters, gradients, unclipped = (parts.get(part) for part in OUTPUT_PARTS)
    return StepOutput(parameters or {}, gradients, unclipped)


def read_parts(path: Path) -> dict[str, dict[str, Dense]]:
    """Return {part: {name: tensor}} for the parts in OUTPUT_PARTS."""
    parts: dict[str, dict[str, Dense]] = {}
    for key, tensor in formats.load(path).items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    return parts
