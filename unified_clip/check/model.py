"""The report of `unified-clip config check`.

To write its JSON Schema, type `python -m unified_clip.check.model > docs/check.schema.json`.
"""

from __future__ import annotations

from typing import Literal

from .._report_model import ReportModel, json_schema

Kind = Literal["drift", "missing", "unknown", "unused"]
Result = Literal["same", "near", "off", "drift", "missing", "unknown", "ignored"]

TITLES: dict[Kind, str] = {
    "drift": "A clip differs from the shared clip configuration",
    "missing": "A clip is missing",
    "unknown": "The effect of a clip cannot be read from the file",
    "unused": "A rule of the table check has no effect",
}
"""The kinds of findings, with their titles."""


class Difference(ReportModel):
    """A setting that differs between a clip and the clip configuration."""

    about: str
    found: str
    wanted: str


class Finding(ReportModel):
    """A clip that differs or is missing, a clip of unknown effect, or a rule of the table `check` without effect."""

    kind: Kind
    """"drift": the clip differs, is on in a file of `check.off`, or clips twice. "missing": a path or a pattern of
    `check.require` has no file with a clip, a file of `check.each` has no clip, or a file of `check.explicit` has only
    the trainer's default. Or an optimizer has no clip, and the file clips for another optimizer. "unknown": the effect
    of the clip cannot be read from the file. "unused": a rule of the table `check` has no effect.
    """

    path: str
    """The path of the file. It is relative if the file is below the working directory."""

    line: int
    column: int
    """The column, from 1."""

    clip: str
    """The code or key that clips: a function, an argument, or a trainer with its key. For "missing": the path, the
    rule, the trainer's default, or the step or optimizer without a clip. For "unused": the rule."""

    does: str
    """For "drift": the effect of the clip, in sentences. For other kinds: the reason of the finding, in sentences."""

    wanted: str
    """The effect of the clip configuration in sentences. Empty if the finding is about no clip."""

    differences: list[Difference]
    """The settings that differ. Empty for other kinds than "drift"."""

    effect: str
    """For "drift": the norm before and after the clip, and after the clip of the configuration, for the example
    gradients whose results differ most. Or the largest difference of two families, or the reason why the clip has to be
    off. Empty for other kinds."""

    edit: str
    """The text to write instead, advice in sentences, or both."""

    ignored: str | None = None
    """The reason in the entry of `check.ignore` that covers the finding, or null if no entry covers the finding."""

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class Clip(ReportModel):
    """A clip that was compared with the configuration, or whose effect is unknown."""

    path: str
    """The path of the file. It is relative if the file is below the working directory."""

    line: int
    column: int
    """The column, from 1."""

    clip: str
    """The code or key that clips: a function, an argument, or a trainer with its key."""

    format: str
    """The format of the file, such as "hf". Empty for a call in Python source, and if the format is unknown."""

    family: str
    """The family of the clip's rule. Empty if the rule has no family, or if the effect of the clip is unknown."""

    result: Result
    """"same": the clip has the effect of the configuration. "near": the clip differs in family or eps only, which
    `--nearest` or `check.nearest` accepts. "off": the trainer's own clip is off, as `check.off` requires. "ignored": an
    entry of `check.ignore` covers the finding. "drift", "missing" and "unknown": the clip has a finding of this kind.
    """


class Counts(ReportModel):
    """The numbers of files and clips in a check."""

    files: int
    """All checked files."""

    trainers: int
    """Files that are trainers' configurations."""

    sources: int
    """Python files that clip."""

    clips: int
    """Clips in trainers' configurations and Python files. Each clip was compared with the clip configuration, or is
    unknown."""

    bases: int
    """Base files, from which other configurations inherit. A base file is read together with the inheriting files."""

    unread: int
    """Files that were not read, such as large ones. Each of these files is a finding, or a note if its text names no
    clip."""


class CheckReport(ReportModel):
    """The result of `unified-clip config check`."""

    version: Literal[1]
    """The version of this format. It changes if a key is removed or changes its meaning, not if a key is added."""

    config: str
    """The file of the clip configuration."""

    wanted: list[str]
    """The configuration in sentences."""

    headline: str
    """The result in a sentence."""

    clips: list[Clip]
    """All clips, in the order of path, line and column."""

    findings: list[Finding]
    ignored: list[Finding]
    """Findings that an entry of `check.ignore` covers."""

    notes: list[str]
    """Sentences about facts that are no findings, such as differences that `--nearest` accepts, files without a clip of
    their own, and patterns that were not checked.
    """

    counts: Counts


if __name__ == "__main__":
    print(json_schema(CheckReport, "unified_clip config check report"), end="")
