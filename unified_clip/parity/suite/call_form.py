"""How a case passes its gradients, where that is another way than as a plain list of contiguous tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

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
"""By the name that a suite uses, what the gradients or the parameters are passed in."""

STRUCTURES = {
    "dict": "dict",
    "nested": "dict of list, list of list",
    "named": "list of pairs",
    "tensor": "tensor",
}
"""What a functional name returns for a container; a list for those not here."""


@dataclass(frozen=True)
class CallForm:
    """How a call is made. Lists have an entry for each gradient of the case."""

    container: str = "list"
    """One of CONTAINERS."""

    listed: tuple[int, ...] = ()
    """The gradients' numbers, in the order in which the container holds them; repeated ones are the same object."""

    need_clip: tuple[bool | int, ...] = ()

    groups: tuple[str, ...] = ()
    """The group name of each gradient's parameter."""

    transposed: bool = False
    """The tensors' memory is in the order of their transposes, where the framework has that."""

    expanded: bool = False
    """The tensors' elements are all in one place in memory, where the framework has that."""

    overlapping: bool = False
    """Each tensor begins one element behind the one before it, in one memory, where the framework has that."""

    tensor_arguments: bool = False
    """Thresholds are float32 tensors."""

    gradients_for_parameters: bool = False
    """In-place names are given the gradients where they take parameters."""

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> CallForm:
        """From a suite or a job file, which have lists."""
        entries: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        return cls(**entries)

    @property
    def structure(self) -> str:
        return STRUCTURES.get(self.container, "list")

    def contain(self, items: Sequence[Any]) -> Any:
        """The items in the container, as they are listed."""
        return CONTAINERS[self.container](self.in_order(items))

    def in_order(self, items: Sequence[Any]) -> list[Any]:
        """The items as they are listed."""
        return [items[index] for index in self.listed] if self.listed else list(items)

    def describe(self) -> str:
        """For a case's name; '' for the plain call_form."""
        parts = []
        for each in fields(self):
            value = getattr(self, each.name)
            if value == each.default:
                continue
            name = each.name.replace("_", " ")
            parts.append(
                f"as {value}" if each.name == "container" else name if value is True else _listing(name, value)
            )
        return "".join(f", {part}" for part in parts)


PLAIN = CallForm()


def _listing(name: str, values: Sequence[Any]) -> str:
    return f"{name} {' '.join(str(value).lower() for value in values)}"


def leaves(value: Any) -> Iterator[Any]:
    """The tensors and None in a container of lists, tuples and dicts, in order."""
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
    """A container's kind, with those of the containers in it: see STRUCTURES."""
    if not isinstance(value, list | tuple | Mapping):
        return "tensor"
    kind, items = type(value).__name__, list(value.values() if isinstance(value, Mapping) else value)
    if items and all(isinstance(item, tuple) and isinstance(item[0], str) for item in items):
        return f"{kind} of pairs"
    inner = [structure(item) for item in items if isinstance(item, list | tuple | Mapping)]
    return f"{kind} of {', '.join(inner)}" if inner else kind
