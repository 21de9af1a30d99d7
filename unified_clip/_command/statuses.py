"""The exit statuses of all commands. `unified-clip help exit-status` and docs/cli.md print this table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SUCCESS = 0
DIFFERENT = 1
REJECTED = 2
"""Exit status for an invalid command or file."""

INCOMPLETE = 3
BROKEN = 70
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses of a shell for a command that it cannot start."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells report it."""

UNREAD = 141
"""128 + SIGPIPE: the exit status that shells report for a program whose output is no longer read, as in `| head`."""

GENERAL = {
    SUCCESS: "success: nothing differs, and nothing is left to do",
    DIFFERENT: "the command did its work, and reports a difference or something left to do",
    REJECTED: "the command, an option or a file is invalid, an extra is not installed, or the output cannot be written",
    INCOMPLETE: "the result is incomplete: a process crashed or hung, or a framework is missing",
    BROKEN: "a bug of unified-clip. Report it with the traceback",
    NOT_EXECUTABLE: "`record` only: the training command is not executable",
    NOT_FOUND: "`record` only: the training command does not exist",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or SIGHUP. No report is written",
    UNREAD: "the output was not read to its end, as in `unified-clip ... | head`",
}
"""What an exit status means in every command."""

INVALID = "the command or a file is invalid"

COMMANDS: Mapping[str, Mapping[int, str]] = {
    "parity": {
        SUCCESS: "everything is as the suite expects, or with --baseline nothing got worse",
        DIFFERENT: "unified_clip differs from exact arithmetic or between frameworks, another difference is not in the "
        "list of known differences, or the list has a difference that is gone. With --baseline: a difference is new or "
        "larger",
        REJECTED: "the suite or the command is invalid, or the report cannot be written",
        INCOMPLETE: "a framework is missing, crashed, hung or ran out of memory, or nothing was compared",
    },
    "parity init": {
        SUCCESS: "the suite was written",
        REJECTED: "the command or a gradient file is invalid, or the suite cannot be written",
    },
    "record": {
        SUCCESS: "the training command succeeded. If it fails, its exit status is passed on",
        REJECTED: "FILE exists or cannot be written",
        NOT_EXECUTABLE: "the training command is not executable",
        NOT_FOUND: "the training command does not exist",
    },
    "compare": {SUCCESS: "the runs are the same", DIFFERENT: "the runs differ", REJECTED: INVALID},
    "bench": {
        SUCCESS: "everything was measured",
        REJECTED: "the command is invalid, or the report cannot be written",
        INCOMPLETE: "a framework crashed, one that you named is missing, or nothing was measured",
    },
    "explain": {SUCCESS: "success, even if A and B differ", REJECTED: INVALID},
    "config import": {
        SUCCESS: "the configuration was converted",
        REJECTED: "the command or the file is invalid, or the clip configuration cannot be written",
    },
    "config export": {
        SUCCESS: "the configuration was converted",
        REJECTED: "the command or the file is invalid, or the format does not support a setting",
    },
    "config check": {
        SUCCESS: "every clip clips as the configuration does",
        DIFFERENT: "a clip differs, is missing or cannot be understood, or a rule of the table `check` has no effect",
        REJECTED: "the command or the configuration is invalid",
    },
    "port": {
        SUCCESS: "every clip was rewritten, or can be if --write is missing. With --check: no clip is left to port",
        DIFFERENT: "clips were flagged, or files could not be read, or with --check a clip is left to port",
        REJECTED: "the command is invalid or cannot be carried out",
    },
    "verify": {
        SUCCESS: "the steps are the same, up to --max-ulp",
        DIFFERENT: "the steps differ",
        REJECTED: "a file, a function or the command is invalid, or no clip call of one side was recorded",
        INCOMPLETE: "a process crashed or hung. The error has the signal and the last lines of its output",
    },
    "help": {SUCCESS: "success", REJECTED: "there is no such topic"},
    "completion": {SUCCESS: "success", REJECTED: "the command is invalid, or shtab is not installed"},
}
"""What the exit statuses of each command mean. Every command has an entry. BROKEN, INTERRUPTED and UNREAD apply to
all."""


def lines(meanings: Mapping[int, str]) -> Iterable[str]:
    """Yield a line for each exit status of a command, for its help."""
    return (f"  {status:<3}  {meaning}" for status, meaning in meanings.items())
