"""Measure `import unified_clip`, an empty program and `import numpy`, in turns, in new processes.

Usage: python benchmarks/import_time.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

PROGRAMS = {"nothing": "pass", "unified_clip": "import unified_clip", "numpy": "import numpy"}


def seconds(program: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - start


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    spent: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            spent[name].append(seconds(program))
    nothing = statistics.median(spent["nothing"])
    for name, times in spent.items():
        median, least, most = (1000 * f(times) for f in (statistics.median, min, max))
        over = median - 1000 * nothing
        print(f"{name:13} {median:6.0f} ms (from {least:.0f} to {most:.0f}), {over:4.0f} ms over nothing")


if __name__ == "__main__":
    main()
