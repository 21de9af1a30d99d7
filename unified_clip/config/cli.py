"""`unified-clip config import` and `unified-clip config export`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .._display import complain, safe

DONE, REFUSED = 0, 2


def add_parsers(commands: Any) -> None:
    """Tell the command line of `unified-clip config`. Nothing else is imported before it runs."""
    config = commands.add_parser(
        "config",
        help="read a trainer's own clip settings, or write them",
        description="Exit status: 0 done; 2 a file or the command is wrong, or the format does not support it.",
    )
    each = config.add_subparsers(required=True, metavar="import|export")
    into = each.add_parser("import", help="a trainer's configuration to a clip configuration")
    into.add_argument("file", type=Path, help="the trainer's configuration")
    into.add_argument(
        "--from", dest="format", metavar="FORMAT[@VERSION]", help="what it is of (default: told by the file)"
    )
    into.add_argument("--out", type=Path, help="a .toml, .yaml or .json to write (default: TOML to standard output)")
    into.set_defaults(run=_import)
    out = each.add_parser("export", help="a clip configuration to a trainer's configuration, on standard output")
    out.add_argument("clip", type=Path, help="the clip configuration, or a trainer's")
    out.add_argument("--to", required=True, metavar="FORMAT[@VERSION]", help="what to write (default: newest version)")
    out.set_defaults(run=_export)


def _import(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from .clip_config import ClipConfig

    try:
        config = ClipConfig.import_from(options.file, options.format)
        _say(config)
        if options.out and options.out.exists() and options.out.samefile(options.file):
            raise ConfigError(f"{options.out} is the file to import; name another with --out")
        if options.out:
            config.save(options.out)
        else:
            print(config.dumps(), end="")
    except ConfigError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{options.out} cannot be written: {error.strerror}")
    return DONE


def _export(options: argparse.Namespace) -> int:
    from ..errors import ConfigError
    from .clip_config import ClipConfig
    from .formats import convert
    from .schema import DEFAULT_FAMILY, FAMILIES

    try:
        config = ClipConfig.import_from(options.clip)
        text = convert.write(config, options.to)
    except ConfigError as error:
        return _refuse(str(error))
    _say(config)
    if config.uses_default_family and options.to.partition("@")[0] != convert.OURS:
        default = f"{DEFAULT_FAMILY!r} (eps = {FAMILIES[DEFAULT_FAMILY, 'global_norm'].eps:g})"
        _note(
            f"{options.clip.name} sets no family. Exported with the default, {default}. Set family to choose another."
        )
    print(text, end="")
    return DONE


def _say(config: Any) -> None:
    for note in config.provenance.notes if config.provenance else ():
        _note(note)


def _note(text: str) -> None:
    print(f"note: {safe(text)}", file=sys.stderr)


def _refuse(message: str) -> int:
    complain(message)
    return REFUSED
