"""The gradients of one call, and where their clipped values go: returned (`Functional`) or written (`InPlace`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

from . import checks, containers, observer
from .consensus import AWAITED, Group
from .containers import Leaf, Tree
from .ops import Ops, Path, Scalar, Slices, Tensor, WholePath
from .shards import HERE_OR_TOLD, Across, Shards, SharedPath, each_norm
from .writes import Write, make_all, nothing


class Writes:
    """The changes of a call, made together where the paths compute that prepared them."""

    def __init__(self) -> None:
        self._writes: list[Write] = []
        self._host: Path | None = None
        self._device: Path | None = None

    def add(self, *writes: Write) -> None:
        self._writes += writes

    def add_of(self, path: Path, writes: Sequence[Write]) -> None:
        self._writes += writes
        if path.on_host:
            self._host = path
        else:
            self._device = path

    def make(self) -> None:
        if not self._writes:
            return
        with (
            nullcontext() if self._host is None else self._host.scope(),
            nullcontext() if self._device is None else self._device.scope(),
        ):
            make_all(self._writes)


Arrange = Callable[[Sequence[Leaf]], list[Leaf]]
"""Which gradients take part, and in what order."""


class Gradients:
    """Gradients that are present, checked, sparse ones merged: `values` are dense, one for each of `leaves`."""

    def __init__(
        self,
        ops: Ops,
        leaves: Iterable[Leaf],
        *,
        also: Iterable[str] = (),
        order: bool = False,
        across: Across | None = None,
        parameters: Sequence[Leaf] | None = None,
        measures: bool = False,
    ) -> None:
        """`parameters`: those too that have no gradient, where they are not among `leaves`. `measures`: the call takes
        a norm over all gradients, for which other ranks wait if this one raises."""
        self._across = across = across or HERE_OR_TOLD  # torch.compile cannot make such a default
        self.ops = ops = ops.stated(across)
        given = list(leaves)
        self.leaves = [leaf for leaf in given if leaf.tensor is not None]
        self.shards = ops.shards(
            self.leaves, given if parameters is None else parameters, across, differentiable=self.differentiable
        )
        if self.shards is not None and measures:
            AWAITED.group = self._awaiting
        for leaf in self.leaves:
            checks.supported(ops, leaf)
            checks.gradient_dtype(ops.dtype(leaf.tensor), leaf, also=also, order=order)
        held = self.shards.values if self.shards else [leaf.tensor for leaf in self.leaves]
        self._agreed, self._shared_norms = {}, {}
        adopted = [ops.adopt(tensor) for tensor in held]
        self._merged = [ops.merge_sparse(tensor, differentiable=self.differentiable) for tensor in adopted]
        self.values: list[Tensor] = [
            tensor if merged is None else merged.values for tensor, merged in zip(adopted, self._merged, strict=True)
        ]
        if self.shards is not None:
            self.shards.values = self.values

    differentiable = True
    shards: Shards | None = None
    _shared_norms: dict[float, dict[int, float]]
    _agreed: dict[str, Any]
    _has_path = False
    function = ""
    """The public name that was called, for error messages."""

    def _awaiting(self) -> Group | None:
        """The ranks that wait for this one. None where collectives come first, which a rank cannot leave out."""
        return None if self.shards is None or self.shards.awaits_sums() else self.shards.group()

    def agree(self, arguments: Mapping[str, Any]) -> None:
        """What has to be equal on every rank that holds the `shards`; they compare it when they measure."""
        norms = observer.active is not None and observer.active.norms  # which all of them measure, or none
        self._agreed = {**arguments, "norms= of unified_clip.record": norms}

    def check_one_norm(self) -> None:
        """ValueError where one norm over all is not known by the framework's own operations, which have derivatives."""
        if self.differentiable and self.shards is None:
            self.ops.check_one_norm(self.leaves, self._across)

    def leave(self, group: range, path: Path) -> None:
        """Take the values of a group as they are."""

    def scale(self, group: range, path: Path, coef: Scalar) -> None:
        """Multiply a group by its coefficient."""

    def clamp(self, group: range, path: Path, low: Any, high: Any) -> None:
        """Clip a group by value."""

    def path(self, group: range, others: Sequence[Any] = ()) -> Path:
        values = [self.values[i] for i in group]
        if self.shards is None:
            return self.ops.path(values, differentiable=self.differentiable, others=others)
        whole = None if others else self.ops.whole_of_tensors(values, differentiable=False, in_place=True)
        local = whole or self.ops.path(values, differentiable=False, others=others)
        is_first, self._has_path = not self._has_path, True
        path = SharedPath(
            local,
            self.shards,
            group,
            self._agreed,
            self.ops.measuring,
            function=self.function,
            is_first=is_first,
        )
        return cast(Path, path)

    def shared_norms(self, p: float, known_only: bool = False) -> dict[int, float] | None:
        """The norm of each gradient over the processes that hold it; None where each is held by one.

        `known_only`: without those that no process knows, which are a ValueError else.
        """
        if self.shards is None:
            return None
        found = self._shared_norms.get(p)
        if found is not None and (known_only or len(found) == len(self.leaves)):
            return found
        if p not in (1, 2):
            raise ValueError(
                f"the norm of order {p:g} of single gradients cannot be computed where several processes hold them; "
                "use order 2 or 1, or one norm over all"
            )
        self._shared_norms[p] = each_norm(
            self.shards, int(p), self._agreed, self.ops.measuring, known_only, self.function
        )
        return self._shared_norms[p]

    def each(self, group: range) -> Path | None:
        """A path with a norm for each gradient of a group, where the framework has one."""
        if self.shards is not None:
            return None
        return self.ops.each([self.values[i] for i in group], differentiable=self.differentiable)

    def restored(self, index: int, value: Tensor) -> Any:
        """A value as the gradient it belongs to: sparse again if that was sparse."""
        merged = self._merged[index]
        if merged is not None:
            value = merged.restore(value)
        return value if self.shards is None else self.shards.restored(index, value)

    def is_sparse(self, index: int) -> bool:
        return self._merged[index] is not None

    def shape(self, index: int) -> tuple[int | None, ...] | None:
        """The shape of a gradient, None where its rank is unknown. A sparse axis has the length None."""
        shape, merged = self.ops.shape(self.values[index]), self._merged[index]
        return shape if merged is None or shape is None else (*[None] * merged.sparse_axes, *shape[1:])

    def slices(self, index: int, axes: Sequence[int]) -> Slices:
        """Map the axes of a gradient to its values. Rows that are not stored add nothing to a norm."""
        merged = self._merged[index]
        if merged is None or merged.sparse_axes == 1:
            return Slices(axes)  # the first axis of the values is that of the gradient
        sparse_axes = merged.sparse_axes
        kept = [axis for axis in range(sparse_axes) if axis not in axes]
        dense_axes = [axis - sparse_axes + 1 for axis in axes if axis >= sparse_axes]
        if not kept:
            return Slices([0, *dense_axes])
        stored = self.ops.shape(self.values[index])
        if len(kept) == sparse_axes or (stored and stored[0] == 0):
            return Slices(dense_axes)
        return Slices(dense_axes, self.ops.row_groups(merged.indices, kept))


class Functional(Gradients):
    """Results are collected; `result` rebuilds the container from them."""

    def __init__(self, ops: Ops, tree: Tree, **options: Any) -> None:
        super().__init__(ops, tree.leaves, **options)
        self.tree = tree
        self._results: dict[int, Any] = {}

    def leave(self, group: range, path: Path) -> None:
        self._collect(group, path.unchanged())

    def scale(self, group: range, path: Path, coef: Scalar) -> None:
        self._collect(group, path.scale(coef))

    def clamp(self, group: range, path: Path, low: Any, high: Any) -> None:
        self._collect(group, path.clamp(low, high))

    def result(self) -> Any:
        return self.tree.rebuild([self._results.get(leaf.position) for leaf in self.tree.leaves])

    def _collect(self, group: range, values: list[Tensor]) -> None:
        for index, value in zip(group, values, strict=True):
            self._results[self.leaves[index].position] = self.restored(index, value)


class GivenObjects(Functional):
    """A gradient that is left alone comes back as the object that was given."""

    def leave(self, group: range, path: Path) -> None:
        for index in group:
            self._results[self.leaves[index].position] = self.leaves[index].tensor

    def scale(self, group: range, path: Path, coef: Scalar) -> None:
        if path.is_one(coef):
            self.leave(group, path)
        else:
            super().scale(group, path, coef)


class SameObjects(GivenObjects):
    """The same as class instances do it, which record no derivative."""

    differentiable = False


def wants_clipping(parameter: Any) -> bool:
    """Not where the parameter's own attribute `need_clip` is false."""
    return bool(getattr(parameter, "need_clip", True))


class InPlace(Gradients):
    """Results are written into the gradients' memory, or, where tensors cannot be written, into the container."""

    differentiable = False

    def __init__(
        self,
        ops: Ops,
        container: Any,
        function: str,
        instead: str,
        *,
        keep: Callable[[Any], bool] = wants_clipping,
        order: bool = False,
        arrange: Arrange = list,
        across: Across = HERE_OR_TOLD,
        measures: bool = False,
    ) -> None:
        tree = containers.flatten(ops, container)
        _warn_if_used_up(tree, function)
        if not ops.writable and not tree.used_up and container is not None:
            containers.check_replaceable(ops, container, function, instead)
        self._container, self._tree, self.function = container, tree, function
        leaves = parameters = [leaf for leaf in tree.leaves if leaf.tensor is not None]
        if ops.gradients_on_parameters:
            leaves = _gradients_of_parameters(ops, leaves, function, instead)
            if len(leaves) < len(parameters):
                _check_main_gradients(ops, parameters, leaves, keep, arrange)
        leaves = arrange([leaf for leaf in leaves if keep(leaf.parameter)])
        owners = ops.distinct([leaf.tensor for leaf in leaves], lambda index: f"the gradient at {leaves[index].place}")
        once = [leaf for index, leaf in enumerate(leaves) if owners[index] == index]
        counted = [leaf for leaf in parameters if keep(leaf.parameter)]
        super().__init__(ops, once, order=order, across=across, parameters=counted, measures=measures)
        self._aliases: dict[int, list[Leaf]] = {}
        for leaf, owner in zip(leaves, owners, strict=True):
            if leaves[owner] is not leaf:
                checks.gradient_dtype(ops.dtype(leaf.tensor), leaf, order=order)
                self._aliases.setdefault(leaves[owner].position, []).append(leaf)
        self._replaced: dict[int, Any] = {}
        self._writes = Writes()

    def leave(self, group: range, path: Path) -> None:
        """Nothing is written."""

    def scale(self, group: range, path: Path, coef: Scalar) -> None:
        if path.is_one(coef):
            return
        if self.ops.writable:
            self._writes.add_of(path, path.prepare_scale(coef))
            self._share(group)
        else:
            self._replace(group, path.scale(coef))

    def clamp(self, group: range, path: Path, low: Any, high: Any) -> None:
        if self.ops.writable:
            self._writes.add_of(path, path.prepare_clamp(low, high))
            self._share(group)
        else:
            self._replace(group, path.clamp(low, high))

    def finish(self) -> None:
        """Write everything, or update the container with what was replaced."""
        if self._replaced:
            results = [self._replaced.get(leaf.position, leaf.tensor) for leaf in self._tree.leaves]
            self._writes.add(*containers.replacements(self.ops, self._container, iter(results))[1])
        self._writes.make()

    def drop(self) -> None:
        """Take all gradients away, so that a step has nothing to apply; those too that took no part."""
        if not self.ops.gradients_on_parameters:
            nothing_left = iter([None] * len(self._tree.leaves))
            self._writes.add(*containers.replacements(self.ops, self._container, nothing_left)[1])
            return
        for leaf in self._tree.leaves:
            if leaf.tensor is not None:
                self._set_gradient(leaf.tensor, self.ops.held(self.ops.gradient_of(leaf.tensor)), None)

    def _share(self, group: range) -> None:
        """Put sparse results where they belong, and tell of the others to whoever shares their memory."""
        if self.shards is not None:
            self._announce([self.leaves[index].tensor for index in group])
        for index in group:
            leaf = self.leaves[index]
            aliases = self._aliases.get(leaf.position, [])
            if self.is_sparse(index):
                for holder in (leaf, *aliases):  # the memory of the values is written afterwards
                    self._set_gradient(holder.parameter, holder.tensor, self.restored(index, self.values[index]))
            elif aliases:
                self._announce([alias.tensor for alias in aliases])

    def _announce(self, tensors: list[Tensor]) -> None:
        self._writes.add(Write(functools.partial(self.ops.wrote, tensors), nothing))

    def _set_gradient(self, parameter: Any, old: Any, new: Any) -> None:
        make, undo = (functools.partial(self.ops.set_gradient, parameter, gradient) for gradient in (new, old))
        self._writes.add(Write(make, undo))

    def _replace(self, group: range, values: list[Tensor]) -> None:
        for index, value in zip(group, values, strict=True):
            self._replaced[self.leaves[index].position] = self.restored(index, value)


class Whole(Gradients):
    """Plain gradients, found in one go, in place: nothing has to be asked of any one of them."""

    differentiable = False

    def __init__(self, path: WholePath) -> None:
        self.values, self.leaves, self._path = path.tensors, [], path
        self._writes = Writes()

    def path(self, group: range, others: Sequence[Any] = ()) -> Path:
        return self._of(group)

    def each(self, group: range) -> Path:
        return self._of(group).each()

    def _of(self, group: range) -> WholePath:
        return self._path if len(group) == len(self.values) else self._path.part(group)

    def scale(self, group: range, path: Path, coef: Scalar) -> None:
        self._writes.add_of(path, path.prepare_scale(coef))

    def clamp(self, group: range, path: Path, low: Any, high: Any) -> None:
        self._writes.add_of(path, path.prepare_clamp(low, high))

    def is_sparse(self, index: int) -> bool:
        return False

    def finish(self) -> None:
        """Write everything where it is."""
        self._writes.make()


class WholeFunctional(Whole):
    """The same with new tensors, which `result` puts in the place of those given."""

    def __init__(self, path: WholePath, items: Sequence[Any], rebuild: containers.Rebuild) -> None:
        super().__init__(path)
        self._items, self._rebuild = items, rebuild
        self._results = list(path.tensors)

    def leave(self, group: range, path: Path) -> None:
        self._results[group.start : group.stop] = path.unchanged()

    def scale(self, group: range, path: Path, coef: Scalar) -> None:
        self._results[group.start : group.stop] = path.scale(coef)

    def clamp(self, group: range, path: Path, low: Any, high: Any) -> None:
        self._results[group.start : group.stop] = path.clamp(low, high)

    def result(self) -> Any:
        results = iter(self._results)
        return self._rebuild(None if item is None else next(results) for item in self._items)


class WholeSame(WholeFunctional):
    """As class instances do: gradients that are left alone come back as the objects that were given."""

    def leave(self, group: range, path: Path) -> None:
        """The results are what was given."""

    def scale(self, group: range, path: Path, coef: Scalar) -> None:
        if not path.is_one(coef):
            super().scale(group, path, coef)


class WholeReplaced(WholeSame):
    """The same in place where tensors cannot be written: into the list that they came from."""

    def __init__(self, path: WholePath, container: list[Any]) -> None:
        super().__init__(path, container, list)
        self._container = container

    def finish(self) -> None:
        self._container[:] = self.result()


def together(
    ops: Ops,
    container: Any,
    function: str,
    instead: str,
    *,
    plain: bool,
    keep: Callable[[Any], bool] = wants_clipping,
    order: bool = False,
    across: Across = HERE_OR_TOLD,
    measures: bool = False,
) -> Whole | InPlace:
    """Gradients to be clipped in place. `plain`: nothing has to be known of any one. `measures`: see `Gradients`."""
    whole = None
    plain = plain and not observer.needs_leaves() and not across.is_stated
    if plain and ops.gradients_on_parameters:
        container = _listed(container)
        if type(container) in (list, tuple):
            whole = ops.whole_of_parameters(container)
    elif plain and type(container) is list:
        whole = ops.whole_of_tensors(container, differentiable=False, in_place=True)
    if whole is None:
        return InPlace(ops, container, function, instead, keep=keep, order=order, across=across, measures=measures)
    if ops.writable:
        return Whole(whole)
    return WholeReplaced(whole, container)


def functional(
    ops: Ops,
    container: Any,
    function: str,
    *,
    plain: bool = True,
    across: Across = HERE_OR_TOLD,
    measures: bool = True,
) -> WholeFunctional | Functional:
    """Gradients for new results. `plain`: nothing has to be known of any one. `measures`: see `Gradients`."""
    container = _listed(container)
    plain = plain and not observer.needs_leaves() and not across.is_stated
    found = containers.plain_items(container) if plain else None
    whole = ops.whole_of_tensors(found[0], differentiable=True, in_place=False) if found else None
    if found is not None and whole is not None:
        return WholeFunctional(whole, *found)
    tree = containers.flatten(ops, container)
    _warn_if_used_up(tree, function)
    gradients = Functional(ops, tree, across=across, measures=measures)
    gradients.function = function
    return gradients


def single(ops: Ops, tensor: Any, *, plain: bool, across: Across = HERE_OR_TOLD) -> WholeFunctional | Functional:
    """Take one gradient for a new result. `plain`: its name and position are not needed."""
    if plain and tensor is not None and not observer.needs_leaves() and not across.is_stated:
        whole = ops.whole_of_tensors([tensor], differentiable=True, in_place=False)
        if whole is not None:
            return WholeFunctional(whole, [tensor], next)
    return Functional(ops, containers.flatten(ops, tensor), across=across)


def _warn_if_used_up(tree: Tree, function: str) -> None:
    if tree.used_up:
        checks.warn(f"{function} was given an iterator with nothing left in it; pass a list if you need it twice")


def _listed(container: Any) -> Any:
    """What an iterator yields, as a list; one with nothing left in it as another such."""
    return (list(container) or iter(())) if isinstance(container, Iterator) else container


def _gradients_of_parameters(ops: Ops, parameters: Sequence[Leaf], function: str, instead: str) -> list[Leaf]:
    """The gradients that parameters carry, each parameter once; a warning where none can ever carry one."""
    first: dict[Hashable, Leaf] = {}
    for leaf in parameters:
        first.setdefault(ops.identity(leaf.tensor), leaf)
    once = list(first.values())
    found = [leaf._replace(tensor=ops.gradient_of(leaf.tensor)) for leaf in once]
    present = [leaf for leaf in found if leaf.tensor is not None]
    if once and not present and not any(ops.can_have_gradient(leaf.parameter) for leaf in once):
        checks.warn(
            f"{function} takes parameters, and none of the tensors given has a gradient or can have one: nothing was "
            f"clipped. If they are gradients, use {instead}, which returns the result"
        )
    return present


def _check_main_gradients(
    ops: Ops, parameters: Sequence[Leaf], gradients: Sequence[Leaf], keep: Callable[[Any], bool], arrange: Arrange
) -> None:
    """Raise ValueError for a parameter that takes part and has a gradient in `main_grad` only."""
    without = [leaf for leaf in parameters if ops.gradient_of(leaf.tensor) is None]
    hidden = [leaf._replace(tensor=ops.main_gradient_of(leaf.tensor)) for leaf in without]
    hidden = [leaf for leaf in hidden if leaf.tensor is not None and keep(leaf.parameter)]
    positions = {leaf.position for leaf in hidden}
    for leaf in arrange([*gradients, *hidden]) if hidden else ():  # with all, since patterns of names are checked
        if leaf.position in positions:
            raise checks.in_main_grad_only(leaf, ops.main_gradient_remedy)
