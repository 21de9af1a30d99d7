"""The command `unified-clip` with its subcommands, such as `unified-clip parity` and `unified-clip port`."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from ._command import (
    BROKEN,
    INTERRUPTED,
    UNREAD,
    CodedError,
    Parser,
    UsageError,
    describe_exit_statuses,
    reject,
    subcommands,
)
from ._command import completion as completion_command
from ._command import help as help_command
from ._kit import atomic_files, install
from ._kit.display import flush_or_discard, print_error
from .bench import cli as bench_command
from .check import cli as check_command
from .compare import cli as compare_command
from .config import cli as config_commands
from .config.explain import cli as explain_command
from .parity import cli as parity_command
from .port import cli as port_command
from .recording import cli as record_command
from .verify import cli as verify_command

BUG = "UC901"

CLI = ("jinja2", "ml_dtypes", "packaging", "pydantic", "rich", "tomlkit", "yaml")
EXTRAS = {
    "parity": ("cli", CLI),
    "record": ("cli", ()),
    "compare": ("cli", CLI),
    "bench": ("cli", CLI),
    "explain": ("cli", CLI),
    "port": ("cli", CLI),
    "verify": ("cli", CLI),
    "help": ("cli", ()),
    "completion": ("cli", (*CLI, "shtab")),
    "config": ("config", ("packaging", "pydantic", "tomlkit", "yaml")),
    "config check": ("cli", CLI),
}
"""{command: (the extra that the command needs, the modules of the extra)}."""


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        try:
            return _run(arguments)
        except CodedError as error:
            return reject(error)
        finally:
            if sys.stdout is not None:  # None where the shell closed it
                sys.stdout.flush()  # now, because errors at the exit of Python have no message
    except KeyboardInterrupt:
        print("unified-clip: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return _end_unread()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich exits with status 1, which means a difference
            return _end_unread()
        raise
    except OSError as error:
        flush_or_discard()
        if error.filename is None:  # `print` and temporary files name no file
            return reject(atomic_files.unwritable("Standard output or a temporary file", error))
        return reject(atomic_files.failure(error, error.filename, "is not accessible"))
    except Exception:  # Python would exit with status 1, which means a difference
        traceback.print_exc()
        print_error("This is a bug of unified-clip. Report it with the lines above.", BUG)
        return BROKEN


def _run(arguments: Sequence[str] | None) -> int:
    own, command_line = record_command.split(sys.argv[1:] if arguments is None else arguments)
    options, unknown = _parser().parse_known_args(own)
    if unknown:
        options.parser.error(f"unrecognized arguments: {shlex.join(unknown)}")
    options.command_line = command_line
    action = f"{options.command} {options.action}" if options.command == "config" else options.command
    reads_as_check = getattr(options, "check", None) or getattr(options, "key", None)
    action = "config check" if reads_as_check else action
    if lacking := not_installed(action if action in EXTRAS else options.command):
        raise UsageError(lacking, "UC204")
    _end_in_order()
    status: int = options.run(options)
    return status


def _end_unread() -> int:
    flush_or_discard()
    return UNREAD


def not_installed(command: str) -> str:
    """Return an error message if packages that the command needs are missing, and '' otherwise."""
    extra, modules = EXTRAS[command]
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return (
        f"not installed: {', '.join(missing)}. Install the extra `{extra}`: {install.command(extra)}" if missing else ""
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="unified-clip", description="Gradient clipping, the same on every framework.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions of unified_clip and frameworks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    # Each command's `run` imports its modules, and returns the exit status.
    parity_command.add_parser(commands)
    check_command.add_run_check(record_command.add_parser(commands))
    compare_command.add_parser(commands)
    bench_command.add_parser(commands)
    explain_command.add_parser(commands, _read_key)
    check_command.add_parser(config_commands.add_parsers(commands, _read_key))
    port_command.add_parser(commands)
    verify_command.add_parser(commands)
    completion_command.add_parser(commands, _parser, _format_names)
    help_command.add_parser(commands, parser)
    describe_exit_statuses(parser)
    for _, command in subcommands(parser):
        command.set_defaults(parser=command, root=parser)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from . import _versions

        print("\n".join(_versions.lines()))
        raise SystemExit(0)


def _read_key(*declared: Any) -> Any:
    """Read a declared key, for the modules of `config`, which must not import `check`."""
    from .check.rules import settings

    return settings.imported(*declared)


def _format_names() -> Iterable[str]:
    from .config.formats import FORMATS

    return FORMATS


def _end_in_order() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, to end worker processes and to remove temporary directories."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP: leave it ignored
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
