"""Constants in Python source, as `port` and the formats of configurations read them."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from unified_clip._kit.static_values import UnknownValueError, evaluate

NAMES = {"limit": 0.5, "text": "2.5"}
IMPORTS = {"np.inf": "numpy.inf"}


def value(code: str) -> Any:
    def value_of(name: ast.expr) -> Any:
        if ast.unparse(name) not in NAMES:
            raise UnknownValueError(name)
        return NAMES[ast.unparse(name)]

    node = ast.parse(code, mode="eval").body
    return evaluate(node, value_of, lambda name: IMPORTS.get(ast.unparse(name), ""))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1", 1),
        ("-1.5", -1.5),
        ("--1", 1),
        ("'a'", "a"),
        ("None", None),
        ("limit", 0.5),
        ("-limit", -0.5),
        ("np.inf", float("inf")),
        ("-np.inf", -float("inf")),
        ("float('inf')", float("inf")),
        ("float('-Infinity')", -float("inf")),
        ("float('1e3')", 1000.0),
        ("float(text)", 2.5),
        ("float(limit)", 0.5),
        ("+1", 1),
        ("1.0 / 4", 0.25),
        ("limit * 2 - 1 + 0.5", 0.5),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("10 ** -2", 0.01),
        ("2 * float('inf')", float("inf")),
        ("float(1 / limit)", 2.0),
        ("(0, [1, -limit])", [0, [1, -0.5]]),
    ],
)
def test_constants_have_a_value(code: str, expected: object) -> None:
    assert value(code) == expected


@pytest.mark.parametrize(
    ("code", "unknown"),
    [
        ("args.clip", "args.clip"),
        ("-args.clip", "args.clip"),
        ("float(args.clip)", "args.clip"),
        ("float('a lot')", "float('a lot')"),
        ("-'a'", "-'a'"),
        ("-True", "-True"),
        ("+'a'", "+'a'"),
        ("1 / args.clip", "args.clip"),
        ("1 / 0", "1 / 0"),
        ("1 + True", "1 + True"),
        ("'a' * 1000000000", "'a' * 1000000000"),
        ("2 ** 10 ** 9", "2 ** 10 ** 9"),
        ("10.0 ** 400", "10.0 ** 400"),
        ("10 ** 399 * 10", "10 ** 399 * 10"),
        ("(-8) ** 0.5", "(-8) ** 0.5"),
        ("1 << 3", "1 << 3"),
        ("f(1)", "f(1)"),
        ("float(1, 2)", "float(1, 2)"),
        ("math.inf", "math.inf"),
    ],
)
def test_what_only_running_can_tell_is_named(code: str, unknown: str) -> None:
    with pytest.raises(UnknownValueError) as caught:
        value(code)
    assert str(caught.value) == unknown
