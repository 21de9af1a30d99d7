"""The table `adaptive` of a configuration."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import Field, create_model, model_validator
from typing_extensions import Self

from .._core.backend import Backend
from .._core.gradients import GradientList
from .._core.rule import AdaptiveThreshold, OwnThresholds
from .._core.types import Tensor
from .._dispatch import backend_of
from ..adaptive import state
from ..adaptive.rules import AGC, RULES, Rule
from ..adaptive.units import UnitThresholds
from .fields import ConfigModel, Finite


class AdaptiveTable(ConfigModel):
    rule: Any

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        self.make()
        return self

    @property
    def has_state(self) -> bool:
        return bool(self.rule != "agc")

    def make(self) -> Rule | AGC:
        settings = self.data()
        return RULES[settings.pop("rule")](**settings)

    @property
    def meaning(self) -> Self:
        """If two tables have equal values here, they have the same effect."""
        rule = self.make()
        if not isinstance(rule, AGC):
            return self
        eps, smallest_norm = rule.floors
        convention = "timm" if rule.convention == "composer" else rule.convention  # Composer has the same units as timm
        return self.model_copy(update={"convention": convention, "eps": eps, "smallest_norm": smallest_norm})

    def __str__(self) -> str:
        return str(self.make())


def _table(name: str) -> type[AdaptiveTable]:
    rule = RULES[name]
    hints = get_type_hints(rule)
    types: dict[Any, Any] = {float: Finite}
    keys: dict[str, Any] = {
        field.name: (types.get(hints[field.name], hints[field.name]), field.default) for field in fields(rule)
    }
    tag: dict[str, Any] = {"rule": (Literal[name], ...)}
    doc = (rule.__doc__ or "").partition("\n")[0]
    return create_model(rule.__name__, __base__=AdaptiveTable, __doc__=doc, **tag, **keys)


Adaptive: Any = Annotated[Union[tuple(map(_table, RULES))], Field(discriminator="rule")]  # noqa: UP007


States = dict[str, state.State]
"""The state of each group by name. The name '' is for parameters in no group."""


class AdaptiveStates:
    def __init__(self, tables: dict[str, AdaptiveTable]) -> None:
        self._tables = tables
        rules = {name: table.make() for name, table in tables.items()}
        self._without_state = {name: rule for name, rule in rules.items() if isinstance(rule, AGC)}
        self._rules = {name: rule for name, rule in rules.items() if not isinstance(rule, AGC)}
        self.lock = threading.RLock()
        self.current: States = {name: state.initial(rule) for name, rule in self._rules.items()}

    def lock_for(self, gradients: GradientList, states: States | None) -> AbstractContextManager[Any]:
        """Return a context in which no other thread changes the current states.

        For gradients on several ranks, no lock is used. Ranks can be threads that wait for each other, so a lock could
        cause a deadlock.
        """
        return self.lock if states is None and self.current and gradients.shards is None else nullcontext()

    def threshold(self, name: str, states: States, limit: Any) -> AdaptiveThreshold | OwnThresholds:
        if name in self._without_state:
            return UnitThresholds(self._without_state[name], limit)
        return state.RuleThreshold(self._rules[name], states[name], limit)

    def from_packed(self, packed: Sequence[Tensor], backend: Backend) -> States:
        """Unpack the tensors from `to_packed`, except tensors whose values cannot be read yet."""
        lengths = [(backend.shape(tensor) or [None])[0] for tensor in packed]
        expected = list(map(state.length, self._rules.values()))
        fits = [None in (own, length) or own == length for own, length in zip(expected, lengths, strict=False)]
        if len(lengths) != len(expected) or not all(fits):
            own = ", ".join(sorted(map(str, self._rules.values()))) or "none"
            raise ValueError(
                f"the optimizer's state has values for {len(lengths)} adaptive rules, and does not match the "
                f"configuration's rules: {own}. Use the configuration that created this state, or start with a new "
                "optimizer state."
            )
        return {
            name: self._read(name, tensor) if backend.has_values(tensor) else tensor
            for name, tensor in zip(self._rules, packed, strict=True)
        }

    def to_packed(self, states: States, backend: Backend) -> list[Tensor]:
        return [
            backend.from_state(state.flatten(self._rules[name], each)) if isinstance(each, dict) else each
            for name, each in states.items()
        ]

    def save(self, states: States) -> dict[str, Any]:
        data = {}
        for name, each in states.items():
            numbers = each if isinstance(each, dict) else self._read(name, each)
            data[name] = {"rule": self._tables[name].rule, "state": state.to_data(numbers)}
        return data

    def load(self, data: Any) -> None:
        """Replace the current states by data from `save`. After an error, the current states are unchanged."""
        expected = {name: self._tables[name].rule for name in self._rules}
        saved = data
        if isinstance(data, dict):
            saved = {name: each.get("rule") if isinstance(each, dict) else None for name, each in data.items()}
        if saved != expected:
            raise ValueError(
                f"the saved state has the adaptive rules {saved!r:.200}, but this configuration has {expected}. Load a "
                "state that state_dict() of this configuration returned. The name '' is for parameters in no group."
            )
        self.current = {name: state.from_data(rule, data[name].get("state")) for name, rule in self._rules.items()}

    def _read(self, name: str, packed: Tensor) -> dict[str, Any]:
        return state.read_packed(self._rules[name], backend_of(packed).to_numpy(packed))
