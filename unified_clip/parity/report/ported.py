"""Words of a report of ported code, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...config.explain import describe

Data = Mapping[str, Any]


def outcome(worked: Data) -> str:
    """Return the outcome for some gradients in a few words."""
    if worked["norm_clipped"] is None or worked["outcome"] == "unchanged":
        return str(worked["outcome"])
    return f"the norm of all becomes {_number(worked['norm_clipped'])}"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else describe.measured(value)


def notes(clip: Data) -> Iterator[tuple[str, list[int]]]:
    """Yield functions with known differences, and the numbers of those."""
    name, measured = clip["name"], clip["measured_as"]
    if clip["known"]:
        is_other = name.rpartition(".")[2] != measured.rpartition(".")[2]
        yield f"{name}, measured as {measured}," if is_other else name, clip["known"]
    if clip["becomes_known"]:
        yield clip["becomes"], clip["becomes_known"]


def spans(numbers: Sequence[int]) -> list[str]:
    """Return 1, 2, 3 and 7 as '1-3' and '7'."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def legend(data: Data) -> str:
    """Return the legend for the sizes of known differences."""
    return (
        "Sizes are relative: of the norm, or of the greatest difference of an element to the greatest element that is "
        f"right. What differs by less than {data['rounding']:g} is rounding, and not listed."
    )


def whose(known: Data) -> str:
    """Return the functions that a known difference is about."""
    return f"all of {known['framework']}'s" if known["function"] == "*" else str(known["function"])
