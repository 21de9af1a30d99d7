"""Compare a report with the baseline, which is the parity.json of an earlier run. A failure that is also in the
baseline does not fail the run.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ..._kit import atomic_files
from ..._kit.atomic_files import LARGEST_REPORT
from ..known.entries import ERRORS, NO_REASON
from ..modes import NATIVE, TITLES
from ..results import SCHEMA, Change, KnownDifferenceResult, NativeResult, ParityReport, UnifiedClipResult
from ..suite.schema import SuiteError
from . import compared_functions

FACTOR = 1.1

READABLE = (2, SCHEMA)
"""Schema 2 has more keys, which a comparison does not read."""

ADVICE = "To write DIRECTORY/parity.json as a new baseline, pass --out DIRECTORY in place of --baseline"

LOST = {"gone": ADVICE, "not run": "Remove --frameworks and --without from the command"}

Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Entry:
    verdict: str
    text: str
    size: float = 0.0
    numbers: object = None
    wrong: bool = False
    cause: str = ""
    """The cause of the difference, without numbers that change from run to run."""

    compared: Sequence[str] = ()
    error: str = ""
    agrees: bool = False
    exact: bool = False
    listing: object = None
    """The fields of the known difference. If the user changed them since the baseline, the user accepted the result."""


def read(path: Path, cases: Collection[str], frameworks: Collection[str]) -> ParityReport:
    def error(problem: str) -> SuiteError:
        return SuiteError(f"The baseline {path} {problem}. {ADVICE}", "UC302")

    try:
        data = json.loads(atomic_files.read_text(path, LARGEST_REPORT))
        schema = data.get("schema") if isinstance(data, dict) else SCHEMA
        if schema is None:
            raise error("is not a valid parity.json: the key `schema` is missing")
        if schema not in READABLE:
            readable = " and ".join(map(str, READABLE))
            raise error(f"has schema {schema}. This version of unified_clip reads only the schemas {readable}")
        if isinstance(data, dict):
            data |= {"schema": SCHEMA, "baseline": None}
        report = ParityReport.model_validate(data)
    except ValidationError as failure:
        first = failure.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the top level"
        raise error(f"is not a valid parity.json. At {place}: {first['msg']}") from None
    except (json.JSONDecodeError, RecursionError) as failure:
        raise error(f"is not a valid parity.json: {failure}") from None
    if not set(cases) & {case.name for case in report.cases}:
        raise error("has none of the cases of this run. Pass an earlier report of this suite")
    if not set(frameworks) & set(report.frameworks):
        raise error(f"has no results of {', '.join(frameworks)}. Pass a report of a run on {' or '.join(frameworks)}")
    return report


def changes(
    old: ParityReport, new: ParityReport, *, strict_bits: bool = False, is_partial: bool = False
) -> list[Change]:
    """Return the changes since the baseline. Changes that fail the run come first."""
    changed = list(_changed_parts(old, new))
    with_digests = strict_bits or not _without_digests(old, new)
    before, after = (_entries(report, with_digests=with_digests) for report in (old, new))
    renamed = list(_renamed(old.known, new.known))
    keys = {old_key: key for (old_key, _), (key, _) in renamed}
    if len({keys.get(key, key) for key in before}) == len(before):
        before = {keys.get(key, key): entry for key, entry in before.items()}
        reasons = [(key, old_reason, reason) for (_, old_reason), (key, reason) in renamed if old_reason != reason]
        changed += [_changed("reason", *each) for each in reasons]
    alone = {(change.framework, change.case) for change in changed if change.kind in ("new", "gone")}
    for key in dict.fromkeys([*after, *before]):
        if (change := _change(key, before.get(key), after.get(key), strict_bits)) and (
            change.worse or not {(key[0], ""), ("", key[2])} & alone
        ):
            changed.append(change)
    if is_partial:
        for each in changed:
            if each.kind == "gone" and _is_left_out(each, old, new, {key[:2] for key in after}):
                each.kind = "not run"
    for each in changed if new.strict else ():
        if each.kind in LOST:
            each.worse, each.failure = True, "not comparable"
            each.why = f"the result is in the baseline, but not in this run. {LOST[each.kind]}"
    return sorted(changed, key=lambda change: not change.worse)


def _is_left_out(change: Change, old: ParityReport, new: ParityReport, present: Collection[tuple[str, str]]) -> bool:
    if not change.framework:
        frameworks = next((case.frameworks for case in old.cases if case.name == change.case), {})
        return not {*frameworks} & {*new.frameworks}
    if change.what.startswith("known difference") and change.framework in new.frameworks:
        return change.framework not in dict(new.natives())
    return (change.framework, change.what) not in present


def notes(old: ParityReport, new: ParityReport, *, strict_bits: bool = False) -> list[str]:
    whose = compared_functions.whose(new)
    if (why := _without_digests(old, new)) and not strict_bits:
        not_compared = f"The bits that {whose} returned were not compared with the baseline, because {why}."
        return [f"{not_compared} Only the sizes of differences were compared."]
    return []


def excuses_note(old: ParityReport, new: ParityReport) -> list[str]:
    if not (count := excused(new)):
        return []
    which = "This failure does" if count == 1 else f"These {count} failures do"
    same = "failure" if count == 1 else "failures"
    return [
        f"{which} not fail this run, because the baseline has the same {same}. The baseline run ended with: "
        f"{old.verdict} To get a baseline without failures, correct the failures, or accept the failures with "
        "--accept. Then use the report of the next passing run as the baseline. With --strict, failures of the "
        "baseline also fail the run."
    ]


def _without_digests(old: ParityReport, new: ParityReport) -> str:
    shared = old.versions.keys() & new.versions.keys()
    others = [
        f"{package} {old.versions[package]}" for package in shared if old.versions[package] != new.versions[package]
    ]
    return f"the baseline is from other versions ({', '.join(sorted(others))})" if others and new.natives() else ""


def excuses(report: ParityReport, key: Key) -> bool:
    if report.baseline is None or report.strict:
        return False
    return not any(change.worse and (change.framework, change.what, change.case) == key for change in report.baseline)


def excused(report: ParityReport) -> int:
    return sum(max(len(problem.cases), 1) for problem in report.problems if problem.excused)


def losses(report: ParityReport) -> list[Change]:
    return [change for change in report.baseline or [] if change.why]


def known_title(known: KnownDifferenceResult) -> str:
    return f"known difference, {known.function}, {known.reason!r}"


def numbered(entries: Iterable[KnownDifferenceResult]) -> Iterator[tuple[KnownDifferenceResult, str]]:
    """Yield (entry, suffix). Entries with the same `known_title` get the suffixes '', " (2)", " (3)" and so on."""
    count: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        key = (entry.framework, known_title(entry))
        count[key] += 1
        yield entry, f" ({count[key]})" if count[key] > 1 else ""


def _renamed(
    old: Sequence[KnownDifferenceResult], new: Sequence[KnownDifferenceResult]
) -> Iterator[tuple[tuple[Key, str], tuple[Key, str]]]:
    """Yield the old and the new (key, reason) of each entry with another key, because a reason has changed."""
    before, after = (
        {
            (
                entry.framework,
                entry.function,
                entry.kind,
                entry.cause,
                entry.not_finite,
                entry.versions,
                *entry.cases,
            ): (
                _known_key(entry, suffix),
                entry.reason,
            )
            for entry, suffix in numbered(entries)
        }
        for entries in (old, new)
    )
    yield from ((before[entry], after[entry]) for entry in before if entry in after and before[entry] != after[entry])


def _changed_parts(old: ParityReport, new: ParityReport) -> Iterator[Change]:
    before, after = (
        [*((name, "", "") for name in each.frameworks), *(("", "", case.name) for case in each.cases)]
        for each in (old, new)
    )
    for kind, here, there in (("gone", before, set(after)), ("new", after, set(before))):
        yield from (_changed(kind, key) for key in here if key not in there)
    for package in sorted(old.versions.keys() & new.versions.keys()):
        if old.versions[package] != new.versions[package]:
            yield _changed("version", (package, "", ""), old.versions[package], new.versions[package])


def _change(key: Key, old: _Entry | None, new: _Entry | None, strict_bits: bool) -> Change | None:
    if old is None:
        return None if new is None else _changed("new", key, "", new.text, new.wrong)
    if new is None:
        return _changed("gone", key, old.text)
    grew, moved = new.size > FACTOR * old.size, old.numbers != new.numbers
    same = old.verdict == new.verdict and not grew and not (moved and old.cause != new.cause)
    failure, why = _lost(old, new, strict_bits) if moved and not new.wrong else ("", "")
    worse = bool(failure) or (new.wrong and not (old.wrong and same))
    kind = "size" if grew or old.size > FACTOR * new.size else "numbers" if moved else ""
    kind = kind if old.verdict == new.verdict else "verdict"
    why = f"{why}. {ADVICE}" if why else ""
    return _changed(kind, key, old.text, new.text, worse, failure=failure, why=why) if kind else None


def _lost(old: _Entry, new: _Entry, strict_bits: bool) -> tuple[str, str]:
    is_same_entry = new.verdict == old.verdict and new.listing == old.listing
    if old.error != new.error and is_same_entry:
        problem = "the error message of this known difference differs from the baseline"
        reason = f"{problem}: {new.error!r} instead of {old.error!r}. If the new message is right, write a new baseline"
        return "other error", reason
    if new.exact:
        reason = "the exact result differs from the baseline, so the gradients or the call of this case have changed"
        return "not comparable", reason
    if new.agrees and (lost := [name for name in old.compared if name not in new.compared]):
        reason = (
            f"the function no longer returns the {' and the '.join(lost)}, but the baseline compared "
            f"{'both' if lost[1:] else 'the ' + lost[0]}"
        )
        return "not comparable", reason
    if strict_bits:
        problem = "the bits of this result differ from the baseline, and --strict-bits requires equal bits"
        return "other bits", f"{problem}. If the new result is right, write a new baseline"
    return "", ""


def _changed(kind: str, key: Key, before: str = "", after: str = "", worse: bool = False, **fields: str) -> Change:
    framework, what, case = key
    return Change.model_validate(
        {"kind": kind, "framework": framework, "what": what, "case": case}
        | {"before": before, "after": after, "worse": worse, **fields}
    )


# -- the entries of a report, one by one


def _entries(report: ParityReport, *, with_digests: bool = True) -> dict[Key, _Entry]:
    entries: dict[Key, _Entry] = {}
    for case in report.cases:
        digests = ", ".join(f"{stage} {digest[:8]}" for stage, digest in case.sha256.items())
        entries["", "the exact result", case.name] = _Entry("exact", digests, numbers=case.sha256, exact=True)
        differing = case.differing_stages
        verdict = "different bits" if differing else "the same bits"
        text = f"{verdict}: {' and '.join(differing)}" if differing else verdict
        entries["", "between frameworks", case.name] = _Entry(verdict, text, len(differing), differing, bool(differing))
        for framework, results in case.frameworks.items():
            for mode, result in results.by_mode.items():
                entries[framework, TITLES[mode], case.name] = _unified_clip(result)
            if results.native:
                key = (framework, compared_functions.title(NATIVE, results.native), case.name)
                entries[key] = _native(results.native, with_digests, _listing(report, framework, case.name))
    return entries | _known_entries(report.known)


def _unified_clip(result: UnifiedClipResult) -> _Entry:
    kind, ulps = result.verdict, result.ulps
    wrong = kind == "different"
    detail = f": {result.detail}" if wrong and ulps == math.inf else ""
    size = f", {ulps:.3g} ULP" if 0 < ulps < math.inf else ""
    # An equal result has the numbers of the exact result. A missing result has no numbers.
    numbers = result.sha256 if kind in ("close", "flushed", "different") else None
    return _Entry(f"{kind}{detail}", f"{kind}{size}{detail}", ulps, numbers, wrong, result.cause)


def _listing(report: ParityReport, framework: str, case: str) -> object:
    for entry in report.known:
        if entry.framework == framework and case in entry.cases:
            size = entry.listed_sizes.get(case, entry.listed_size)
            return size, entry.not_finite, entry.cause, entry.reason, entry.versions
    return None


def _native(result: NativeResult, with_digests: bool, listing: object) -> _Entry:
    kind = f": {result.kind}" if result.kind not in ("", "value", "touched") else ""
    verdict = f"{result.verdict}{kind}"
    text = " ".join(filter(None, (result.function, verdict))) + (f", {result.size:.2g}" if result.size else "")
    error = result.detail.partition("\n")[0] if result.verdict == "known" and result.kind in ERRORS else ""
    error = re.sub(r"0x[0-9a-fA-F]+|\b\d+\b", "#", error)  # without addresses, sizes and line numbers
    numbers = (result.function, result.norm, result.gradients, result.sha256 if with_digests else None, error)
    cause = " ".join([result.cause_kind, *re.findall(r"'[^']*'", result.cause)])  # the kind, and names of tensors
    return _Entry(
        verdict,
        text,
        result.size,
        numbers,
        wrong=bool(result.problem),
        cause=cause,
        compared=[name for name in ("norm", "gradients") if getattr(result, name) is not None],
        error=error if with_digests else "",
        agrees=result.verdict in ("equal", "no norm", "close"),
        listing=listing if result.verdict == "known" else None,
    )


def _known_key(entry: KnownDifferenceResult, suffix: str) -> Key:
    return entry.framework, f"{known_title(entry)}{suffix}", ""


def _known_entries(entries: Sequence[KnownDifferenceResult]) -> dict[Key, _Entry]:
    entries_by_key: dict[Key, _Entry] = {}
    for entry, number in numbered(entries):
        is_incomplete = entry.incomplete or entry.problem.startswith(NO_REASON)
        verdict = f"{'incomplete' if is_incomplete else 'stale'} known difference" if entry.problem else "listed"
        size = entry.size or 0.0
        shown = (f", size {size:.2g}" if size else "") if entry.cases else ", but no case shows this difference"
        text = f"{verdict}: {entry.problem}" if entry.problem else f"{verdict}{shown}"
        entries_by_key[_known_key(entry, number)] = _Entry(verdict, text, size, entry.problem, bool(entry.problem))
    return entries_by_key
