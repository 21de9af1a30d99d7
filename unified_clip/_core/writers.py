"""Write the results of a call into new tensors (`Functional`), or into the gradients (`InPlace`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from ..errors import PartlyClippedError
from . import containers
from .backend import Backend
from .gradients import GradientList
from .path import Change, Path
from .types import Leaf, Tensor, Write


class Functional:
    overwrites = False

    def __init__(
        self,
        items: Sequence[Any],
        rebuild: Callable[[Any], Any],
        *,
        reuse_unchanged: bool = False,
        into: list[Any] | None = None,
    ) -> None:
        """rebuild: Returns the container with new items.
        reuse_unchanged: Whether to return unchanged gradients without a copy.
        into: A list that `finish` overwrites with the results.
        """
        self._items, self._rebuild, self._reuse_unchanged, self._into = items, rebuild, reuse_unchanged, into
        self._results = [item for item in items if item is not None]

    def change(self, gradients: GradientList, change: Change) -> None:
        if self._reuse_unchanged and change.is_identity():
            return
        group, values = change.group, change.results()
        if gradients.collected is None:
            values = [gradients.restored(index, value) for index, value in zip(group, values, strict=True)]
        self._results[group.start : group.stop] = values

    def result(self) -> Any:
        results = iter(self._results)
        return self._rebuild(None if item is None else next(results) for item in self._items)

    def drop(self) -> None:
        self._results = [None] * len(self._results)

    def finish(self) -> None:
        if self._into is not None:
            self._into[:] = self.result()


class InPlace:
    """Overwrite the memory of the gradients, or replace immutable tensors in the container."""

    overwrites = True

    def __init__(
        self, backend: Backend, container: Any, leaves: Callable[[], list[Leaf]], aliases: Mapping[int, Sequence[Leaf]]
    ) -> None:
        """
        leaves: Returns all leaves of the container.
        aliases: Maps the position of a gradient to the other gradients in the same memory.
        """
        self._backend, self._container, self._leaves, self._aliases = backend, container, leaves, aliases
        self._replaced: dict[int, Any] = {}
        self._writes: list[Write] = []
        self._host: Path | None = None
        self._device: Path | None = None

    def change(self, gradients: GradientList, change: Change) -> None:
        if gradients.collected is not None:
            self._add(change)
        elif change.is_identity():
            return
        elif self._backend.writable:
            self._add(change)
            self._share(gradients, change.group)
        else:
            for index, value in zip(change.group, change.results(), strict=True):
                self._replaced[gradients.leaves[index].position] = gradients.restored(index, value)

    def _add(self, change: Change) -> None:
        self._writes += change.writes()
        if change.path.on_host:
            self._host = change.path
        else:
            self._device = change.path

    def finish(self) -> None:
        if self._replaced:
            self._replace([self._replaced.get(leaf.position, leaf.tensor) for leaf in self._leaves()])
        if self._writes:
            with (
                nullcontext() if self._host is None else self._host.scope(),
                nullcontext() if self._device is None else self._device.scope(),
            ):
                make_all(self._writes)

    def drop(self) -> None:
        """Remove all gradients, including unclipped gradients, so that an optimizer step changes nothing."""
        on_parameters = self._backend.parameters
        if on_parameters is None:
            self._replace([None] * len(self._leaves()))
            return
        for leaf in self._leaves():
            if leaf.tensor is not None:
                self._set_gradient(leaf.tensor, on_parameters.retained(on_parameters.gradient_of(leaf.tensor)), None)

    def _replace(self, items: list[Any]) -> None:
        self._writes += containers.replacements(self._backend, self._container, iter(items))[1]

    def _share(self, gradients: GradientList, group: range) -> None:
        """Write sparse results to `.grad`.

        If other tensors share the memory of a dense result, report the change to automatic differentiation.
        """
        if gradients.shards is not None:
            self._announce([gradients.leaves[index].tensor for index in group])
        for index in group:
            leaf = gradients.leaves[index]
            aliases = self._aliases.get(leaf.position, [])
            if gradients.is_sparse(index):
                for alias in (leaf, *aliases):  # the memory of the values is written afterwards
                    self._set_gradient(
                        alias.parameter, alias.tensor, gradients.restored(index, gradients.values[index])
                    )
            elif aliases:
                self._announce([alias.tensor for alias in aliases])

    def _announce(self, tensors: list[Tensor]) -> None:
        self._writes.append(Write(functools.partial(self._backend.bump_versions, tensors), nothing))

    def _set_gradient(self, parameter: Any, old: Any, new: Any) -> None:
        assert self._backend.parameters is not None
        set_gradient = self._backend.parameters.set_gradient
        make, undo = (functools.partial(set_gradient, parameter, gradient) for gradient in (new, old))
        self._writes.append(Write(make, undo))


def nothing() -> None: ...


def make_all(writes: Sequence[Write]) -> None:
    """Make the changes that can be undone, and then the other changes. After an error, undo the changes.

    Raise PartlyClippedError if memory was overwritten, or if a change cannot be undone.
    """
    undoable = [write for write in writes if write.undo is not None]
    final = [write for write in writes if write.undo is None]
    begun: list[Write] = []
    try:
        for write in (*undoable, *final):
            begun.append(write)
            write.make()
    except BaseException as error:
        undone = [_undo(write.undo) for write in reversed(begun) if write.undo is not None]
        overwritten = len(begun) > len(undoable) + 1
        if (overwritten or not all(undone)) and isinstance(error, Exception):
            raise PartlyClippedError(
                f"clipping failed after some gradients were written: {error}. The gradients are partly clipped. "
                "Discard them, as optimizer.zero_grad() does, and repeat the backward pass"
            ) from error
        raise


def _undo(undo: Callable[[], object]) -> bool:
    try:
        undo()
    except Exception:
        return False
    return True
