"""Commands on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

VARIABLES = ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS", "LINES")


def on_a_terminal(command: Sequence[str], directory: Path, **settings: str) -> tuple[int, str]:
    """Return (exit status, output) of a command whose streams are all one terminal.

    settings: Environment variables. Without any, it is an xterm with colours.
    """
    main, terminal = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= {"TERM": "xterm", **settings}
    with subprocess.Popen(
        command, cwd=directory, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        printed = b""
        with suppress(OSError):  # the end of a terminal
            while part := os.read(main, 10_000):
                printed += part
    os.close(main)
    return process.returncode, printed.decode().replace("\r\n", "\n")
