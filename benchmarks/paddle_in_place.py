"""Measure clips in static programs of Paddle that write to the memory of the gradients:

    OMP_NUM_THREADS=2 FLAGS_paddle_num_threads=2 python benchmarks/paddle_in_place.py [LIST ...]

Each program copies all parameters, uses the copies as gradients, and applies SGD. One program clips by unified_clip,
one by Paddle, and one not at all. The time of a clip is the time of its program, less the median time without a clip.
Each line has the ratio unified_clip / Paddle of the medians, and in parentheses the quartiles of the ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle

import unified_clip.paddle as uc
from unified_clip.bench.lists import LISTS, Shape

SECONDS = 20.0
LEAST, MOST = 11, 300
"""The limits for the number of turns on a list."""

Run = Callable[[], Any]


def program(shapes: Sequence[Shape], clip: Any) -> Run:
    """Return a function that runs one step: copy the parameters, clip the copies, and apply SGD."""
    main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
    executor = paddle.static.Executor(paddle.CPUPlace())
    normal = paddle.nn.initializer.Normal(0.0, 1e-3)
    with paddle.static.program_guard(main, startup):
        parameters = [
            paddle.static.create_parameter(shape, "float32", attr=paddle.ParamAttr(f"parameter{i}", normal))
            for i, shape in enumerate(shapes)
        ]
        optimizer = paddle.optimizer.SGD(1e-12, parameters=parameters, grad_clip=clip)
        optimizer.apply_gradients([(parameter, paddle.assign(parameter)) for parameter in parameters])
    executor.run(startup, scope=scope)
    return lambda: executor.run(main, scope=scope)


def times(runs: Sequence[Run]) -> list[tuple[list[float], list[float]]]:
    """Return, for each function, (processor seconds, wall seconds) of all turns."""
    for run in runs:
        run(), run()
    durations: list[tuple[list[float], list[float]]] = [([], []) for _ in runs]
    end = time.perf_counter() + SECONDS
    for turn in range(MOST):
        if turn >= LEAST and time.perf_counter() > end:
            break
        order = range(len(runs)) if turn % 2 else reversed(range(len(runs)))
        for index in order:
            begin = time.process_time(), time.perf_counter()
            runs[index]()
            for values, clock, start in zip(
                durations[index], (time.process_time, time.perf_counter), begin, strict=True
            ):
                values.append(clock() - start)
    return durations


def ratio_text(bare: list[float], unified: list[float], native: list[float]) -> str:
    """Return the ratio of the medians, and the quartiles of the ratios."""
    median = statistics.median(bare)
    ratio = (statistics.median(unified) - median) / (statistics.median(native) - median)
    ratios = [(a - median) / (b - median) for a, b in zip(unified, native, strict=True) if b > median]
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    names = sys.argv[1:] or list(LISTS)
    if unknown := [name for name in names if name not in LISTS]:
        sys.exit(f"No list is called {unknown[0]!r}. Choose from {', '.join(LISTS)}.")
    paddle.enable_static()
    print("| list | clipped | turns | processor time | wall time |")
    print("|---|---|---|---|---|")
    for name in names:
        shapes = LISTS[name]
        norm = 1e-3 * float(np.sqrt(sum(np.prod(shape) for shape in shapes)))
        for is_clipped, threshold in ((False, 2 * norm), (True, norm / 2)):
            clips = None, uc.ClipGradByGlobalNorm(threshold), paddle.nn.ClipGradByGlobalNorm(threshold)
            durations = times([program(shapes, clip) for clip in clips])
            cells = [name, "yes" if is_clipped else "no", str(len(durations[0][0]))]
            cells += [ratio_text(*(seconds[clock] for seconds in durations)) for clock in (0, 1)]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
