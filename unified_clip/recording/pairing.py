"""Pair the calls and the parameters of two recorded runs."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .runs import Parameter, RecordedCall, RecordedRun, RunError

Names = Mapping[str, str]
"""From a parameter's name in one run to its name in the other."""


@dataclass(frozen=True)
class CallPair:
    """A call of each run, of the same step and at the same position in it."""

    a: RecordedCall
    b: RecordedCall
    names: Names
    """Parameters that both calls have, from the name in `a` to the name in `b`."""

    index: int
    """The position of both calls in their runs."""


def pair_calls(a: RecordedRun, b: RecordedRun, names: Names) -> list[CallPair]:
    """Pair the calls of two runs in order, up to the first two whose steps differ.

    Args:
        a: A run.
        b: Another run.
        names: Parameter names, from either run to the other. `match_parameters` matches the remaining ones.

    Raises:
        RunError: `names` has a name that is in neither run.
    """
    return list(_pairs(a, b, _from_a_to_b(a, b, names)))


def read_names(path: Path) -> Names:
    """Read a TOML file of `"name in one run" = "name in the other"`.

    Raises:
        RunError: The file is not such a file, or two names stand for one parameter.
    """
    try:
        names = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise RunError(f"{path}: its lists or tables are nested too deep") from None
    except ValueError as error:
        raise RunError(f"{path}: {error}") from None
    for name, other in names.items():
        if not isinstance(other, str):
            raise RunError(f'{path}, {name}: write "name" = "its name in the other run", both in quotes')
    repeated = [name for name, count in Counter(names.values()).items() if count > 1]
    if repeated:
        raise RunError(f"{path}: {repeated[0]!r} stands for two parameters")
    return names


def match_parameters(a: Mapping[str, Parameter], b: Mapping[str, Parameter], names: Names) -> Names:
    """Match the parameters of two calls: by `names`, else by equal names, else by shape in their order."""
    given = {name: other for name, other in names.items() if name in a and other in b}
    taken = {*names, *names.values()}
    common = {name: name for name in a if name in b and name not in taken and not name.isdecimal()}
    if common:  # a position is no name: frameworks list parameters in different orders
        return common | given
    by_shape: dict[tuple[str, ...], list[str]] = {}
    for name, parameter in b.items():
        if name not in names.values():
            by_shape.setdefault(_sorted_shape(parameter), []).append(name)
    rest = {name: _sorted_shape(parameter) for name, parameter in a.items() if name not in names}
    return given | {name: by_shape[shape].pop(0) for name, shape in rest.items() if by_shape.get(shape)}


def _pairs(a: RecordedRun, b: RecordedRun, names: Names) -> Iterator[CallPair]:
    for index, (left, right) in enumerate(zip(a.lines, b.lines, strict=False)):
        if left.step != right.step:
            return
        yield CallPair(left, right, match_parameters(left.parameters, right.parameters, names), index)


def _sorted_shape(parameter: Parameter) -> tuple[str, ...]:
    """Return the shape without the order of its axes: some frameworks store weights transposed."""
    return tuple(sorted(map(str, parameter.shape)))


def _from_a_to_b(a: RecordedRun, b: RecordedRun, names: Names) -> Names:
    """Return `names` in the direction from `a` to `b`."""
    in_a, in_b = ({name for line in run.lines for name in line.parameters} for run in (a, b))
    unknown = [[name for name in keys if name not in run] for keys, run in ((names, in_a), (names.values(), in_b))]
    reverse = {other: name for name, other in names.items()}
    if not any(unknown):
        return names
    if not (set(reverse) - in_a or set(names) - in_b):
        return reverse
    run, name, known = (a, unknown[0][0], in_a) if unknown[0] else (b, unknown[1][0], in_b)
    has = f"it has {', '.join(sorted(known))}" if known else "it was recorded without norms=True"
    raise RunError(f"the map of names has {name!r}, which is no parameter of {run.path}: {has}")
