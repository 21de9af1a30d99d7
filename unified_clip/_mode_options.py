"""Command-line options that apply to one mode of a command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from ._coded_error import UsageError


def check_modes(options: argparse.Namespace, modes: Mapping[str, Sequence[str]], active: str) -> None:
    """Check that the user passed no options of a mode that is not active.

    Args:
        options: The parsed options. An option that applies to one mode must have the default None or False.
        modes: The names of the options that apply to one mode only, by mode as the user types it.
        active: The active mode, or '' if none is active.

    Raises:
        UsageError: The user passed such an option.
    """
    errors = []
    for mode, names in modes.items():
        passed = [f"--{name.replace('_', '-')}" for name in names if is_passed(getattr(options, name, None))]
        if passed and mode != active:
            verb, them = ("applies", "it") if len(passed) == 1 else ("apply", "them")
            errors.append(f"{', '.join(passed)} {verb} to {mode} only. Remove {them}, or use {mode}.")
    if errors:
        raise UsageError(" ".join(errors))


def is_passed(value: object) -> bool:
    """Return whether the user passed an option whose default is None or False."""
    return value is not None and value is not False
