"""Check and convert the states of rules."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._compute.device import DeviceScalars
from .._compute.host import HOST
from .._core.backend import Backend
from .._core.path import Scalars
from .._core.rule import AdaptiveThreshold
from .._core.types import Scalar, Tensor, with_article
from .._dispatch import backend_of
from .number import Number, Real, where
from .rules import RULES, Data, Percentile, Rule

STEPS = "steps"
"""The state's key for the number of earlier norms."""

LARGEST_NORM = 1e150
"""Larger norms are treated as infinite, because the square of a norm must be finite."""

assert sys.float_info.max > LARGEST_NORM * LARGEST_NORM

REMEDY = (
    "Load a state that state_dict() or read_state() returned. If the rule is your own class, return finite numbers "
    "from the methods init and threshold."
)
State = dict[str, Real] | Tensor
"""A dict of numbers on the host path, or a packed tensor on the device path."""


def check_rule(rule: Any) -> None:
    """Raise TypeError for anything but a rule for the total norm."""
    if isinstance(rule, type) or not (hasattr(rule, "init") and hasattr(rule, "threshold")):
        expected = "a rule for the total norm, such as ZClip(), or an object with the methods init and threshold"
        raise wrong_rule(rule, expected)


def wrong_rule(rule: Any, expected: str) -> TypeError:
    text = repr(rule) if len(repr(rule)) <= 60 else f"{rule!r:.60}..."
    return TypeError(f"the adaptive rule is {text}. Pass {expected}.")


def _initial_data(rule: Rule) -> Data:
    return {STEPS: 0.0, **rule.init()}


def initial(rule: Rule) -> dict[str, Real]:
    return from_data(rule, _initial_data(rule))


def to_data(state: Mapping[str, Real]) -> Data:
    return {name: value if isinstance(value, float) else value.tolist() for name, value in state.items()}


def from_data(rule: Rule, data: Any) -> dict[str, Real]:
    expected = _initial_data(rule)
    if not isinstance(data, Mapping) or set(data) != set(expected):
        keys = f"the keys {', '.join(sorted(expected))}"
        problem = f"the state is {_kind(data)}, not a dict with {keys}"
        if isinstance(data, Mapping):
            own = ", ".join(sorted(map(str, data))) or "(none)"
            problem = f"the state has the keys {own}, but {rule} needs {keys}"
        raise ValueError(f"{problem}. Load the state of the same rule.")
    low = 0.0 if type(rule) in RULES.values() else -sys.float_info.max  # a user's rule may store negative numbers
    state: dict[str, Real] = {}
    for name, value in data.items():
        numbers = value if isinstance(value, list) else [value]
        is_valid = all(_is_number(number, 0.0 if name == STEPS else low) for number in numbers)
        if isinstance(value, list) != isinstance(expected[name], list) or not is_valid:
            raise ValueError(f"the value of `{name}` in the state is {value!r:.60}. {REMEDY}")
        if isinstance(value, list) and expected[name] and len(value) != len(expected[name]):
            raise ValueError(
                f"the list `{name}` of the state has {len(value)} numbers, but {rule} needs {len(expected[name])}. "
                "Load the state of the same rule with the same settings."
            )
        state[name] = np.array(value, np.float64) if isinstance(value, list) else float(value)
    steps = state[STEPS]
    if isinstance(rule, Percentile) and rule.window is None and len(state["norms"]) != steps:
        raise ValueError(f"the state has {len(state['norms'])} norms, but `steps` is {steps:g}. {REMEDY}")
    if not steps.is_integer():
        raise ValueError(f"the value of `steps` in the state is {steps:g}, which is not a whole number. {REMEDY}")
    return state


def _kind(data: Any) -> str:
    return "None" if data is None else with_article(type(data).__name__)


def _is_number(value: Any, low: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= sys.float_info.max


class RuleThreshold(AdaptiveThreshold):
    __slots__ = ("rule", "state")

    def __init__(self, rule: Rule, state: State, limit: Any) -> None:
        self.rule, self.state, self.limit = rule, state, limit

    def advance(self, xp: Scalars, norm: Scalar) -> tuple[Scalar, State]:
        return advance(self.rule, self.state, xp, norm)

    def describe(self) -> str:
        state = to_data(self.state) if isinstance(self.state, dict) else "on the device"
        return f"adaptive {self.rule} with the state {state}"


def advance(rule: Rule, state: State, xp: Scalars, norm: Scalar) -> tuple[Scalar, State]:
    """If the norm is NaN or infinite, the threshold is 0 and the state stays unchanged."""
    if xp is HOST:
        assert isinstance(state, dict)
        if not norm <= LARGEST_NORM:
            return 0.0, state
        numbers = dict(state)
        steps = numbers.pop(STEPS)
        threshold, new = rule.threshold(numbers, float(norm), steps)
        after = {**state, **new, STEPS: steps + 1.0}
        if STEPS in new or not len(new) + 1 == len(after) == len(state):
            raise _other_names(rule, new)
        return _checked(rule, threshold), after
    assert isinstance(xp, DeviceScalars)
    packed = state if not isinstance(state, dict) else pack(rule, xp, state)
    numbers = unpack(rule, xp, packed)
    steps = numbers.pop(STEPS)
    counts = norm <= xp.asarray(LARGEST_NORM)
    finite = Number(xp, xp.where(counts, norm, xp.asarray(0.0)))
    threshold, new = rule.threshold(numbers, finite, steps)
    names = rule.init()
    if new.keys() != names.keys():
        raise _other_names(rule, new)
    values = [steps + 1.0, *(new[name] for name in names)]
    kept = xp.pack([value.value if isinstance(value, Number) else xp.asarray(value) for value in values])
    after = xp.stop_gradient(xp.where(counts, kept, packed))
    return where(counts, threshold, Number(xp, xp.asarray(0.0))).value, after


def _other_names(rule: Rule, new: Mapping[str, Real]) -> TypeError:
    return TypeError(
        f"{rule}.threshold returned a state with the keys {sorted(new)}. Return a state with the keys that init "
        f"returns: {sorted(rule.init())}."
    )


def _checked(rule: Rule, threshold: Any) -> float:
    value = float(threshold)
    if not value >= 0:
        raise ValueError(f"{rule}.threshold returned {value}. Return a number of 0 or more.")
    return value


def pack(rule: Rule, xp: DeviceScalars, state: Mapping[str, Real]) -> Tensor:
    return xp.pack([xp.vector(flatten(rule, state).tolist())])


def check_fixed_size(rule: Rule) -> None:
    if [] in rule.init().values():
        remedy = (
            "Set window, such as window=1000"
            if isinstance(rule, Percentile)
            else "The method init of the rule must not return an empty list"
        )
        raise TypeError(
            f"the state of {rule} grows in each step. Only ClipConfig supports this, in eager calls on a CPU. {remedy}."
        )


def flatten(rule: Rule, state: Mapping[str, Real]) -> np.ndarray[Any, Any]:
    return np.concatenate([np.ravel(np.asarray(state[name], np.float64)) for name in _initial_data(rule)])


def unpack(rule: Rule, xp: DeviceScalars, packed: Tensor) -> dict[str, Number]:
    check_fixed_size(rule)
    lengths = _lengths(rule, packed)
    parts = xp.unpack(packed, list(lengths.values()))
    return {name: Number(xp, part) for name, part in zip(lengths, parts, strict=True)}


def _lengths(rule: Rule, packed: Any) -> dict[str, int | None]:
    values = _initial_data(rule)
    known = sum(len(value) if isinstance(value, list) else 1 for value in values.values())
    return {
        name: len(value) or packed.shape[0] - known if isinstance(value, list) else None
        for name, value in values.items()
    }


def backend_for(rule: Any, packed: Any) -> Backend:
    check_rule(rule)
    backend = backend_of(packed)
    remedy = "Pass the state that initial_state() or the last call returned for this rule."
    if not backend.is_tensor(packed):
        raise TypeError(f"the state is {_kind(packed)}. {remedy}")
    shape, dtype = backend.shape(packed), backend.dtype(packed)
    if shape is None:
        return backend
    if (len(shape), dtype) not in PACKED:
        raise TypeError(f"the state has {len(shape)} axes and the dtype {dtype}. {remedy}")
    _check_length(rule, shape[0], remedy)
    return backend


PACKED = ((1, "float64"), (2, "int32"))
"""(number of axes, dtype) of a packed state. JAX stores a float64 as two int32."""


def length(rule: Rule) -> int | None:
    """Return the length of a packed state, or None if the rule does not determine the length."""
    values = list(rule.init().values())
    return None if [] in values else 1 + sum(len(value) if isinstance(value, list) else 1 for value in values)


def _check_length(rule: Rule, actual: int | None, remedy: str) -> None:
    expected = length(rule)
    if None not in (actual, expected) and actual != expected:
        raise ValueError(f"the state has {actual} numbers, but {rule} needs {expected}. {remedy}")


def read_packed(rule: Rule, values: Any) -> dict[str, Real]:
    array = np.asarray(values)
    numbers = array.astype(np.int32).view(np.float64)[..., 0].tolist() if array.ndim == 2 else array.tolist()
    _check_length(rule, len(numbers), "Pass the rule that the state belongs to.")
    data, start = {}, 0
    for name, count in _lengths(rule, array).items():
        end = start + (1 if count is None else count)
        data[name] = numbers[start] if count is None else numbers[start:end]
        start = end
    return from_data(rule, data)
