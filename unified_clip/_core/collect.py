"""Find the gradients in a caller's argument."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from . import containers, validation
from .backend import Backend, Parameters
from .containers import Tree
from .distributed import AWAITED, DISTINCT, INFERRED, DistributedSpec, Measures, declared
from .gradients import GradientList, Writer
from .path import CollectedPath
from .types import Leaf
from .writers import Functional, InPlace

Arrange = Callable[[Sequence[Leaf]], list[Leaf]]
"""Selects gradients, and returns them in the order of clipping."""


def wants_clipping(parameter: Any) -> bool:
    return bool(getattr(parameter, "need_clip", True))


def collect_in_place(
    backend: Backend,
    container: Any,
    function: str,
    instead: str,
    *,
    keep: Callable[[Any], bool] = wants_clipping,
    arrange: Arrange = list,
    spec: DistributedSpec = INFERRED,
    **options: Any,
) -> tuple[GradientList, Writer]:
    """Return (gradients to clip in place, writer of the clipped values). Collect them in one pass if possible."""
    container = listed(container) if backend.writable else container  # an iterator has no place for new tensors
    path = None
    if keep is wants_clipping and not spec.is_given:
        path = _collected_in_place(backend, container)
    if path is None:
        return in_place(backend, container, function, instead, keep=keep, arrange=arrange, spec=spec, **options)
    return collected_in_place(backend, path, container, function, arrange)


def _collected_in_place(backend: Backend, container: Any) -> CollectedPath | None:
    if backend.parameters is not None:
        return backend.parameters.collect_parameters(container) if type(container) in (list, tuple) else None
    return backend.collect_tensors(container, differentiable=False, in_place=True) if type(container) is list else None


def collected_in_place(
    backend: Backend, path: CollectedPath, container: Any, function: str, arrange: Arrange = list
) -> tuple[GradientList, Writer]:
    leaves = _finder(backend, container)

    def entries() -> list[Leaf]:
        on_parameters = backend.parameters
        if on_parameters is None:
            return leaves()
        both = [(leaf, None if leaf.tensor is None else on_parameters.gradient_of(leaf.tensor)) for leaf in leaves()]
        return [leaf._replace(tensor=gradient) for leaf, gradient in both]

    def once(gradients: list[Leaf]) -> list[Leaf]:
        return arrange(_each_once(backend.parameters, gradients))

    writer: Writer = InPlace(backend, container, leaves, {})
    if not backend.writable:
        writer = Functional(container, list, reuse_unchanged=True, into=container)
    return GradientList(backend, path.tensors, writer, entries, function, collected=path, arrange=once), writer


def _finder(backend: Backend, container: Any) -> Callable[[], list[Leaf]]:
    return lambda: containers.flatten(backend, container).leaves


def in_place(
    backend: Backend,
    container: Any,
    function: str,
    instead: str,
    *,
    keep: Callable[[Any], bool] = wants_clipping,
    arrange: Arrange = list,
    reject_complex: bool = False,
    spec: DistributedSpec = INFERRED,
    measures: Measures | None = None,
    **options: Any,
) -> tuple[GradientList, InPlace]:
    """Check gradients one by one. Return (gradients to clip in place, writer of the clipped values)."""
    expected = prepare_rejection(backend, spec, measures, in_place=True, keep=keep) if measures else None
    tree = containers.flatten(backend, container, expected)
    _warn_if_used_up(tree, function)
    if not backend.writable and not tree.used_up and container is not None:
        containers.check_replaceable(backend, container, function, instead)
    leaves = parameters = [leaf for leaf in tree.leaves if leaf.tensor is not None]
    on_parameters = backend.parameters
    if on_parameters is not None:
        leaves = _gradients_of_parameters(on_parameters, leaves, function, instead)
        if len(leaves) < len(parameters):
            _check_main_gradients(on_parameters, parameters, leaves, keep, arrange)
    leaves = arrange([leaf for leaf in leaves if keep(leaf.parameter)])
    owners = backend.alias_owners(
        [leaf.tensor for leaf in leaves], lambda index: f"the gradient at {leaves[index].place}"
    )
    aliases: dict[int, list[Leaf]] = {}
    writer = InPlace(backend, container, lambda: tree.leaves, aliases)
    gradients = GradientList.of_leaves(
        backend,
        [leaf for index, leaf in enumerate(leaves) if owners[index] == index],
        writer,
        reject_complex=reject_complex,
        parameters=[leaf for leaf in parameters if keep(leaf.parameter)],
        function=function,
        spec=spec,
        measures=measures,
        **options,
    )
    for leaf, owner in zip(leaves, owners, strict=True):
        if leaves[owner] is not leaf:
            validation.gradient_dtype(backend.dtype(leaf.tensor), leaf, reject_complex=reject_complex)
            aliases.setdefault(leaves[owner].position, []).append(leaf)
    return gradients, writer


def collect(
    backend: Backend,
    container: Any,
    function: str,
    *,
    spec: DistributedSpec = INFERRED,
    measures: Measures | None = "total",
) -> tuple[GradientList, Functional]:
    """Return (gradients to clip into new tensors, writer that rebuilds the caller's container or tensor)."""
    container = listed(container)
    plain = None if spec.is_given else collect_in_one_pass(backend, container, function)
    if plain is not None:
        return plain
    expected = prepare_rejection(backend, spec, measures, in_place=False) if measures else None
    tree = containers.flatten(backend, container, expected)
    _warn_if_used_up(tree, function)
    return from_tree(backend, tree, differentiable=True, spec=spec, measures=measures, function=function)


def collect_in_one_pass(
    backend: Backend, container: Any, function: str, *, arrange: Arrange = list, reuse_unchanged: bool = False
) -> tuple[GradientList, Functional] | None:
    """Return None if the container or a gradient needs more checks."""
    items = containers.plain_items(backend, container)
    path = items and backend.collect_tensors(items[0], differentiable=True, in_place=False)
    if not items or path is None:
        return None
    writer = Functional(*items, reuse_unchanged=reuse_unchanged)
    entries = _finder(backend, container)
    gradients = GradientList(backend, path.tensors, writer, entries, function, True, collected=path, arrange=arrange)
    return gradients, writer


def from_tree(
    backend: Backend, tree: Tree, *, reuse_unchanged: bool = False, **options: Any
) -> tuple[GradientList, Functional]:
    items = [leaf.tensor for leaf in tree.leaves]
    writer = Functional(items, tree.rebuild, reuse_unchanged=reuse_unchanged)
    return GradientList.of_leaves(backend, tree.leaves, writer, **options), writer


def _warn_if_used_up(tree: Tree, function: str) -> None:
    if tree.used_up:
        validation.warn(
            f"{function} received no gradients: the iterator was empty or used up. Pass a list, which you can use "
            "several times"
        )


def listed(container: Any) -> Any:
    if type(container) in (list, tuple, dict) or not isinstance(container, Iterator):
        return container
    return list(container) or iter(())


def _each_once(on_parameters: Parameters | None, leaves: Sequence[Leaf]) -> list[Leaf]:
    if on_parameters is None:
        return list(leaves)
    first: dict[Hashable, Leaf] = {}
    for leaf in leaves:
        first.setdefault(on_parameters.identity(leaf.parameter), leaf)
    return list(first.values())


def _gradients_of_parameters(
    on_parameters: Parameters, parameters: Sequence[Leaf], function: str, instead: str
) -> list[Leaf]:
    """Return only one gradient for a parameter that is listed twice.

    If a tensor cannot have a gradient, issue a ClipWarning, because the tensor probably is a gradient.
    """
    once = _each_once(on_parameters, parameters)
    gradients = [Leaf(on_parameters.gradient_of(leaf.tensor), *leaf[1:]) for leaf in once]
    present = [leaf for leaf in gradients if leaf.tensor is not None]
    without = [leaf for leaf, own in zip(once, gradients, strict=True) if own.tensor is None]
    wrong = [leaf for leaf in without if not on_parameters.can_have_gradient(leaf.parameter)]
    if len(wrong) < len(once):  # intermediate results beside parameters are left out in silence
        wrong = [leaf for leaf in wrong if not on_parameters.records_derivative(leaf.parameter)]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        validation.warn(
            f"{function} takes parameters, but the tensor at {wrong[0].place}{more} cannot have a gradient, and was "
            f"not clipped. If you passed gradients, use {instead}, which returns the result"
        )
    return present


def _check_main_gradients(
    on_parameters: Parameters,
    parameters: Sequence[Leaf],
    gradients: Sequence[Leaf],
    keep: Callable[[Any], bool],
    arrange: Arrange,
) -> None:
    without = [leaf for leaf in parameters if on_parameters.gradient_of(leaf.tensor) is None]
    hidden = [leaf._replace(tensor=on_parameters.main_gradient_of(leaf.tensor)) for leaf in without]
    hidden = [leaf for leaf in hidden if leaf.tensor is not None and keep(leaf.parameter)]
    positions = {leaf.position for leaf in hidden}
    for leaf in arrange([*gradients, *hidden]) if hidden else ():
        if leaf.position in positions:
            raise validation.main_grad_only(leaf, on_parameters.main_gradient_remedy)


# -- errors before the checks of gradients. Other ranks already wait for this rank, so they also have to raise


def prepare_rejection(
    backend: Backend,
    spec: DistributedSpec,
    measures: Measures,
    *,
    in_place: bool,
    keep: Callable[[Any], bool] = wants_clipping,
) -> list[Leaf]:
    """Return an empty list. The caller adds the leaves of the call to this list.

    If the call fails, unified_clip sends the error to the ranks with shards or copies of these leaves.
    """
    leaves: list[Leaf] = []
    if backend.distributed is not None and backend.distributed.has_ranks():
        on_parameters = backend.parameters if in_place else None
        AWAITED.send_rejection = partial(_send_rejection, backend, on_parameters, leaves, keep, spec, measures)
    return leaves


def declared_spec(
    backend: Backend, container: Any, arguments: tuple[Any, Any, Any, Any], *, in_place: bool
) -> DistributedSpec:
    try:
        return declared(*arguments)
    except (TypeError, ValueError):
        process_group, ownership, *_ = arguments
        if process_group is not None:
            valid = DistributedSpec(process_group, None if ownership is None else DISTINCT)
            with suppress(TypeError):  # the error of the call is about the same entry
                containers.flatten(backend, container, prepare_rejection(backend, valid, "total", in_place=in_place))
        raise


def _send_rejection(
    backend: Backend,
    on_parameters: Parameters | None,
    leaves: Sequence[Leaf],
    keep: Callable[[Any], bool],
    spec: DistributedSpec,
    measures: Measures,
    error: Exception,
) -> None:
    parameters = gradients = [leaf for leaf in leaves if leaf.tensor is not None and _may_keep(keep, leaf.parameter)]
    if on_parameters is not None:
        both = [(leaf, on_parameters.gradient_of(leaf.tensor)) for leaf in parameters]
        gradients = [leaf._replace(tensor=gradient) for leaf, gradient in both if gradient is not None]
    assert backend.distributed is not None, "bug in unified_clip: the backend does not support distributed gradients"
    distributed = backend.distributed.with_spec(spec).distributed
    assert distributed is not None, "bug in unified_clip: the backend does not support distributed gradients"
    with suppress(Exception):  # the error of the call matters more
        shards = distributed.shards(gradients, parameters, spec, differentiable=on_parameters is None)
        if shards is not None:
            shards.send_rejection(measures, error)


def _may_keep(keep: Callable[[Any], bool], parameter: Any) -> bool:
    with suppress(Exception):
        return keep(parameter)
    return True


# -- (parameter, gradient) tuples, which optimizers pass to a clip


ParamGrads = list[tuple[Any, Any]]


def read_pairs(backend: Backend, params_grads: Any) -> tuple[list[Leaf], list[int]]:
    """Return (gradients, index of the parameter in each tuple)."""
    if (
        backend.is_tensor(params_grads)
        or isinstance(params_grads, (dict, str))
        or not isinstance(params_grads, Iterable)
    ):
        raise TypeError(
            f"params_grads has the type {type(params_grads).__name__}. Pass a list of (parameter, gradient) tuples"
        )
    leaves, indices = [], []
    pairs = list(params_grads)
    if isinstance(params_grads, Iterator) and not pairs:
        validation.warn("params_grads has no pairs: the iterator was empty or used up. Pass a list")
    for position, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"position {position} of params_grads is not a tuple of two. Pass (parameter, gradient) tuples"
            )
        index = _parameter_index(backend, pair, position)
        parameter, gradient = pair[index], pair[1 - index]
        name = parameter if isinstance(parameter, str) else backend.parameter_name(parameter)
        leaf = Leaf(gradient, position, name, parameter)
        if gradient is not None and not backend.is_tensor(gradient):
            raise containers.not_a_tensor(backend, gradient, leaf)
        leaves.append(leaf)
        indices.append(index)
    return leaves, indices


def _parameter_index(backend: Backend, pair: Sequence[Any], position: int) -> int:
    if backend.variables is None:
        if backend.is_parameter(pair[1]) and not backend.is_parameter(pair[0]):
            raise TypeError(
                f"position {position} of params_grads is a (gradient, parameter) tuple. Pass (parameter, gradient) "
                "tuples"
            )
        return 0
    variables = [backend.variables.is_variable(item) for item in pair]
    if variables == [True, True] or (variables == [False, False] and not isinstance(pair[0], str)):
        raise TypeError(
            f"position {position} of params_grads has {sum(variables)} Variables. Pass (gradient, variable) or "
            "(variable, gradient) tuples"
        )
    return int(variables[1])
