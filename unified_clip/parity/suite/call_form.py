"""How a case passes its gradients: the container, the memory of the tensors, and their attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ..old_releases.frameworks import CONTAINERS as CONTAINERS
from ..old_releases.frameworks import leaves as leaves

STRUCTURES = {
    "dict": "dict",
    "nested": "dict of (list, list of list)",
    "named": "list of pairs",
    "tensor": "tensor",
}
"""{container of the gradients: `structure()` of the result}. For all other containers, the structure is "list"."""


class CallForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    container: str = "list"
    listed: list[Annotated[int, Field(ge=0)]] = []
    """The index of the gradient at each position of the container. A repeated index puts the same object into the
    container twice."""

    need_clip: list[bool | int] = []
    groups: list[str] = []
    """The name of each parameter's group. `set_gradient_clip` sets a clip for each group."""

    transposed: bool = False
    """Whether each tensor is the transpose of a contiguous tensor. Frameworks without strides ignore this field."""

    expanded: bool = False
    """Whether each tensor has stride 0, so that all its elements share one memory address. Frameworks without
    strides ignore this field."""

    overlapping: bool = False
    """Whether the tensors overlap each other in memory. Frameworks without views ignore this field."""

    tensor_arguments: bool = False
    gradients_for_parameters: bool = False
    """Whether functions that clip in place get a list of gradients instead of a list of parameters."""

    @property
    def structure(self) -> str:
        return STRUCTURES.get(self.container, "list")

    def contain(self, items: Sequence[Any]) -> Any:
        return CONTAINERS[self.container](self.in_order(items))

    def in_order(self, items: Sequence[Any]) -> list[Any]:
        return [items[index] for index in self.listed] if self.listed else list(items)

    def describe(self) -> str:
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


def structure(value: Any) -> str:
    if not isinstance(value, list | tuple | Mapping):
        return "tensor"
    kind, items = type(value).__name__, list(value.values() if isinstance(value, Mapping) else value)
    if items and all(isinstance(item, tuple) and isinstance(item[0], str) for item in items):
        return f"{kind} of pairs"
    inner = [structure(item) for item in items if isinstance(item, list | tuple | Mapping)]
    items_text = f"({', '.join(inner)})" if len(inner) > 1 else "".join(inner)
    return f"{kind} of {items_text}" if inner else kind
