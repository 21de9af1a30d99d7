"""The commands `unified-clip config import` and `unified-clip config export`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._command import UsageError, write_new
from .._command.mode_options import check_modes
from .._kit.display import safe

if TYPE_CHECKING:
    from .clip_config import ClipConfig

ReadKey = Callable[[Path, str, str, Sequence[str], str | None], "ClipConfig"]
"""Reads a key of the user's own code, as an entry of `check.key` declares it."""


def add_key_options(parser: argparse.ArgumentParser, file: str, read_key: ReadKey) -> None:
    options = parser.add_argument_group(f"{file}: a key that your own code reads, as an entry of check.key declares it")
    options.add_argument("--key", metavar="NAME", help="the last names of the key, such as optim.grad_clip")
    options.add_argument("--rule", choices=("value", "norm", "global_norm"), help="the rule by which your code clips")
    options.add_argument("--off", action="append", metavar="VALUE", help="a value with which your code does not clip")
    options.add_argument(
        "--family",
        choices=("pytorch", "tensorflow", "paddle"),
        help="the family of the framework's function that your code calls (default: pytorch)",
    )
    parser.set_defaults(read_key=read_key)


def imported(options: argparse.Namespace, path: Path, format_: str | None) -> ClipConfig:
    """Return the clip in a file: of the declared key, or of a trainer."""
    from .clip_config import ClipConfig
    from .formats.base import naming_advice

    check_modes(options, {"--key": ("rule", "off", "family")}, "--key" if options.key else "")
    if options.key and format_:
        raise UsageError("--key and --from do not apply to the same file. Remove one of them.")
    if options.key and options.rule is None:
        raise UsageError("--key needs the rule by which your code clips. Add --rule, such as --rule global_norm.")
    if options.key:
        key_config: ClipConfig = options.read_key(path, options.key, options.rule, options.off or (), options.family)
        return key_config
    with naming_advice("pass --from {}"):
        return ClipConfig.import_from(path, format_)


def add_parsers(commands: Any, read_key: ReadKey) -> Any:
    config = commands.add_parser(
        "config",
        help="import, export or check clip settings of trainers",
    )
    actions = config.add_subparsers(required=True, metavar="COMMAND", dest="action")
    import_ = actions.add_parser("import", help="convert a trainer's configuration to a clip configuration")
    import_.add_argument("file", type=Path, metavar="FILE", help="the trainer's configuration")
    import_.add_argument(
        "--from",
        dest="format",
        metavar="NAME[@VERSION]",
        help="the format of the file, such as deepspeed (default: inferred from the file)",
    )
    import_.add_argument(
        "--out", type=Path, metavar="FILE", help="the new .toml, .yaml or .json file to write (default: print TOML)"
    )
    add_key_options(import_, "FILE", read_key)
    import_.set_defaults(run=_import)
    export = actions.add_parser("export", help="convert a clip configuration to a trainer's configuration")
    export.add_argument(
        "clip",
        type=Path,
        metavar="CLIP",
        help="the file to convert: a clip configuration, or a trainer's configuration",
    )
    export.add_argument(
        "--from", dest="format", metavar="NAME[@VERSION]", help="the format of CLIP (default: inferred from the file)"
    )
    export.add_argument(
        "--to",
        required=True,
        metavar="NAME[@VERSION]",
        help="the trainer's format, such as deepspeed. VERSION is the newest by default",
    )
    export.add_argument(
        "--nearest",
        action="store_true",
        help="if the trainer does not support the family or eps, export a supported family or eps, and print how much "
        "the clip coefficients change",
    )
    export.add_argument(
        "--as",
        dest="kind",
        choices=("toml", "yaml", "json"),
        help="the file type (default: from the suffix of --out, or the trainer's usual file type)",
    )
    export.add_argument("--out", type=Path, metavar="FILE", help="the new file to write (default: print the result)")
    export.set_defaults(run=_export)
    return actions


def _import(options: argparse.Namespace) -> int:
    from .documents import kind_of

    config = imported(options, options.file, options.format)
    text = config.dumps(kind_of(options.out) if options.out else "toml")
    _output(text, config.notes, options.out)
    return 0


def _export(options: argparse.Namespace) -> int:
    from .clip_config import ClipConfig
    from .documents import DOCUMENT_KINDS
    from .formats import convert
    from .formats.base import naming_advice
    from .schema import DEFAULT_FAMILY, FAMILIES

    with naming_advice("pass --from {}"):
        config = ClipConfig.import_from(options.clip, options.format)
    kind = options.kind or (DOCUMENT_KINDS.get(options.out.suffix.lower()) if options.out else None)
    text, notes = convert.write(config, options.to, nearest=options.nearest, kind=kind)
    to_trainer = options.to.partition("@")[0] != convert.UNIFIED_CLIP
    if not notes and config.uses_default_family and to_trainer and not _fits_every_family(config):
        eps = FAMILIES[DEFAULT_FAMILY, "global_norm"].eps if config.eps is None else config.eps
        default = f"the default, {DEFAULT_FAMILY!r} (eps = {eps:g})"
        advice = "To choose another family, set `family` in this file."
        notes = [f"{options.clip.name} sets no family. Exported with {default}. {advice}"]
    _output(text, [*config.notes, *notes], options.out)
    return 0


def _fits_every_family(config: ClipConfig) -> bool:
    from .families import family_difference
    from .schema import FAMILIES

    others = (config.model_copy(update={"family": family}) for family, rule in FAMILIES if rule == config.rule)
    differences = (family_difference(config, other) for other in others)
    return all(difference is not None and difference.same for difference in differences)


def _output(text: str, notes: Iterable[str], out: Path | None) -> None:
    if out:
        write_new(out, text)
    for note in notes:
        print(f"note: {safe(note)}", file=sys.stderr)
    if not out:
        print(text, end="")
