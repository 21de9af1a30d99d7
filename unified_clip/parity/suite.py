"""A suite is a directory: `suite.toml` says what it consists of.

cases = ["cases/*.toml"]           files of cases (see `cases`), relative to the directory
known = "known.toml"               differences of the natives that are known (see `natives`); optional
timeout = 120                      seconds that a worker may take for one result; optional
memory = "8 GiB"                   what all workers may take together; optional

[frameworks.torch]                 the frameworks to run, in the order of the report
python = "../paddle/bin/python"    an interpreter of its own, relative to the directory; optional
missing = "allowed"                it need not be installed; optional
modes = ["host", "graph"]          what is run: ours on the host path, on the device path (`device`), inside graphs
                                   (`graph`, `compiled`, `static`: see the framework's adapter), and its own functions
                                   (`native`); default: host, device, native
left_out = { graph = ["sparse"] }  cases that a mode has not: see `cases.Case.is_for_graphs`; optional
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import cases, memory, natives, schema
from .cases import Case
from .launch import DEVICE, HOST, NATIVE
from .natives import Known
from .schema import FrameworkTable, SuiteError

FILE = "suite.toml"


@dataclass(frozen=True)
class Framework:
    """A framework to run."""

    python: str = sys.executable
    may_be_missing: bool = False
    modes: Sequence[str] = (HOST, DEVICE, NATIVE)
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By mode, the kinds of cases that are not run in it: see `Case.is_for_graphs`."""

    flushes: bool = False
    title: str = ""


@dataclass(frozen=True)
class Suite:
    """What to run and what is known of it."""

    cases: Sequence[Case]
    frameworks: Mapping[str, Framework]
    known: Sequence[Known] = ()
    timeout: float = 120.0
    memory: int | None = None
    """Bytes that all workers may take together."""


def read(directory: Path) -> Suite:
    """The suite in a directory."""
    data = schema.read(directory / FILE, schema.SuiteFile)
    files = [path for pattern in data.cases for path in sorted(directory.glob(pattern))]
    found = cases.read(files)
    if not found:
        raise SuiteError(f"{FILE}: there are no cases in {', '.join(data.cases)}")
    frameworks = {name: _framework(table, directory, name) for name, table in data.frameworks.items()}
    named = {name for case in found for name in case.frameworks}
    known = natives.read(directory / data.known) if data.known else []
    for name in sorted((named | {entry.framework for entry in known}) - frameworks.keys()):
        raise SuiteError(f"{FILE}: there is no framework {name!r}, which a case or a known difference names")
    return Suite(found, frameworks, known, data.timeout, memory.read(data.memory) if data.memory else None)


def _framework(table: FrameworkTable, directory: Path, name: str) -> Framework:
    if not name.isidentifier() or importlib.util.find_spec(f"{__package__}.adapter_{name}") is None:
        raise SuiteError(f"{FILE}, frameworks: there is no adapter for {name!r}")
    python = str((directory / table.python).absolute()) if table.python else sys.executable
    left_out: dict[str, Sequence[str]] = dict(table.left_out.items())
    return Framework(
        python, table.missing is not None, tuple(table.modes), left_out, table.flushes, table.title or name
    )


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
    if not found:
        raise SuiteError(f"no case of the suite is for {', '.join(frameworks)}")
    return dataclasses.replace(suite, cases=found, frameworks=frameworks, known=known)
