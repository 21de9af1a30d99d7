"""Select frameworks, modes and cases of a suite, for the options `--frameworks`, `--without` and `--case`."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import shlex
from collections.abc import Sequence

from ..known import entries
from ..modes import NATIVE
from .case import Case
from .load import Suite
from .schema import SuiteError

MOST_NEAR = 5


def only_frameworks(suite: Suite, names: Sequence[str]) -> Suite:
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
    """In `modes`, `jax:device` leaves out `device` for JAX only."""
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
        problem = f"the run would call none of your functions ({functions}), because they run only in {needed}"
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
    """Return the suite with only the cases in `names`. In a name, `*` matches any text.

    whole: The suite with all frameworks, even those that `--frameworks` leaves out. Used for error messages.
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
        hint = "To list all cases, run the suite without --case, and open index.html of its report"
        if near:
            listed = ", ".join(map(shlex.quote, near[:MOST_NEAR]))
            hint = f"Pass {'one of these similar cases' if len(near) > 1 else 'the similar case'}: {listed}"
        raise SuiteError(f"--case: the suite has no case {name!r}. {hint}", "UC203")
    return dataclasses.replace(suite, cases=list(chosen.values()), chosen_cases=True)
