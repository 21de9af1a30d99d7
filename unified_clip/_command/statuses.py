"""The exit statuses of all commands. `unified-clip help exit-status` and docs/cli.md print this table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SUCCESS = 0
DIFFERENT = 1
REJECTED = 2

INCOMPLETE = 3
BROKEN = 70
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""A shell returns 126 for a command that is not executable, and 127 for a command that does not exist."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""

UNREAD = 141
"""Exit status after SIGPIPE, as in shells: for example, `head` has closed the pipe."""

GENERAL = {
    SUCCESS: "success: nothing differs, and nothing is left to do",
    DIFFERENT: "the command finished, and reports a difference or something left to do",
    REJECTED: "the command, an option or a file is invalid, an extra is not installed, or the output cannot be written",
    INCOMPLETE: "the result is incomplete: a process crashed or hung, or a framework is missing",
    BROKEN: "unified-clip has a bug. Report the bug with the traceback",
    NOT_EXECUTABLE: "`record` only: the training command is not executable",
    NOT_FOUND: "`record` only: the training command does not exist",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or SIGHUP. No report is written",
    UNREAD: "a program that reads the output, such as `head`, ended too early",
}
"""{exit status: its meaning in all commands}."""

INVALID = "the command or a file is invalid"

COMMANDS: Mapping[str, Mapping[int, str]] = {
    "parity": {
        SUCCESS: "all results are as the suite expects",
        DIFFERENT: "a result of unified_clip is wrong or differs between frameworks. Or a tested function has a "
        "difference that the suite does not list. Or a difference that the suite lists no longer occurs",
        REJECTED: "the suite or the command is invalid, or the report cannot be written",
        INCOMPLETE: "a framework is missing, crashed or hung, or a function has no result or is not tested",
    },
    "parity init": {
        SUCCESS: "the suite was written",
        REJECTED: "the command or a gradient file is invalid, or the suite cannot be written",
    },
    "record": {
        SUCCESS: "the training command succeeded. If the command fails, `record` returns the status of the command",
        DIFFERENT: "with --check: the run clips otherwise than the clip configuration",
        REJECTED: "FILE exists or cannot be written",
        NOT_EXECUTABLE: "the training command is not executable",
        NOT_FOUND: "the training command does not exist",
    },
    "compare": {SUCCESS: "the runs are the same", DIFFERENT: "the runs differ", REJECTED: INVALID},
    "bench": {
        SUCCESS: "everything was measured",
        REJECTED: "the command is invalid, or the report cannot be written",
        INCOMPLETE: "a framework crashed, a framework in --frameworks is missing, or nothing was measured",
    },
    "explain": {
        SUCCESS: "the configurations were explained, even if they differ",
        REJECTED: INVALID,
    },
    "config import": {
        SUCCESS: "the configuration was converted",
        REJECTED: "the command or the file is invalid, or the clip configuration cannot be written",
    },
    "config export": {
        SUCCESS: "the configuration was converted",
        REJECTED: "the command or the file is invalid, the format does not support a setting, or the trainer's "
        "configuration cannot be written",
    },
    "config check": {
        SUCCESS: "every clip has the settings of the configuration",
        DIFFERENT: "a clip differs from the configuration, is missing or cannot be read, or an entry of the key "
        "`check` has no effect",
        REJECTED: "the command or the configuration is invalid",
    },
    "port": {
        SUCCESS: "every clip was rewritten. Without --write: every clip can be rewritten. With --check: no clip is "
        "left to port",
        DIFFERENT: "a clip was flagged, a file was not read, or --check found a clip to port",
        REJECTED: "the command is invalid, there is no Python file, or a file cannot be changed",
    },
    "verify": {
        SUCCESS: "the steps are the same, or differ by at most --max-ulp",
        DIFFERENT: "the steps differ",
        REJECTED: "the command, a file or a function is invalid, or one side has no recorded clip call",
        INCOMPLETE: "a process crashed or hung",
    },
    "help": {SUCCESS: "success", REJECTED: "there is no such topic"},
    "completion": {SUCCESS: "success", REJECTED: "the command is invalid, or shtab is not installed"},
}
"""{command: {exit status: meaning}}. BROKEN, INTERRUPTED and UNREAD apply to all commands."""


def lines(meanings: Mapping[int, str]) -> Iterable[str]:
    return (f"  {status:<3}  {meaning}" for status, meaning in meanings.items())
