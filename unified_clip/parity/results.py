"""The results of a run of a suite, and what its exit status is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from .judge.verdict import STAGES, Verdict
from .judge.worst_element import WorstElement
from .known.entries import Judgement, KnownDifferenceStatus, NativeDeviation
from .modes import HOST
from .report.baseline import Change
from .suite.cases import Case


@dataclass(frozen=True)
class FrameworkResult:
    """The results of one case on one framework."""

    verdicts: dict[str, Verdict]
    """unified_clip against exact arithmetic, by mode."""

    digests: Mapping[str, Mapping[str, str]]
    """SHA-256 of unified_clip's results, by mode and stage. A mode without a result has none."""

    native: NativeDeviation | None = None
    judgement: Judgement | None = None
    """Of the framework's own function."""

    problem: str = ""
    """Why the deviation of the framework's own function fails the run."""

    failure: Verdict | None = None
    """Set if the framework's own function has no result."""

    details: Mapping[str, WorstElement] = field(default_factory=dict)
    """By mode. A result that does not differ has none."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of the call, by mode."""


@dataclass(frozen=True)
class CaseResult:
    """The exact result of one case, and the results of every framework."""

    case: Case
    digests: dict[str, str]
    """SHA-256 of the exact result, by stage."""

    frameworks: dict[str, FrameworkResult]

    @property
    def differing_stages(self) -> list[str]:
        """The stages at which unified_clip's bits on the host path differ between frameworks."""
        digests = [result.digests[HOST] for result in self.frameworks.values() if HOST in result.digests]
        return [stage for stage in STAGES if len({each.get(stage) for each in digests}) > 1]


@dataclass(frozen=True)
class ParityRun:
    """The results of a suite."""

    frameworks: Sequence[str]
    versions: dict[str, str]
    cases: list[CaseResult]
    known: Sequence[KnownDifferenceStatus] = ()
    may_be_missing: Sequence[str] = ()
    titles: Mapping[str, str] = field(default_factory=dict)
    """By framework, the name of its own functions in tables."""

    suite: str = ""
    """The path of the suite, as the user typed it."""

    started: datetime = datetime(1970, 1, 1, tzinfo=UTC)

    changes: Sequence[Change] | None = None
    """Changes since the baseline. None without a baseline."""

    notes: Sequence[str] = ()
    """Lines for the reader that change no verdict."""

    def verdicts(self) -> list[tuple[str, Verdict]]:
        """Return every verdict on unified_clip, with its framework."""
        return [
            (framework, verdict)
            for case in self.cases
            for framework, result in case.frameworks.items()
            for verdict in result.verdicts.values()
        ]

    def failures(self) -> list[tuple[str, Verdict]]:
        """Return why functions of the frameworks have no result, each with its framework."""
        return [
            (framework, result.failure)
            for case in self.cases
            for framework, result in case.frameworks.items()
            if result.failure
        ]

    @property
    def exit_code(self) -> int:
        """0: pass. 1: a difference; with a baseline, one that is new or larger. 3: a result is missing."""
        worse = self.differs if self.changes is None else any(change.worse for change in self.changes)
        return 1 if worse else 3 if self.incomplete else 0

    @property
    def differs(self) -> bool:
        """Whether there is a difference that should not be there, in the baseline or not."""
        return self.ours_differ or self.natives_differ

    @property
    def ours_differ(self) -> bool:
        """Whether unified_clip differs from exact arithmetic, or between frameworks."""
        return any(verdict.kind == "different" for _, verdict in self.verdicts()) or any(
            case.differing_stages for case in self.cases
        )

    @property
    def natives_differ(self) -> bool:
        """Whether the frameworks' own functions differ from the list of known differences."""
        results = [result for case in self.cases for result in case.frameworks.values()]
        return any(result.problem for result in results) or any(status.problem for status in self.known)

    @property
    def incomplete(self) -> bool:
        """Whether results are missing that may not be, or nothing was compared."""
        return not self.compared or any(
            verdict.is_failure and not (verdict.kind == "missing" and framework in self.may_be_missing)
            for framework, verdict in [*self.verdicts(), *self.failures()]
        )

    @property
    def compared(self) -> bool:
        """Whether anything was compared."""
        return not all(verdict.is_failure for _, verdict in self.verdicts()) or any(
            result.judgement for case in self.cases for result in case.frameworks.values()
        )
