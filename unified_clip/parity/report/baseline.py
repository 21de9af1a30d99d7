"""Compare a report with an earlier parity.json, the baseline.

Failures that the baseline already had do not fail the run. Only new or larger ones do, and missing results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..modes import NATIVE, OURS
from ..suite.schema import SuiteError
from .model import SCHEMA

Data = Mapping[str, Any]
"""A report as parity.json has it."""

FACTOR = 1.1
"""Factor by which a distance must grow or shrink to be another size, as in a list of known differences."""

KINDS = {
    "new": "new",
    "gone": "gone",
    "verdict": "another verdict",
    "size": "another size",
    "numbers": "other numbers",
    "version": "another version",
}

ADVICE = "make one with this version: unified-clip parity --out DIRECTORY"


@dataclass(frozen=True)
class Change:
    """A change since the baseline."""

    kind: Literal["new", "gone", "verdict", "size", "numbers", "version"]
    framework: str
    """Or the package, for a version. '' if the change is about all frameworks."""

    what: str
    """The mode of unified_clip, the framework's own function, or the known difference."""

    case: str
    before: str
    after: str
    worse: bool = False
    """Whether the change is a failure that is new, or was smaller."""

    def is_about(self, key: Key) -> bool:
        """Return whether the change is about this key. Known differences with the same text share a key."""
        framework, what, case = key
        return (self.framework, self.case) == (framework, case) and self.what.startswith(what)


@dataclass(frozen=True)
class _Result:
    verdict: str
    text: str
    """The verdict with the size."""

    size: float = 0.0
    numbers: Any = None
    """Equal in both reports if the numbers are."""

    wrong: bool = False


Key = tuple[str, str, str]
"""`framework`, `what` and `case` of a change."""


def read(path: Path, cases: Collection[str], frameworks: Collection[str]) -> Data:
    """Read an earlier report with some of these cases and frameworks. SuiteError: the file is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        schema = data.get("schema")
        if schema == SCHEMA:
            changes(data, data)
            shared_cases = set(cases) & {case["name"] for case in data["cases"]}
            shared_frameworks = set(frameworks) & set(data["frameworks"])
    except OSError as error:
        raise SuiteError(f"the baseline {path} cannot be read: {error.strerror}") from None
    except Exception as error:  # another JSON file may fail anywhere, by its nesting too
        what = f"{type(error).__name__}: {error}"
        raise SuiteError(f"the baseline {path} is no parity.json of unified-clip parity ({what}); {ADVICE}") from None
    if schema != SCHEMA:
        raise SuiteError(f"the baseline {path} has the schema {schema}, and this version reads {SCHEMA}; {ADVICE}")
    if not shared_cases:
        raise SuiteError(f"the baseline {path} has none of the cases of this suite; name the report of an earlier run")
    if not shared_frameworks:
        raise SuiteError(f"the baseline {path} has no results of {', '.join(frameworks)}; {ADVICE}")
    report: Data = data
    return report


def changes(old: Data, new: Data) -> list[Change]:
    """Return the changes between two reports, new failures first."""
    found = [*_changed_parts(old, new), *_versions(old["versions"], new["versions"])]
    before, after = _results(old), _results(new)
    alone = {(change.framework, change.case) for change in found if change.kind in ("new", "gone")}
    for key in dict.fromkeys([*after, *before]):
        if (change := _change(key, before.get(key), after.get(key))) and (
            change.worse or not {(key[0], ""), ("", key[2])} & alone
        ):
            found.append(change)
    return sorted(found, key=lambda change: not change.worse)


def _changed_parts(old: Data, new: Data) -> Iterator[Change]:
    """Yield frameworks and cases that are new or gone as a whole."""
    sides = [(data["frameworks"], [case["name"] for case in data["cases"]]) for data in (old, new)]
    (old_frameworks, old_cases), (new_frameworks, new_cases) = sides
    yield from (Change("gone", name, "", "", "", "") for name in old_frameworks if name not in set(new_frameworks))
    yield from (Change("new", name, "", "", "", "") for name in new_frameworks if name not in set(old_frameworks))
    yield from (Change("gone", "", "", name, "", "") for name in old_cases if name not in set(new_cases))
    yield from (Change("new", "", "", name, "", "") for name in new_cases if name not in set(old_cases))


def _versions(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Change]:
    for package in sorted(old.keys() & new.keys()):
        if old[package] != new[package]:
            yield Change("version", package, "", "", str(old[package]), str(new[package]))


def _change(key: Key, old: _Result | None, new: _Result | None) -> Change | None:
    if new is None or old is None:
        there = new or old
        assert there is not None
        texts = ("", there.text) if old is None else (there.text, "")
        return Change("gone" if new is None else "new", *key, *texts, worse=new is not None and new.wrong)
    grew = new.size > FACTOR * old.size
    worse = new.wrong and not (old.wrong and old.verdict == new.verdict and not grew)
    if old.verdict != new.verdict:
        return Change("verdict", *key, old.text, new.text, worse)
    if grew or old.size > FACTOR * new.size:
        return Change("size", *key, old.text, new.text, worse)
    return Change("numbers", *key, old.text, new.text) if old.numbers != new.numbers else None


# -- the results of a report, one by one


def _results(data: Data) -> dict[Key, _Result]:
    found: dict[Key, _Result] = {}
    for case in data["cases"]:
        name, digests, apart = case["name"], case["sha256"], case["stages_apart"]
        shown = ", ".join(f"{stage} {digest[:8]}" for stage, digest in digests.items())
        found["", "what is right", name] = _Result("exact", shown, numbers=digests)
        verdict = "other bits" if apart else "the same bits"
        text = f"{verdict}: {' and '.join(apart)}" if apart else verdict
        found["", "between frameworks", name] = _Result(verdict, text, len(apart), apart, bool(apart))
        for framework, cell in case["frameworks"].items():
            for mode in (mode for mode in OURS if cell.get(mode)):
                found[framework, OURS[mode], name] = _ours(cell[mode])
            if cell.get(NATIVE):
                found[framework, "its own function", name] = _native(cell[NATIVE])
    return found | _known(data["known"])


def _ours(data: Data) -> _Result:
    kind, ulps = str(data["verdict"]), float(data["ulps"])
    wrong = kind == "different"
    detail = f": {data['detail']}" if wrong and ulps == float("inf") else ""
    size = f", {ulps:.3g} ulp" if 0 < ulps < float("inf") else ""
    # What is equal has the bits that are right, and no result has none.
    numbers = data["sha256"] if kind in ("close", "flushed", "different") else None
    return _Result(f"{kind}{detail}", f"{kind}{size}{detail}", ulps, numbers, wrong)


def _native(data: Data) -> _Result:
    sizes = [None if data[key] is None else float(data[key]) for key in ("norm", "gradients")]
    size = max((each for each in sizes if each is not None), default=0.0)
    kind = f": {data['kind']}" if data["kind"] not in ("", "value", "touched") else ""
    verdict = f"{data['verdict']}{kind}"
    text = " ".join(filter(None, (data["function"], verdict))) + (f", {size:.2g}" if size else "")
    return _Result(verdict, text, size, [data["function"], *sizes], bool(data["problem"]))


def _known(entries: Iterable[Data]) -> dict[Key, _Result]:
    """Return the list of known differences. Entries with the same text are numbered."""
    found: dict[Key, _Result] = {}
    count: Counter[str] = Counter()
    for entry in entries:
        what = f"known difference, {entry['function']}, {entry['reason']!r}"
        count[f"{entry['framework']} {what}"] += 1
        number = count[f"{entry['framework']} {what}"]
        verdict = "not as listed" if entry["problem"] else "as listed"
        size = float(entry["size"] or 0)
        text = verdict + (f": {entry['problem']}" if entry["problem"] else f", {size:.2g}" if size else "")
        key = (entry["framework"], what if number == 1 else f"{what} ({number})", "")
        found[key] = _Result(verdict, text, size, entry["problem"], bool(entry["problem"]))
    return found


# -- tables

HEADER = ["", "what", "change", "before", "now", "cases"]


def rows(found: Sequence[Data]) -> list[list[str]]:
    """Return a table row for each group of similar changes. A row names the first case of its group."""
    groups: dict[tuple[Any, ...], list[Data]] = {}
    for change in found:
        verdicts = [change[side].partition(",")[0] for side in ("before", "after")]
        alike = () if change["kind"] in ("size", "numbers") else tuple(verdicts)
        groups.setdefault((*(change[key] for key in ("worse", "kind", "framework", "what")), *alike), []).append(change)
    return [_row(group) for group in groups.values()]


def _row(group: Sequence[Data]) -> list[str]:
    first = group[0]
    what = ", ".join(filter(None, (first["framework"], first["what"]))) or "the suite"
    cases = first["case"] if len(group) == 1 else f"{len(group)}, first {first['case']}"
    return ["worse" if first["worse"] else "", what, KINDS[first["kind"]], first["before"], first["after"], cases]


def headline(found: Sequence[Data]) -> str:
    """Return the result of the comparison in a sentence."""
    worse = sum(change["worse"] for change in found)
    counts = f"{len(found)} changes, {worse} of them for the worse" if found else "nothing changed"
    return f"Against the baseline: {counts}."
