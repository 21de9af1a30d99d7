"""The form of a case's call: the container of its gradients, and the memory and attributes of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

CONTAINERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "generator": lambda items: (item for item in items),
    "dict": lambda items: {f"gradient {index}": item for index, item in enumerate(items)},
    "dict values": lambda items: dict(enumerate(items)).values(),
    "named": lambda items: [(f"gradient {index}", item) for index, item in enumerate(items)],
    "nested": lambda items: {"first": [items[0]], "rest": [list(items[1:])]},
    "tensor": lambda items: items[0],
}
"""By name in a suite, the function that puts gradients or parameters into a container."""

STRUCTURES = {
    "dict": "dict",
    "nested": "dict of list, list of list",
    "named": "list of pairs",
    "tensor": "tensor",
}
"""The structure that a functional name returns for a container. Others return a list."""


class CallForm(BaseModel):
    """The form of a case's call. A field that is a list has an entry for each gradient, except `listed`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    container: str = "list"
    listed: list[Annotated[int, Field(ge=0)]] = []
    """Indices of the gradients, in the order of the container. A repeated index is the same object."""

    need_clip: list[bool | int] = []
    groups: list[str] = []
    """The group name of each gradient's parameter."""

    transposed: bool = False
    """Whether each tensor's memory is in the order of its transpose, if the framework has strides."""

    expanded: bool = False
    """Whether the elements of a tensor share one place in memory, if the framework has strides."""

    overlapping: bool = False
    """Whether the tensors overlap in one memory, each one element after the last, if the framework has views."""

    tensor_arguments: bool = False
    """Whether thresholds are float32 tensors."""

    gradients_for_parameters: bool = False
    """Whether in-place names get the gradients in place of parameters."""

    @property
    def structure(self) -> str:
        return STRUCTURES.get(self.container, "list")

    def contain(self, items: Sequence[Any]) -> Any:
        """Return the items in the container of the form, in the order of `listed`."""
        return CONTAINERS[self.container](self.in_order(items))

    def in_order(self, items: Sequence[Any]) -> list[Any]:
        """Return the items in the order of `listed`, or unchanged without one."""
        return [items[index] for index in self.listed] if self.listed else list(items)

    def describe(self) -> str:
        """Return the fields that are not the default as text for the case's name; '' if all are."""
        parts = []
        for key, value in self:
            if value == CallForm.model_fields[key].default:
                continue
            name = key.replace("_", " ")
            if key == "container":
                name = f"as {value}"
            elif value is not True:
                name = f"{name} {' '.join(str(entry).lower() for entry in value)}"
            parts.append(f", {name}")
        return "".join(parts)


PLAIN = CallForm()


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in nested lists, tuples and dicts, in order. Of a (name, value) tuple, only the value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        value = [value[1]]
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def structure(value: Any) -> str:
    """Return the type of a container and of the containers in it, such as "list of tuple"."""
    if not isinstance(value, list | tuple | Mapping):
        return "tensor"
    kind, items = type(value).__name__, list(value.values() if isinstance(value, Mapping) else value)
    if items and all(isinstance(item, tuple) and isinstance(item[0], str) for item in items):
        return f"{kind} of pairs"
    inner = [structure(item) for item in items if isinstance(item, list | tuple | Mapping)]
    return f"{kind} of {', '.join(inner)}" if inner else kind
