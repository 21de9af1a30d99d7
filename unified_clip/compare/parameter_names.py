"""The names of parameters in two recorded runs, and the file of --map."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Set
from pathlib import Path

from .._kit import atomic_files
from .._kit.atomic_files import FileError
from .._kit.parse import tomllib
from ..recording.runs import RunError

MOST_NEAR = 3

Names = Mapping[str, str]
"""{name of a parameter in one run: its name in the other run}."""

Side = tuple[object, Set[str]]
"""(what to call a run, its parameters)."""

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


def oriented(names: Names, a: Side, b: Side) -> Names:
    """Return the names of --map from `a` to `b`. Its lines can begin with the names of either run."""
    in_a, in_b = a[1], b[1]
    both = (names, {other: name for name, other in names.items()})
    found = next((each for each in both if in_a >= each.keys() and in_b >= {*each.values()}), None)
    if found is not None:
        return found
    unknown = [
        [(run, name, known) for (run, known), each in zip(order, (names, names.values()), strict=True)
         for name in each if name not in known]
        for order in ((a, b), (b, a))
    ]  # fmt: skip
    run, name, known = min(unknown, key=len)[0]
    near = difflib.get_close_matches(name, known, MOST_NEAR) or sorted(known)[:MOST_NEAR]
    remedy = f"This run has parameters such as {', '.join(near)}. Correct the name."
    if not known:
        remedy = "This run has no norms of parameters. Record this run with --norms, or with norms=True in Python."
    elif name in {*in_a, *in_b}:
        remedy = (
            "The other run has this parameter. On every line, write the name from one run on the left, and the name "
            "from the other run on the right."
        )
    raise RunError(f"--map has {name!r}, which is not a parameter of {run}. {remedy}", "UC503")
