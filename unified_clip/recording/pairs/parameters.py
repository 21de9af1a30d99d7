"""Pair the parameters of two recorded runs."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..._core.names import canonical, without_indices
from ..._kit import atomic_files
from ..._kit.atomic_files import FileError
from ..._kit.parse import tomllib
from ...tensors.arithmetic import Float64s
from ..recorded_run import Parameter, RecordedCall, RecordedRun
from ..rounding import is_near
from ..runs import RunError

MOST_NEAR = 3

Names = Mapping[str, str]
"""{name of a parameter in one run: its name in the other run}."""


def match_parameters(
    a: Mapping[str, Parameter | Float64s], b: Mapping[str, Parameter | Float64s], names: Names
) -> Names:
    """Pair the parameters that `names` maps to each other, then parameters of the same name. If no names are equal,
    pair parameters of equal shape in their order."""
    matched = {name: other for name, other in names.items() if name in a and other in b}
    taken = {*names, *names.values()}
    common = {name: name for name in a if name in b and name not in taken and not name.isdecimal()}
    if common:  # positions do not count as names: frameworks list parameters in different orders
        return common | matched
    by_shape: dict[tuple[str, ...], list[str]] = {}
    for name, parameter in b.items():
        if name not in names.values():
            by_shape.setdefault(sorted_shape(parameter.shape), []).append(name)
    rest = {name: sorted_shape(parameter.shape) for name, parameter in a.items() if name not in names}
    return matched | {name: by_shape[shape].pop(0) for name, shape in rest.items() if by_shape.get(shape)}


def sorted_shape(shape: Sequence[int | None]) -> tuple[str, ...]:
    """A weight and its transpose have the same sorted shape."""
    return tuple(sorted(map(str, shape)))


def match_unambiguous(a: RecordedCall, b: RecordedCall, names: Names) -> Names:
    # parameters are paired by shape only if both calls have equally many of that shape
    if not names and _are_shifted(a.parameters, b.parameters):
        return dict(zip(a.parameters, b.parameters, strict=True))
    matched = match_parameters(a.parameters, b.parameters, names)
    rest_a = {name: each for name, each in a.parameters.items() if name not in matched}
    rest_b = {name: each for name, each in b.parameters.items() if name not in matched.values()}
    by_shape = match_parameters(rest_a, rest_b, {})
    if len(by_shape) == len(rest_a) == len(rest_b):
        matched = {**matched, **by_shape}
    counts = [Counter(sorted_shape(each.shape) for each in call.parameters.values()) for call in (a, b)]
    return {
        name: other
        for name, other in matched.items()
        if (name == other and not name.isdecimal())
        or names.get(name) == other
        or counts[0][shape := sorted_shape(a.parameters[name].shape)] == counts[1][shape]
    }


def match_by_norm(a: RecordedCall, b: RecordedCall, matched: Names) -> Names:
    """If no names are equal, pair the remaining parameters of a shape by the norms of their gradients."""
    rest_a = [name for name in a.parameters if name not in matched]
    rest_b = [name for name in b.parameters if name not in matched.values()]
    is_named = any(name == other for name, other in matched.items())
    if is_named or a.order != b.order or any(map(str.isdecimal, (*rest_a, *rest_b))):
        return {}
    pairs: dict[str, str] = {}
    for shape in {sorted_shape(a.parameters[name].shape) for name in rest_a}:
        left, right = (
            {name: call.parameters[name].norm for name in rest if sorted_shape(call.parameters[name].shape) == shape}
            for call, rest in ((a, rest_a), (b, rest_b))
        )
        near = [(name, other) for name in left for other in right if left[name] and is_near(left[name], right[other])]
        if (
            len(near)
            == len({name for name, _ in near})
            == len({name for _, name in near})
            == min(len(left), len(right))
        ):
            pairs.update(near)
    return pairs


def _are_shifted(a: Mapping[str, Parameter], b: Mapping[str, Parameter]) -> bool:
    positions = {name: index for index, name in enumerate(b)}
    moved = [name for index, name in enumerate(a) if positions.get(name, index) != index]
    has_numbers = all(any(map(str.isdecimal, re.split(r"[\W_]+", name))) for name in moved)
    shapes, others = ([sorted_shape(each.shape) for each in parameters.values()] for parameters in (a, b))
    is_one_order = [name for name in a if name in b] == [name for name in b if name in a]
    return bool(moved) and has_numbers and is_one_order and shapes == others


WRITE = 'Write one line for each parameter: "name" = "its name in the other run".'


def read_names(path: Path) -> Names:
    try:
        names = tomllib.loads(atomic_files.read_text(path))
    except FileError as error:
        raise RunError(f"{error}", "UC503") from None
    except RecursionError:
        raise RunError(f"{path}: its lists or tables are nested too deep. {WRITE}", "UC503") from None
    except ValueError as error:
        raise RunError(f"{path} is not TOML: {error}. {WRITE}", "UC503") from None
    for name, other in names.items():
        if not isinstance(other, str):
            raise RunError(f"{path}, {name}: {_not_a_string(name, other)}", "UC503")
    repeated = [name for name, count in Counter(names.values()).items() if count > 1]
    if repeated:
        raise RunError(f"{path}: several lines have the value {repeated[0]!r}. Keep only one of these lines.", "UC503")
    return names


def _not_a_string(name: str, value: object) -> str:
    if isinstance(value, dict):
        example = f'"{name}.weight" = "its name in the other run"'
        return (
            "this is a table, not a line with two names. Put both names in quotes, such as "
            f"{example}. Remove headers such as [{name}]."
        )
    return f'the value is not a string. Put both names in quotes: "{name}" = "its name in the other run".'


def orient_names(names: Names, in_a: set[str], in_b: set[str]) -> Names | None:
    both = (names, {other: name for name, other in names.items()})
    return next((each for each in both if in_a.issuperset(each) and in_b.issuperset(each.values())), None)


def _names_of_two_versions(in_a: Iterable[str], in_b: Iterable[str]) -> Names:
    """Pair the names of a recording of version 0.1, which had no list indices, with the names of a new recording."""
    long_a, long_b = ({name: canonical(name) for name in names} for names in (in_a, in_b))
    pairs: dict[str, str] = {}
    for left, right in ((long_a, without_indices(in_b)), (without_indices(in_a), long_b), (long_a, long_b)):
        by_name = {short: name for name, short in right.items()}
        pairs |= {name: by_name[short] for name, short in left.items() if short in by_name}
    return {name: other for name, other in pairs.items() if name != other and name not in in_b and other not in in_a}


def names_from_a_to_b(a: RecordedRun, b: RecordedRun, names: Names) -> Names:
    in_a, in_b = ({name: None for line in run.lines for name in line.parameters} for run in (a, b))
    if (oriented := orient_names(names, set(in_a), set(in_b))) is not None:
        return {**_names_of_two_versions(in_a, in_b), **oriented}
    sides = [(a, in_a), (b, in_b)]
    unknown = [
        [(run, name, known) for (run, known), each in zip(order, (names, names.values()), strict=True)
         for name in each if name not in known]
        for order in (sides, sides[::-1])
    ]  # fmt: skip
    run, name, known = min(unknown, key=len)[0]
    near = difflib.get_close_matches(name, known, MOST_NEAR) or sorted(known)[:MOST_NEAR]
    remedy = f"This run has parameters such as {', '.join(near)}. Correct the name."
    if not known:
        remedy = "This run has no norms of parameters. Record this run with --norms, or with norms=True in Python."
    elif name in {**in_a, **in_b}:
        remedy = (
            "The other run has this parameter. On every line, write the name from one run on the left, and the name "
            "from the other run on the right."
        )
    problem = f"The map of names (--map) has {name!r}, which is not a parameter of {run.path}."
    raise RunError(f"{problem} {remedy}", "UC503")
