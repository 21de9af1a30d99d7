"""Run a command for the Makefile, and print a line when it starts, one every 20 seconds, and one with its result.

The output of the command follows only if the command fails, or if pytest reports more than its progress. With `--show`,
the command prints directly. The Makefile runs this file before it installs anything.
"""

from __future__ import annotations

import argparse
import fcntl
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

EVERY = 20.0
PROGRESS = re.compile(r"[.,sxXFER]* +\[ *(\d+%)\]$")
TOTALS = re.compile(r"[= ]*((?:\d+ [a-z]+(?:, )?)+ in [\d.]+s\b[^=]*?)[= ]*$")
"""The last line of pytest, such as "3 passed, 1 skipped in 0.52s"."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--show", action="store_true", help="the command prints directly")
    parser.add_argument("name")
    parser.add_argument("note", help="what the command does, for the first line")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    say(f"== {options.name}: {options.note}")
    start, lines = time.monotonic(), list[str]()
    try:
        output = {} if options.show else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(options.command, text=True, errors="replace", **output)
    except OSError as error:
        say(f"== {options.name}: FAILED, {error}")
        return 127
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the command, too
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    reader = threading.Thread(target=lambda: lines.extend(line.rstrip("\n") for line in process.stdout or ()))
    reader.start()
    has_bars = options.show and sys.stderr.isatty()
    while True:
        try:
            status = process.wait(EVERY)
            break
        except subprocess.TimeoutExpired:
            if not has_bars:
                say(f"   {options.name}: {percent(lines)}{duration(time.monotonic() - start)}")
    reader.join(EVERY)  # a process that the command left behind may hold its output
    say("\n".join(report(options.name, lines, status, time.monotonic() - start)))
    return status if status >= 0 else 128 - status


def report(name: str, lines: list[str], status: int, seconds: float) -> list[str]:
    """Return the output of interest, and the line with the result."""
    totals = [match[1] for line in lines[-1:] if (match := TOTALS.match(line))]
    time_only = f"{'FAILED' if status else 'passed'} in {duration(seconds)}"
    result = f"{'FAILED, ' if status else ''}{totals[0]}" if totals else time_only
    output = [line for line in lines[: -len(totals) or None] if not PROGRESS.match(line)]
    if not status:
        first = next((number for number, line in enumerate(output) if line.startswith("====")), len(output))
        output = output[first:]
    return [*output, f"== {name}: {result}"]


def percent(lines: list[str]) -> str:
    match = PROGRESS.match(lines[-1]) if lines else None
    return f"{match[1]} after " if match else ""


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def say(text: str) -> None:
    """Print lines. Commands that run at the same time do not mix them."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
