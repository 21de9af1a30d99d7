"""Copy the weights of the old script into the new script: `unified-clip verify --resync`."""

from __future__ import annotations

import ast
import gc
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..._dispatch import adapter_of
from ..._kit import safetensors_files
from ..._kit.parse import UnreadableSourceError, parsed_nodes
from ...compare.parameter_names import Names, orient_names
from ...tensors.types import Dense, to_numpy
from ..errors import InvalidStepError
from ..layouts import Layout, match_layout
from .outputs import ENDED, OUTPUT, RESYNCED, dtype_and_array, read_parts

POLL = 0.005
"""The number of seconds between two checks for the output of the old script."""

HOW = (
    "Yield the parameters themselves: tf.Variables, Paddle parameters, tensors of a torch.nn.Module, or views of these "
    "tensors. If the step computes with arrays, begin the next step with the weights that yield returns (None without "
    "--resync): weights = (yield weights, gradients) or weights"
)


def weight_copier(
    out: Path, names: Names, function: Callable[..., Any]
) -> Callable[[int, Any], Mapping[str, Any] | None]:
    """Return a function that copies the old script's weights into the new script."""
    old, is_sent = OldWeights(out.parent / "old", names), takes_weights(function)

    def resync(step: int, output: Any) -> Mapping[str, Any] | None:
        parameters = output[0]
        tensors = {name: dtype_and_array("parameters", name, step, each) for name, each in parameters.items()}
        weights = old.at(step, {name: Dense(*each) for name, each in tensors.items()})
        if weights is None:
            return None
        assign(parameters, weights, is_sent=is_sent)
        stored = weights if is_sent else parameters
        after = {name: dtype_and_array("parameters", name, step, each) for name, each in stored.items()}
        safetensors_files.write(out / RESYNCED.format(step), after)
        return weights if is_sent else None

    return resync


class OldWeights:
    """Reads the weights of the old script, which runs at the same time in another process."""

    def __init__(self, directory: Path, names: Names) -> None:
        self._directory, self._names = directory, names
        self._layout: Layout | None = None

    def at(self, step: int, new: Mapping[str, Dense]) -> dict[str, np.ndarray[Any, Any]] | None:
        """Wait for the old script's weights after a step, and return them in the layout of the new script.

        Return None if the parameters do not match, or if the old script ended before this step. In both cases,
        `verify` raises an error later.
        """
        path = self._directory / OUTPUT.format(step)
        while not path.exists():
            if (self._directory / ENDED).exists() and not path.exists():
                return None
            time.sleep(POLL)
        old = {name: each.values() for name, each in read_parts(path)["parameters"].items()}
        if self._layout is None:
            names = orient_names(self._names, set(old), set(new))
            self._layout = match_layout(old, {name: each.values() for name, each in new.items()}, names or {})
        if len(self._layout.names) < max(len(old), len(new)) or None in self._layout.axes.values():
            return None
        return {name: _like(value, new[name]) for name, value in self._layout.to_new(old).items()}


def _like(value: np.ndarray[Any, Any], tensor: Dense) -> np.ndarray[Any, Any]:
    dtype = "float32" if tensor.dtype == "bfloat16" else to_numpy(tensor).dtype
    return np.ascontiguousarray(value.astype(dtype))


def assign(parameters: Mapping[str, Any], weights: Mapping[str, np.ndarray[Any, Any]], *, is_sent: bool) -> None:
    """is_sent: Whether the training function reads the weights that its `yield` returns."""
    memory = cache(_memory_of_models)
    writers = {name: _writer(parameter, memory) for name, parameter in parameters.items() if name in weights}
    for name, write in writers.items():
        if write is None and not is_sent:
            raise InvalidStepError(
                f"--resync cannot write the weights of the old script into {name!r}: the function yields an object of "
                f"type {type(parameters[name]).__name__}, and this object might be a copy of the parameter. {HOW}."
            )
    for name, write in writers.items():
        if write is not None:
            write(weights[name])


def _writer(parameter: Any, memory: Callable[[], set[int]]) -> Callable[[Any], object] | None:
    """Return a function that assigns an array to a parameter, or None if the parameter might be a copy."""
    framework = adapter_of(type(parameter))
    if framework == "torch":
        torch = sys.modules["torch"]
        is_own = isinstance(parameter, torch.nn.Parameter) or (parameter.is_leaf and parameter.requires_grad)
        is_own = is_own or parameter.untyped_storage().data_ptr() in memory()
        return (lambda array: parameter.data.copy_(torch.from_numpy(array))) if is_own else None
    if framework == "paddle":
        is_own = hasattr(parameter, "trainable")  # tensors that are not parameters do not have it
        return parameter.set_value if is_own else None
    assign_to = getattr(parameter, "assign", None)
    return assign_to if callable(assign_to) else None


def _memory_of_models() -> set[int]:
    nn = sys.modules["torch"].nn
    objects = [each for each in gc.get_objects() if issubclass(type(each), (nn.Parameter, nn.Module))]
    tensors = [each for each in objects if isinstance(each, nn.Parameter)]
    for module in objects:
        if isinstance(module, nn.Module):
            tensors += [each for each in module.buffers(recurse=False) if each is not None]
    return {each.untyped_storage().data_ptr() for each in tensors if each.numel()}


def takes_weights(function: Callable[..., Any]) -> bool:
    try:
        nodes = parsed_nodes(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, UnreadableSourceError):
        return False
    unused = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for statement in nodes:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and not _is_read(statement, nodes):
            unused |= {id(node) for node in ast.walk(statement) if isinstance(node, ast.Yield)}
    return any(isinstance(node, ast.Yield) and id(node) not in unused for node in nodes)


def _is_read(statement: ast.Assign | ast.AnnAssign, nodes: Sequence[ast.AST]) -> bool:
    """Return whether other code reads the assigned variable. An assigned attribute or item always counts as read."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    inside = {id(node) for node in ast.walk(statement)}
    names = set()
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Attribute | ast.Subscript):
                return True
            if isinstance(node, ast.Name):
                names.add(node.id)
    reads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    return any(node.id in names and id(node) not in inside for node in reads)
