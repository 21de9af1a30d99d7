"""Read a suite. `docs/suite.md` lists the keys of `suite.toml`."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..._dispatch import ADAPTERS
from ..known import entries
from ..known.entries import KnownDifference
from ..modes import NATIVE, OnRequest, modes_of
from . import cases, own_functions, schema
from .case import Case
from .schema import FrameworkTable, SuiteError

FILE = "suite.toml"


@dataclass(frozen=True)
class Suite:
    cases: Sequence[Case]
    frameworks: Mapping[str, FrameworkTable]
    known: Sequence[KnownDifference] | None = ()
    """None if the suite has no list of known differences."""

    timeout: float = schema.TIMEOUT
    known_file: Path | None = None
    directory: str = ""
    root: Path = Path()
    without: Sequence[str] = ()
    notes: Sequence[str] = ()
    saved: Sequence[str] = ()
    """The names of the lists of gradients that were read from a file, or returned by a function of the user."""

    chosen_frameworks: Sequence[str] = ()
    """The frameworks of the option `--frameworks`."""

    chosen_cases: bool = False
    """Whether the run has the option `--case`. With this option, no known difference is reported as stale."""

    beside: Set[str] = frozenset()
    """The tables with functions of the user beside the table of the framework itself, in the same environment."""

    def runs_elsewhere(self, name: str, case: Case) -> bool:
        """Return whether the framework's function of a case runs in the framework's own table, and not in this one."""
        chosen = case.options.frameworks
        is_only_here = bool(chosen) and self.beside >= {*chosen}
        return name in self.beside and case.call_name not in self.frameworks[name].functions and not is_only_here

    def worker_arguments(self, name: str) -> tuple[Any, ...]:
        table = self.frameworks[name]
        options = (table.functions, self.root, table.returns, name, table.graph)
        return table.framework, table.python, *(options if table.functions or table.graph else ())


def file_of(path: Path) -> Path:
    return path if path.suffix == ".toml" else path / FILE


def known_list_advice(file: Path) -> str:
    """Return advice to add a list of known differences to the file.

    Each suite file needs its own list, because `--accept` removes entries for cases of other suites.
    """
    name = "known.toml" if file.name == FILE else f"{file.stem}-known.toml"
    return f"Add known = {json.dumps(name)} at the top of {file}"


def read(path: Path, *, accepting: bool = False) -> Suite:
    file = file_of(path)
    directory = file.parent
    data = schema.read(file, schema.SuiteFile)
    files = [path for pattern in data.files for path in _matching_files(pattern, file)]
    frameworks = {name: _framework(table, file, name, data.tolerance) for name, table in data.frameworks.items()}
    tables = [(file, data), *((path, schema.read(path, schema.CasesFile)) for path in files)]
    pythons = {name: framework.python for name, framework in frameworks.items() if framework.framework == name}
    all_cases = cases.build(tables, pythons)
    if not all_cases:
        listed = f" or in files = {data.files}" if data.files else ""
        raise SuiteError(
            f"{file}: no cases here{listed}. Add [[cases]], or the path of a file with [[cases]] to `files`"
        )
    expanded = [_with_tables(case, frameworks) for case in all_cases]
    for name, framework in frameworks.items():
        own_functions.check(name, framework, file, expanded)
    replaced = [name for name, framework in frameworks.items() if framework.functions]
    if replaced and not data.known:
        problem = "without a list of known differences, the run passes even if your functions are wrong"
        raise SuiteError(f"{file}, frameworks.{replaced[0]}.functions: {problem}. {known_list_advice(file)}")
    known_file = directory / data.known if data.known else None
    known: list[KnownDifference] | None = None if known_file is None else []
    if known_file and known_file.exists():
        known = entries.read(known_file)
    absent = {*ADAPTERS.values()} - {table.framework for table in frameworks.values()}
    named = [
        (name, f"case {case.name!r}")
        for case in all_cases
        for name in case.options.frameworks
        if name not in absent or absent.issuperset(case.options.frameworks)
    ]
    named += [(entry.framework, f"the entry of {entry.function!r} in {data.known}") for entry in known or []]
    _check_frameworks(file, frameworks, named)
    notes = []
    if known_file and not known_file.exists() and not accepting:
        notes = [f"{known_file} does not exist yet, so every difference fails the run. --accept writes it."]
    saved = [table.name for _, each in tables for table in each.gradients if table.tensors is None]
    paths = known_file, str(path), directory
    beside = {name for name in replaced if _has_own_table(name, frameworks)}
    return Suite(expanded, frameworks, known, data.timeout, *paths, notes=notes, saved=saved, beside=beside)


def _has_own_table(name: str, frameworks: Mapping[str, FrameworkTable]) -> bool:
    table = frameworks[name]
    own = frameworks.get(table.framework)
    return own is not None and own is not table and own.python == table.python


def _matching_files(pattern: str, file: Path) -> list[Path]:
    try:
        matching = sorted(file.parent.glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise SuiteError(f"{file}, files: {pattern!r}: {error}. Write a pattern such as cases/*.toml") from None
    if not matching:  # for example, the pattern is misspelt
        raise SuiteError(f"{file}, files: {pattern!r} matches no file in {file.parent}. Correct or remove the pattern")
    return matching


def _tables_of(name: str, frameworks: Mapping[str, FrameworkTable]) -> list[str]:
    """Return the tables that the name of a table or framework in `frameworks` of a case stands for."""
    return [name] if name in frameworks else [table for table, each in frameworks.items() if each.framework == name]


def _with_tables(case: Case, frameworks: Mapping[str, FrameworkTable]) -> Case:
    tables = [table for name in case.options.frameworks for table in _tables_of(name, frameworks)]
    return dataclasses.replace(case, options=case.options.model_copy(update={"frameworks": tables}))


def _check_frameworks(file: Path, frameworks: Mapping[str, FrameworkTable], named: Iterable[tuple[str, str]]) -> None:
    for name, place in named:
        if not _tables_of(name, frameworks):
            raise SuiteError(
                f"{file}: {place} names {name!r}, but the suite has no [frameworks.{name}]. Correct the name"
            )


def _framework(table: FrameworkTable, file: Path, name: str, tolerance: float) -> FrameworkTable:
    framework = table.framework or name
    if framework not in ADAPTERS.values():
        known = ", ".join(sorted({*ADAPTERS.values()}))
        raise SuiteError(f"{file}: unified_clip has no framework {framework!r}. Set `framework` to one of {known}")
    if framework != name and (name in ADAPTERS.values() or not re.fullmatch(r"\w[\w.-]*", name)):
        remedy = "Choose a name that is no framework, from letters, digits, `_`, `-` and `.`"
        raise SuiteError(f"{file}, frameworks.{name}: the table of {framework} cannot have this name. {remedy}")
    there, chosen = modes_of(framework, own_functions=bool(table.functions)), table.model_fields_set
    usual = [NATIVE] if table.framework else [mode for mode in there if mode not in get_args(OnRequest)]
    modes = table.modes if "modes" in chosen else usual
    if lacking := [mode for mode in modes if mode not in there]:
        raise SuiteError(
            f"{file}, frameworks.{name}.modes: {framework} has no mode {lacking[0]!r}. Choose from {', '.join(there)}"
        )
    settings: dict[str, Any] = {"framework": framework, "modes": [*modes]}
    if "python" in chosen:
        path = file.parent / table.python
        if path.is_dir():  # a virtual environment
            path /= "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
        settings["python"] = str(path.absolute())
    if "tolerance" not in chosen:
        settings["tolerance"] = tolerance
    return table.model_copy(update=settings)
