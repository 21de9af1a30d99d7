"""The report of `unified-clip config check`.

To write its JSON Schema, type `python -m unified_clip.check.model > docs/check.schema.json`.
"""

from __future__ import annotations

from typing import Literal

from .._kit.report_model import ReportModel, json_schema

Kind = Literal["drift", "missing", "unknown", "unused"]
Result = Literal["same", "near", "drift", "missing", "unknown", "ignored", "accepted"]

TITLES: dict[Kind, str] = {
    "drift": "A clip differs from the shared clip configuration",
    "missing": "A clip is missing",
    "unknown": "The effect of a clip cannot be read from the file",
    "unused": "An entry of `check`, or of the accepted clips, has no effect",
}
"""The kinds of findings, with their titles."""


class Difference(ReportModel):
    """A setting that differs between a clip and the clip configuration."""

    about: str
    found: str
    wanted: str


class Finding(ReportModel):
    """A problem that the check found."""

    kind: Kind
    """"drift": the clip differs from the configuration. "missing": the check did not find a clip that `check.require`
    or `check.each` requires. "unknown": the effect of the clip cannot be
    read from the file. "unused": an entry of the table `check`, or of the accepted clips, has no effect."""

    path: str
    """The path of the file. The path is relative if the file is below the working directory."""

    line: int
    column: int
    """The column. The first column is 1."""

    clip: str
    """The code or key that clips: a function, an argument, or a trainer with its key. For "missing": the place that
    needs a clip, such as a path, a step or an optimizer. For "unused": the entry."""

    code: str = ""
    """The code of a call in Python source, or all settings of the file that might be clips. Otherwise ''."""

    does: str
    """For "drift": the effect of the clip. For "missing", "unknown" and "unused": the reason for the finding."""

    wanted: str
    """A description of the clip configuration's effect. The text is empty if the finding is not about a clip."""

    differences: list[Difference]
    """For "drift": the settings that differ. For all other kinds, the list is empty."""

    effect: str
    """For "drift": how much the clips differ, if they differ only in the family or the eps; or the parameters that only
    one of them clips. Otherwise, and for all other kinds, the text is empty."""

    edit: str
    """The correction: code or keys to write, sentences with advice, or both."""

    ignored: str | None = None
    """The reason of the `check.ignore` entry that covers the finding, or null."""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class Clip(ReportModel):
    """A clip that the check found, and the result of its comparison with the clip configuration."""

    path: str
    """The path of the file. The path is relative if the file is below the working directory."""

    line: int
    column: int
    """The column. The first column is 1."""

    clip: str
    """The code or key that clips: a function, an argument, or a trainer with its key."""

    format: str
    """The format of the file, such as "hf". The text is empty for an unknown format, and for a call in Python
    source."""

    family: str
    """The family of the clip's rule, such as "pytorch". The text is empty if the rule has no family, or if the effect
    of the clip is unknown."""

    result: Result
    """"same": the clip and the configuration have the same effect. "near": the clip differs only in its family or its
    eps. `--nearest` or `check.nearest` accepts this difference. "ignored": an entry of `check.ignore` covers the
    finding. "accepted": the file of `--accept` lists the clip, whose effect is unknown. If the clip has a finding, the
    result is the kind of the finding: "drift", "missing" or "unknown"."""


class Counts(ReportModel):
    """The numbers of files and clips in a check."""

    files: int
    """The number of checked files."""

    trainers: int
    """The number of files that configure a trainer."""

    sources: int
    """The number of Python files that clip."""

    clips: int
    """The number of clips in trainers' configurations and Python files, including clips of unknown effect."""

    unread: int
    """The number of files that the check did not read, for example because a file is too large. Each unread file gets a
    finding, or a note if the file mentions no clip."""


class CheckReport(ReportModel):
    """The result of `unified-clip config check`."""

    version: Literal[1]
    """The version of this format. It changes if a key is removed or gets a new meaning, but not if a key is added."""

    config: str
    """The file of the clip configuration."""

    wanted: list[str]
    """The configuration in sentences."""

    headline: str
    """The result in a sentence."""

    clips: list[Clip]
    """All clips, sorted by path, line and column."""

    findings: list[Finding]
    ignored: list[Finding]
    """Findings that an entry of `check.ignore` covers."""

    accepted: list[Finding]
    """Findings of unknown effect that the file of `--accept` lists."""

    notes: list[str]
    """Notes that are not findings, such as a difference that `--nearest` accepts, or a file that was not read."""

    counts: Counts


if __name__ == "__main__":
    print(json_schema(CheckReport, "unified_clip config check report"), end="")
