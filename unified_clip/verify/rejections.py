"""Reject outputs of training steps that cannot be compared, so that they do not count as the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..causes.cause import names_text
from ..compare.parameter_names import Names
from ..recording.recorded_run import OptimizerStep
from .errors import VerifyError
from .launch.outputs import ScriptRun
from .named_recording import NormalizedRecording
from .step_pairing import Parameters

LIBRARIES = ("torch.optim.", "paddle.optimizer.", "keras.optimizers.", "optax.", "tf.compat.v1.train.")
"""The names of the frameworks' optimizers begin with one of these prefixes."""


def reject_changing_outputs(run: ScriptRun) -> None:
    first = run.shapes
    for step, output in enumerate(run.outputs, start=1):
        shapes = {name: tuple(tensor.shape) for name, tensor in output.parameters.items()}
        for names, other, has, lacks in ((shapes, first, step, 1), (first, shapes, 1, step)):
            if missing := sorted(name for name in names if name not in other):
                raise VerifyError(
                    f"{run.script} yields {names_text(missing)} at step {has} but not at step {lacks}. Yield the same "
                    "parameters after each step.",
                    "UC604",
                )
        if changed := [name for name in first if first[name] != shapes[name]]:
            name = changed[0]
            raise VerifyError(
                f"{run.script} yields {name!r} in the shape {first[name]} at step 1, but in the shape {shapes[name]} "
                f"at step {step}. Yield each parameter in the same shape after each step.",
                "UC604",
            )
        for part, tensors in (("gradients", output.gradients or {}), ("unclipped gradients", output.unclipped or {})):
            if unknown := sorted(name for name in tensors if name not in shapes):
                raise VerifyError(
                    f"{run.script} yields {part} of {names_text(unknown)} at step {step}, but no parameters of these "
                    f"names. Its parameters are {names_text(shapes)}. Name each gradient like its parameter, and yield "
                    "every parameter that has a gradient.",
                    "UC604",
                )
            if reshaped := [name for name, tensor in tensors.items() if tuple(tensor.shape) != shapes[name]]:
                name = reshaped[0]
                raise VerifyError(
                    f"{run.script} yields {part} of {name!r} in the shape {tuple(tensors[name].shape)} at "
                    f"step {step}, but the parameter has the shape {shapes[name]}. Yield {part} in the shape of the "
                    "parameter.",
                    "UC604",
                )


def reject_without_clip(old: NormalizedRecording, new: NormalizedRecording) -> None:
    for recording, other in ((old, new), (new, old)):
        if recording.lines or (other.lines and _never_clips(recording.optimizer_steps)):
            continue
        script, count = recording.run.script, len(other.lines)
        calls = f"{other.run.script} makes {count} clip call{'s' * (count > 1)}"
        end = f"If {script} never clips, the clipping of the two steps differs: {calls}"
        end = end if count else "Without clips, nothing is compared"
        raise VerifyError(
            f"The recording of {script} has no clip calls on gradients. Recordings contain the calls to unified_clip "
            "and to the functions in docs/recording.md#what-is-recorded. Calls inside torch.compile or "
            "jit_compile=True are not recorded: turn compilation off. If the step clips by its own code, yield its "
            f"gradients before the clip as a third value: (parameters, gradients, unclipped). {end}.",
            "UC603",
        )


def _never_clips(steps: Sequence[OptimizerStep]) -> bool:
    """Return whether it is certain that no code changed the gradients before the steps."""
    is_unchanged = {step.changed for step in steps} - {None} == {0} and not any(step.hooks for step in steps)
    return is_unchanged and all(step.optimizer.startswith(LIBRARIES) for step in steps)


def reject_unpaired(
    old: ScriptRun, new: ScriptRun, weights: Parameters, names: Names, axes: Mapping[str, Sequence[int] | None]
) -> None:
    for name, other_name in names.items():
        if axes[name] is None:
            raise VerifyError(
                f"{old.script} yields {name!r} in the shape {old.shapes[name]}, and {new.script} yields "
                f"{other_name!r} in the shape {new.shapes[other_name]}. No order of axes makes these shapes equal. If "
                "these are different parameters, map the names with --map. Otherwise, yield both parameters in the "
                "same shape.",
                "UC604",
            )
    for run, other, paired in ((old, new, set(names)), (new, old, set(names.values()))):
        if unpaired := [name for name in run.shapes if name not in paired]:
            raise VerifyError(
                f"{other.script} yields no parameter that matches {names_text(unpaired)} of {run.script}. Yield "
                "the same parameters from both functions, or pair their names in the --map file, in lines such as "
                '"old name" = "new name".',
                "UC604",
            )
    if unused := [name for name in weights if name not in {*names, *names.values()}]:
        raise VerifyError(
            f"--weights has {names_text(unused)}, but neither function yields a parameter of this name. If no "
            "function reads a tensor, remove the tensor from this file. If a function reads the tensor, yield the "
            "tensor from both functions, under its name in this file. If the functions use different names, pass "
            "--map.",
            "UC604",
        )
    for old_name, new_name in names.items():
        weight_name = next((each for each in (old_name, new_name) if each in weights), None)
        shape = tuple(weights[weight_name].shape) if weight_name else ()
        if weight_name and sorted(shape) != sorted(old.shapes[old_name]):
            raise VerifyError(
                f"--weights has {weight_name!r} in the shape {shape}, but {old.script} yields {old_name!r} in "
                f"the shape {old.shapes[old_name]}. No order of axes makes these shapes equal. Write the tensor into "
                "the file in the shape that the functions yield.",
                "UC604",
            )
