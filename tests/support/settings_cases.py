"""What `set_gradient_clip` sets for which parameters, and the results, in static programs and elsewhere."""

from __future__ import annotations

from typing import Any

NORM, GLOBAL, VALUE = "GradientClipByNorm", "GradientClipByGlobalNorm", "GradientClipByValue"
TWO, THREE = {"a": 3.0, "b": 4.0}, {"a": 3.0, "b": 4.0, "c": 5.0}
OWN: list[tuple[Any, list[str] | None]] = [((VALUE, 0.5), ["b"]), ((NORM, 2.0), None)]

CASES: dict[str, tuple[dict[str, float], list[tuple[Any, list[str] | None]], list[float]]] = {
    "nothing is set": (TWO, [], [3.0, 4.0]),
    "the norm of each": (TWO, [((NORM, 2.0), None)], [2.0, 2.0]),
    "by value": (TWO, [((VALUE, 0.5), None)], [0.5, 0.5]),
    "the norm of all": (TWO, [((GLOBAL, 1.0), None)], [0.6, 0.8]),
    "a parameter's own clip wins": (THREE, OWN, [2.0, 0.5, 2.0]),
    "also if it is set first": (THREE, OWN[::-1], [2.0, 0.5, 2.0]),
    "None removes its own": (TWO, [((NORM, 1.0), ["a"]), ((NORM, 2.0), None), (None, ["a"])], [2.0, 2.0]),
    "None removes the default": (TWO, [((NORM, 2.0), None), (None, None)], [3.0, 4.0]),
    "groups are by name and threshold": (
        {"a": 3.0, "b": 4.0, "c": 5.0, "d": 12.0, "e": 8.0},
        [
            ((GLOBAL, 1.0, "one"), ["a"]), ((GLOBAL, 1.0, "one"), ["b"]),
            ((GLOBAL, 1.0, "two"), ["c", "d"]), ((GLOBAL, 2.0, "one"), ["e"]),
        ],
        [0.6, 0.8, round(5 / 13, 6), round(12 / 13, 6), 2.0],
    ),
    "one needs no clip": (THREE, [((GLOBAL, 1.0), None)], [0.6, 0.8, 5.0]),
}  # fmt: skip
"""Gradients of parameters, what is set for which of them, and the results."""


def clip_of(namespace: Any, setting: Any) -> Any:
    return None if setting is None else getattr(namespace, setting[0])(*setting[1:])
