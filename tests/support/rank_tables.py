"""Read the table in an error message about ranks."""

from __future__ import annotations

import re

ROW = re.compile(r"^ {2,}(\S.*?) {2,}ranks? ([\d, ]*\d)( and others)?(?: \((.*?)\))? {2,}(\S.*)$", re.MULTILINE)


def rows_of(message: str) -> dict[str, dict[int, str]]:
    """Return the table of an error message: {name of a value: {rank: value}}."""
    rows: dict[str, dict[int, str]] = {}
    for name, ranks, _, _, value in ROW.findall(message):
        for rank in ranks.split(", "):
            rows.setdefault(name, {})[int(rank)] = value
    assert rows, f"no table: {message}"
    assert "No gradient was changed." in message
    return rows


def ranks_by_value(message: str, name: str) -> list[list[int]]:
    """Return the ranks in each row for the value `name`."""
    ranks: dict[str, list[int]] = {}
    for rank, value in rows_of(message)[name].items():
        ranks.setdefault(value, []).append(rank)
    return list(ranks.values())


def check_differs(message: str, name: str, *values: str) -> None:
    """Check that a table has different values for rank 0 and rank 1.

    name, values: Regular expressions. `values` are those of rank 0 and rank 1, or only that of rank 0.
    """
    (row,) = [row for key, row in rows_of(message).items() if re.search(f"^{name}", key)]
    assert row[0] != row[1], message
    for rank, value in enumerate(values):
        assert re.search(value, row[rank]), f"rank {rank}: {message}"
