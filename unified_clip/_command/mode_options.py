"""Command-line options that apply to one mode of a command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from .._kit.coded_error import UsageError


def check_modes(options: argparse.Namespace, modes: Mapping[str, Sequence[str]], active: str) -> None:
    """Raise UsageError if the user passed an option of another mode. Unset options must be None or False."""
    errors = []
    for mode, names in modes.items():
        passed = [f"--{name.replace('_', '-')}" for name in names if is_passed(getattr(options, name, None))]
        if passed and mode != active:
            verb, them = ("applies", "it") if len(passed) == 1 else ("apply", "them")
            errors.append(f"{', '.join(passed)} {verb} to {mode} only. Remove {them}, or use {mode}.")
    if errors:
        raise UsageError(" ".join(errors))


def is_passed(value: object) -> bool:
    return value is not None and value is not False
