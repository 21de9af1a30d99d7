"""The times and the memory that `unified-clip bench` measures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from unified_clip.bench import measure
from unified_clip.bench.measure import LEAST, MOST, WARM_UP, Pair


class Result:
    """It takes 1 ms to free."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake

    def __del__(self) -> None:
        self.fake.now += 0.001


class Fake:
    def __init__(self, **costs: Iterator[float]) -> None:
        self.costs, self.now = costs, 0.0
        self.called: list[str] = []

    def clock(self) -> float:
        return self.now

    def call(self, name: str) -> Callable[..., Result | None]:
        def act(given: Any = None) -> Result | None:
            self.called.append(name)
            self.now += next(self.costs[name])
            return None if name == "prepare" else Result(self)

        return act


def always(value: float) -> Iterator[float]:
    while True:
        yield value


def compared(seconds: float, **costs: Iterator[float]) -> tuple[dict[str, Any], list[str]]:
    fake = Fake(prepare=always(0.5), **costs)
    native = fake.call("native") if "native" in costs else None
    pair = Pair("name", fake.call("prepare"), fake.call("unified"), native)
    return measure.compare(pair, seconds, fake.clock), fake.called


def test_calls_take_turns_after_warming_up_and_what_prepares_or_is_freed_is_not_timed() -> None:
    times, called = compared(0, unified=always(0.002), native=always(0.003))
    assert called[::2] == ["prepare"] * (2 * (WARM_UP + LEAST))
    assert (
        called[1::2]
        == ["unified", "native"] * WARM_UP + (["unified", "native", "native", "unified"] * LEAST)[: 2 * LEAST]
    )
    assert times == {
        **{"native": "name", "repeats": LEAST},
        **{"ours_ms": [2.0] * 3, "native_ms": [3.0] * 3, "ratio": [1.5] * 3},
    }


@pytest.mark.parametrize(("seconds", "repeats"), [(0, LEAST), (20, 20), (1e9, MOST)])
def test_a_pair_is_repeated_for_as_long_as_it_may_take(seconds: float, repeats: int) -> None:
    times, _ = compared(seconds, unified=always(0.25), native=always(0.25))  # and twice half a second to prepare
    assert times["repeats"] == pytest.approx(repeats, abs=repeats // 3 if seconds == 20 else 0)


def test_without_a_native_function_unified_clip_is_measured_alone() -> None:
    times, called = compared(0, unified=always(0.002))
    assert called[1::2] == ["unified"] * (WARM_UP + LEAST)
    assert (times["ours_ms"], times["native_ms"], times["ratio"]) == ([2.0] * 3, None, None)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports this value")
def test_extra_memory_is_what_a_call_takes_and_gives_back() -> None:
    size = 200 << 20

    def takes(given: Any) -> None:
        np.ones(size, np.uint8)

    growth = measure.extra_memory(takes, None)
    assert growth == pytest.approx(size, rel=0.05)
    assert measure.extra_memory(lambda given: None, None) < size // 20  # type: ignore[operator]
