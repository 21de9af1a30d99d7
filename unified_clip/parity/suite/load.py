"""Read a suite, and select its frameworks, modes and cases. `docs/parity.md` lists the keys of `suite.toml`."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ..._dispatch import ADAPTERS
from ..known import entries
from ..known.entries import KnownDifference
from ..modes import NATIVE, OnRequest, modes_of
from . import cases, own_functions, schema
from .cases import Case
from .schema import Framework, SuiteError

FILE = "suite.toml"

MOST_NEAR = 5


@dataclass(frozen=True)
class Suite:
    cases: Sequence[Case]
    frameworks: Mapping[str, Framework]
    known: Sequence[KnownDifference] | None = ()
    """The known differences, or None if the suite has no list. Without a list, differences of the frameworks' functions
    do not fail the run.
    """

    timeout: float = 120.0
    """The number of seconds to wait for the next result of a worker."""

    known_file: Path | None = None
    directory: str = ""
    """The path of the suite, as the user typed it."""

    root: Path = Path()
    without: Sequence[str] = ()
    notes: Sequence[str] = ()
    saved: Sequence[str] = ()
    """The names of the lists of gradients that were read from a file or returned by a function."""

    accepting: bool = False
    """Whether the run has the option `--accept`."""

    chosen_cases: bool = False
    """Whether the run has the option `--case`. Such a run reports no stale entries."""

    def worker_arguments(self, framework: str) -> tuple[Any, ...]:
        table = self.frameworks[framework]
        return table.python, *((table.functions, self.root, table.returns) if table.functions else ())


def file_of(path: Path) -> Path:
    return path if path.suffix == ".toml" else path / FILE


def known_list_advice(file: Path) -> str:
    """Return the advice to add a list of known differences to the suite's file.

    Each suite file needs a separate list, because `--accept` removes entries for cases of other suites.
    """
    name = "known.toml" if file.name == FILE else f"{file.stem}-known.toml"
    return f"Add known = {json.dumps(name)} at the top of {file}"


def read(path: Path, *, accepting: bool = False) -> Suite:
    """Read the suite in a directory, or in a `.toml` file.

    accepting: Whether the run has the option `--accept`. With this option, entries with `size = inf` are allowed.
    """
    file = file_of(path)
    directory = file.parent
    data = schema.read(file, schema.SuiteFile)
    files: list[Path] = []
    for pattern in data.files:
        try:
            matching = sorted(directory.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise SuiteError(
                f"{file}, files: {pattern!r} is an invalid pattern: {error}. Write a pattern such as cases/*.toml"
            ) from None
        if not matching:  # as when the pattern is misspelt
            raise SuiteError(
                f"{file}, files: {pattern!r} matches no file in {directory}. Correct or remove the pattern"
            )
        files += matching
    frameworks = {name: _framework(table, file, name, data.tolerance) for name, table in data.frameworks.items()}
    tables = [(file, data), *((path, schema.read(path, schema.CasesFile)) for path in files)]
    all_cases = cases.build(tables, {name: framework.python for name, framework in frameworks.items()})
    if not all_cases:
        listed = f" or in files = {data.files}" if data.files else ""
        raise SuiteError(
            f"{file}: no cases here{listed}. Add [[cases]] with gradients, rules and thresholds. Or add a file that "
            "contains [[cases]] to `files`"
        )
    for name, framework in frameworks.items():
        own_functions.check(name, framework, file, all_cases)
    replaced = [name for name, framework in frameworks.items() if framework.functions]
    if replaced and not data.known:
        raise SuiteError(
            f"{file}, frameworks.{replaced[0]}.functions: without a list of known differences, the run passes "
            f"even if your functions are wrong. {known_list_advice(file)}"
        )
    known_file = directory / data.known if data.known else None
    known: list[KnownDifference] | None = None if known_file is None else []
    if known_file and known_file.exists():
        known = entries.read(known_file, accepting=accepting)
    named = [(name, f"case {case.name!r}") for case in all_cases for name in case.options.frameworks]
    named += [(entry.framework, f"the entry of {entry.function!r} in {data.known}") for entry in known or []]
    for name, place in named:
        if name not in frameworks:
            raise SuiteError(
                f"{file}: {place} names the framework {name!r}, which is not in the suite. Correct the name, or add "
                f"[frameworks.{name}]"
            )
    notes = []
    if known_file and not known_file.exists() and not accepting:
        command = f"unified-clip parity --suite {shlex.quote(str(path))} --accept"
        notes = [f"{known_file} does not exist, so every difference fails. To write them into this file, run {command}"]
    saved = [table.name for _, each in tables for table in each.gradients if table.tensors is None]
    paths = known_file, str(path), directory
    return Suite(all_cases, frameworks, known, data.timeout, *paths, notes=notes, saved=saved, accepting=accepting)


def _framework(table: Framework, file: Path, name: str, tolerance: float) -> Framework:
    """Add default values to a `[frameworks.NAME]` table, and return the table.

    tolerance: The default tolerance.
    """
    if name not in ADAPTERS.values():
        known = ", ".join(sorted({*ADAPTERS.values()}))
        raise SuiteError(f"{file}: unified_clip has no adapter for the framework {name!r}. Choose from {known}")
    there, chosen = modes_of(name, own_functions=bool(table.functions)), table.model_fields_set
    modes = list(table.modes if "modes" in chosen else (mode for mode in there if mode not in get_args(OnRequest)))
    if lacking := [mode for mode in modes if mode not in there]:
        raise SuiteError(
            f"{file}, frameworks.{name}.modes: {name} has no mode {lacking[0]!r}. Choose from {', '.join(there)}"
        )
    settings: dict[str, Any] = {"modes": modes, "title": table.title or name}
    if "python" in chosen:
        path = file.parent / table.python
        if path.is_dir():  # a virtual environment
            path /= "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
        settings["python"] = str(path.absolute())
    if "tolerance" not in chosen:
        settings["tolerance"] = tolerance
    return table.model_copy(update=settings)


def only(suite: Suite, names: Sequence[str]) -> Suite:
    unknown = [name for name in names if name not in suite.frameworks]
    if unknown:
        known = ", ".join(suite.frameworks)
        raise SuiteError(f"--frameworks: the suite has no framework {unknown[0]!r}. Choose from {known}", "UC203")
    frameworks = {name: suite.frameworks[name] for name in dict.fromkeys(names)}
    remaining = [case for case in suite.cases if any(map(case.is_for_framework, frameworks))]
    if not remaining:
        raise SuiteError(
            f"--frameworks: no case of the suite is for {', '.join(frameworks)}. Choose other frameworks", "UC203"
        )
    return dataclasses.replace(suite, cases=remaining, frameworks=frameworks)


def without(suite: Suite, modes: Sequence[str]) -> Suite:
    """Return the suite without some modes. A name such as `jax:device` means the mode of one framework."""
    for mode in modes:
        _check_mode(suite, mode)
    frameworks = {
        name: framework.model_copy(
            update={"modes": [mode for mode in framework.modes if not {mode, f"{name}:{mode}"} & set(modes)]}
        )
        for name, framework in suite.frameworks.items()
    }
    if empty := [name for name, framework in frameworks.items() if not framework.modes]:
        others = [name for name in frameworks if name not in empty]
        remedy = "Leave out fewer modes"
        remedy += f", or run without {empty[0]}: --frameworks {','.join(others)}" if others else ""
        raise SuiteError(f"--without {','.join(modes)}: {empty[0]} has no mode left. {remedy}", "UC203")
    own = {name: framework for name, framework in frameworks.items() if framework.functions}
    if own and not any(NATIVE in framework.modes for framework in own.values()):
        functions = ", ".join(text for framework in own.values() for text in framework.functions.values())
        needed = " or ".join(f"{name}:{NATIVE}" for name in own)
        kept = [mode for mode in modes if mode != NATIVE and mode.removesuffix(f":{NATIVE}") not in own]
        remedy = f"Type --without {','.join(kept)}" if kept else "Remove --without"
        problem = f"the run would call none of your functions ({functions}), which need {needed}"
        raise SuiteError(f"--without {','.join(modes)}: {problem}. {remedy}", "UC203")
    return dataclasses.replace(suite, frameworks=frameworks, without=list(dict.fromkeys(modes)))


def _check_mode(suite: Suite, mode: str) -> None:
    framework, colon, name = mode.rpartition(":")
    modes = {each: table.modes for each, table in suite.frameworks.items()}
    if colon and framework not in modes:
        raise SuiteError(
            f"--without {mode}: this run has no framework {framework!r}. Choose from {', '.join(modes)}", "UC203"
        )
    choices = modes[framework] if colon else list(dict.fromkeys(itertools.chain(*modes.values())))
    if name not in choices:
        example = next(f"{each}:{of_one[0]}" for each, of_one in modes.items())
        hint = "" if colon else f". For a mode of one framework, write FRAMEWORK:MODE, as in {example}"
        problem = f"{framework or 'no framework'} has {'no' if colon else 'the'} mode {name!r} in this run"
        raise SuiteError(f"--without {mode}: {problem}. Choose from {', '.join(choices)}{hint}", "UC203")


def only_cases(suite: Suite, names: Sequence[str], whole: Suite) -> Suite:
    """Return the suite with only the cases that `--case` names. In a name, `*` stands for any text.

    whole: The suite before `--frameworks` removes frameworks. Error messages need this suite.
    """
    cases, every_case = ({case.name: case for case in each.cases} for each in (suite, whole))
    chosen: dict[str, Case] = {}
    for name in names:
        if matching := [name] if name in cases else [case for case in cases if entries.is_match(case, [name])]:
            chosen |= {case: cases[case] for case in matching}
            continue
        if elsewhere := next((case for case in every_case if entries.is_match(case, [name])), None):
            others = ",".join(filter(every_case[elsewhere].is_for_framework, whole.frameworks))
            problem = f"--case: the case {elsewhere!r} is not for {', '.join(suite.frameworks)}"
            raise SuiteError(f"{problem}. Pass --frameworks {others}, or another case", "UC203")
        near = difflib.get_close_matches(name, every_case, n=MOST_NEAR)
        near += [other for other in every_case if name.casefold() in other.casefold() and other not in near]
        hint = "To list all cases, run the suite without --case: parity.json and index.html in its report have them"
        if near:
            listed = ", ".join(map(shlex.quote, near[:MOST_NEAR]))
            hint = f"Pass {'one of these similar cases' if len(near) > 1 else 'the similar case'}: {listed}"
        raise SuiteError(f"--case: the suite has no case {name!r}. {hint}", "UC203")
    return dataclasses.replace(suite, cases=list(chosen.values()), chosen_cases=True)
