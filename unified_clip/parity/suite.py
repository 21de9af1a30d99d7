"""A suite is a directory: `suite.toml` says what it consists of.

cases = ["cases/*.toml"]           files of cases (see `cases`), relative to the directory
known = "known.toml"               differences of the natives that are known (see `natives`); optional
timeout = 120                      seconds that a worker may take for one result; optional

[frameworks.torch]                 the frameworks to run, in the order of the report
python = "../paddle/bin/python"    an interpreter of its own, relative to the directory; optional
missing = "allowed"                it need not be installed; optional
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cases, natives
from .cases import Case, SuiteError, check_keys, read_toml
from .launch import DEVICE, HOST, NATIVE
from .natives import Known

FILE = "suite.toml"


@dataclass(frozen=True)
class Framework:
    """A framework to run."""

    python: str = sys.executable
    may_be_missing: bool = False
    modes: Sequence[str] = (HOST, DEVICE, NATIVE)


@dataclass(frozen=True)
class Suite:
    """What to run and what is known of it."""

    cases: Sequence[Case]
    frameworks: Mapping[str, Framework]
    known: Sequence[Known] = ()
    timeout: float = 120.0


def read(directory: Path) -> Suite:
    """The suite in a directory."""
    data = read_toml(directory / FILE)
    check_keys(data, {"cases", "frameworks"}, {"known", "timeout"}, FILE)
    files = [path for pattern in data["cases"] for path in sorted(directory.glob(pattern))]
    found = cases.read(files)
    if not found:
        raise SuiteError(f"{FILE}: there are no cases in {', '.join(data['cases'])}")
    frameworks = {name: _framework(table, directory, name) for name, table in data["frameworks"].items()}
    named = {name for case in found for name in case.frameworks}
    known = natives.read(directory / data["known"]) if "known" in data else []
    for name in sorted((named | {entry.framework for entry in known}) - frameworks.keys()):
        raise SuiteError(f"{FILE}: there is no framework {name!r}, which a case or a known difference names")
    return Suite(found, frameworks, known, float(data.get("timeout", Suite.timeout)))


def _framework(table: Mapping[str, Any], directory: Path, name: str) -> Framework:
    place = f"{FILE}, frameworks.{name}"
    check_keys(table, set(), {"python", "missing", "modes"}, place)
    if table.get("missing", "allowed") != "allowed":
        raise SuiteError(f"{place}: missing is {table['missing']!r}; it may be 'allowed', or left out")
    python = str((directory / table["python"]).absolute()) if "python" in table else sys.executable
    modes = table.get("modes", Framework.modes)
    if not set(modes) <= set(Framework.modes):
        raise SuiteError(f"{place}: modes is {modes}; it may have {', '.join(Framework.modes)}")
    return Framework(python, "missing" in table, modes)


def only(suite: Suite, names: Sequence[str]) -> Suite:
    """The suite on some of its frameworks."""
    unknown = [name for name in names if name not in suite.frameworks]
    if unknown:
        raise SuiteError(
            f"unknown frameworks: {', '.join(map(repr, unknown))}; there are {', '.join(suite.frameworks)}"
        )
    frameworks = {name: suite.frameworks[name] for name in dict.fromkeys(names)}
    known = [entry for entry in suite.known if entry.framework in frameworks]
    found = [case for case in suite.cases if not case.frameworks or set(case.frameworks) & frameworks.keys()]
    return dataclasses.replace(suite, cases=found, frameworks=frameworks, known=known)
