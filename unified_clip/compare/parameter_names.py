"""The names of parameters in two recorded runs, and the file of --map."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .._core.names import without_indices
from .._kit import atomic_files
from .._kit.atomic_files import FileError
from .._kit.parse import tomllib
from ..recorder.lines import canonical
from ..recording.recorded_run import RecordedRun
from ..recording.runs import RunError

MOST_NEAR = 3

Names = Mapping[str, str]
"""{name of a parameter in one run: its name in the other run}."""

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


def _names_in(run: RecordedRun) -> Iterator[str]:
    for line in run.lines:
        yield from line.parameters
    for step in run.optimizer_steps:
        yield from step.parameters


def names_from_a_to_b(a: RecordedRun, b: RecordedRun, names: Names) -> Names:
    in_a, in_b = (dict.fromkeys(_names_in(run)) for run in (a, b))
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
