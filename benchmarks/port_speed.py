"""How long `unified-clip port` takes for whole packages, and what it finds in them. Nothing is changed.

    python benchmarks/port_speed.py [--to drop-in] [PACKAGE ...]

The default is the sources of the frameworks that are installed. A package is found, and not imported.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections import Counter
from pathlib import Path

from unified_clip.port import source_files

PACKAGES = ("torch", "tensorflow", "paddle", "keras", "optax")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", choices=("torch", "drop-in"), default="torch")
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    options = parser.parse_args()
    total, seconds = 0, 0.0
    for name in options.packages:
        paths = source_files.sources(source_of(name))
        begin = time.perf_counter()
        ported, unread = source_files.port_all(paths, options.to)
        took = time.perf_counter() - begin
        verdicts = Counter(site.verdict for each in ported for site in each.sites)
        counts = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in ("rewritten", "flagged", "left"))
        print(f"{name}: {len(paths)} files, {counts}, {len(unread)} unread, {took:.1f} s", flush=True)
        total, seconds = total + len(paths), seconds + took
    print(f"{total} files in {seconds:.1f} s: {seconds / total * 5000:.1f} s for 5000")


def source_of(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed")
    return Path(spec.origin).parent


if __name__ == "__main__":
    main()
