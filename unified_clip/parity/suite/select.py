"""Select frameworks, modes and cases of a suite, for the options `--frameworks`, `--without` and `--case`."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
from collections.abc import Sequence

from ..known import entries
from ..modes import NATIVE
from .case import Case
from .load import Suite
from .schema import SuiteError, no_such


def only_frameworks(suite: Suite, names: Sequence[str]) -> Suite:
    if unknown := [name for name in names if name not in suite.frameworks]:
        raise SuiteError(f"--frameworks: {no_such('framework', unknown[0], list(suite.frameworks))}", "UC203")
    frameworks = {name: suite.frameworks[name] for name in dict.fromkeys(names)}
    remaining = [case for case in suite.cases if any(map(case.is_for_framework, frameworks))]
    if not remaining:
        problem = f"no case of the suite is for {', '.join(frameworks)}. Choose other frameworks"
        raise SuiteError(f"--frameworks: {problem}", "UC203")
    return dataclasses.replace(suite, cases=remaining, frameworks=frameworks, chosen_frameworks=list(frameworks))


def without(suite: Suite, modes: Sequence[str]) -> Suite:
    """In `modes`, `jax:device` leaves out `device` for JAX only."""
    there = {f"{name}:{mode}": mode for name, table in suite.frameworks.items() for mode in table.modes}
    for mode in modes:
        if mode not in {*there, *there.values()}:
            choices = list(there if ":" in mode else dict.fromkeys(there.values()))
            raise SuiteError(f"--without {mode}: {no_such('mode', mode, choices)}", "UC203")
    frameworks = {
        name: framework.model_copy(
            update={"modes": [mode for mode in framework.modes if not {mode, f"{name}:{mode}"} & set(modes)]}
        )
        for name, framework in suite.frameworks.items()
    }
    if empty := [name for name, framework in frameworks.items() if not framework.modes]:
        problem = f"{empty[0]} has no mode left. Leave out fewer modes, or the framework by --frameworks"
        raise SuiteError(f"--without {','.join(modes)}: {problem}", "UC203")
    own = {name: framework for name, framework in frameworks.items() if framework.functions}
    if own and not any(NATIVE in framework.modes for framework in own.values()):
        functions = ", ".join(text for framework in own.values() for text in framework.functions.values())
        needed = " or ".join(f"{name}:{NATIVE}" for name in own)
        problem = f"the run would call none of your functions ({functions}). Keep {needed}"
        raise SuiteError(f"--without {','.join(modes)}: {problem}", "UC203")
    return dataclasses.replace(suite, frameworks=frameworks, without=list(dict.fromkeys(modes)))


def only_cases(suite: Suite, names: Sequence[str], whole: Suite) -> Suite:
    """Return the suite with only the cases in `names`. In a name, `*` matches any text.

    whole: The suite with all frameworks, even those that `--frameworks` leaves out. Used for error messages.
    """
    cases = {case.name: case for case in suite.cases}
    chosen: dict[str, Case] = {}
    for name in names:
        matching = [name] if name in cases else [case for case in cases if entries.is_match(case, [name])]
        if not matching:
            elsewhere = [case for case in whole.cases if entries.is_match(case.name, [name])]
            near = difflib.get_close_matches(name, [case.name for case in whole.cases], n=1)
            near += [case.name for case in whole.cases if name.casefold() in case.name.casefold()]
            hint = f"Did you mean {shlex.quote(near[0])}?" if near else "The report's index.html lists all cases"
            problem = f"the suite has no case {name!r}. {hint}"
            if elsewhere:
                others = ",".join(filter(elsewhere[0].is_for_framework, whole.frameworks))
                problem = f"{elsewhere[0].name!r} is not for {', '.join(suite.frameworks)}. Pass --frameworks {others}"
            raise SuiteError(f"--case: {problem}", "UC203")
        chosen |= {case: cases[case] for case in matching}
    return dataclasses.replace(suite, cases=list(chosen.values()), chosen_cases=True)
