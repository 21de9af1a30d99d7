"""Judge `unified-clip compare` by the planted mistakes of `tests/data/ports`.

    python tests/support/planted/scoreboard.py [TITLE ...] [--recordings FOLDER] [--json FILE] [--write] [--texts]

    right    the report names all mistakes, or calls a right port equal
    partly   it names one of several mistakes
    unknown  it reports a difference, but no cause
    WRONG    it names a cause that is not planted, or calls a wrong port equal

`--recordings` keeps the recordings for the next call: delete the folder when the recorder changes. `--write` writes the
verdicts that are not right to `tests/data/ports/verdicts.toml`, which the test expects.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))  # to run this file alone

from support.planted import pairs
from support.planted.pairs import Mistake, Pair
from support.planted.recordings import Recordings

from unified_clip.recording.compare import RecordingComparison, compare
from unified_clip.recording.report import model

VERDICTS = ("right", "partly", "unknown", "WRONG")
ROUNDING = {"rounding", "rounding noise", "rounding that has grown"}

NAMES: Mapping[str, tuple[str, ...]] = {
    "per tensor for global": ("clip rule",),
    "per group for global": ("clip rule",),
    "another rule": ("clip rule",),
    "another norm type": ("clip rule",),
    "rows": ("clip rule",),
    "another threshold": ("threshold",),
    "another eps of the clip": ("eps of the clip",),
    "inexact norm": ("coefficient",),
    "given norm": ("coefficient",),
    "16 bits": ("coefficient",),
    "not clipped": ("coefficient", "clip rule"),
    "clipped below the threshold": ("coefficient", "clip rule"),
    "left out": ("clipped parameters", "frozen parameters"),
    "repeated parameter": ("clipped parameters",),
    "parameters of another network": ("clipped parameters",),
    "left-out clip": ("clipped parameters", "place of the clip", "number of clips"),
    "clipping after the step": ("place of the clip",),
    "the clip does not reach the step": ("place of the clip", "clip rule"),
    "clipped twice": ("number of clips",),
    "several clips before a step": ("number of clips", "accumulation"),
    "clipping before unscaling": ("loss scale",),
    "not finite in one run": ("loss scale", "data or loss"),
    "scaled gradients": ("gradients", "accumulation"),
    "gradient accumulation": ("accumulation", "steps of the optimizer"),
    "gradients are not cleared": ("clearing",),
    "untransposed weight": ("weights",),
    "other initial weights": ("weights",),
    "swapped": ("weights",),
    "tied weights": ("parameters",),
    "other data or loss": ("data or loss",),
    "weight decay before the clip": ("coupling of the decay", "weight decay"),
    "shifted step": ("schedule", "data or loss"),
    "skipped step": ("steps of the optimizer",),
    "another order of networks": ("steps of the optimizer",),
    "weights are not updated": ("updated parameters", "frozen parameters"),
    "squared rows": ("optimizer",),
    "another place of the optimizer's eps": ("place of the optimizer's eps",),
}
"""The fields that a cause of `compare` names. It names any of them. A cause that is missing here names none, such as
"other gradients", or "clip by hand", which says that a clip was not compared."""

SETTINGS: Mapping[str, tuple[str, ...]] = {
    r"uses the optimizer": ("optimizer", "coupling of the decay"),
    r"\b(learning rate|lr)\b": ("learning rate", "schedule"),
    r"\bmomentum\b": ("momentum",),
    r"\bdampening\b": ("dampening",),
    r"\bnesterov\b": ("Nesterov",),
    r"\b(betas?|beta_?[12]|rho|alpha)\b": ("betas",),
    r"\beps(ilon)?\b": ("eps of the optimizer",),
    r"\binitial (mean or sum of squared gradients|accumulator)": ("accumulator",),
    r"\bbias correction\b": ("bias correction",),
    r"\bhas no weight decay for\b": ("decayed parameters", "weight decay"),
    r"\bweight[ _]decay \S*\d": ("weight decay", "decayed parameters"),
}
"""The fields that a text about another optimizer or learning rate names, by the words of the text. It names all."""

OF_SETTINGS = {"another optimizer", "another learning rate"}
HEDGED = "This is only a possible cause"


class Score(NamedTuple):
    verdict: str
    headline: str
    named: Sequence[Sequence[str]]
    """For each named cause, the fields that it can mean."""

    texts: Sequence[str]


def named_fields(cause: str, text: str) -> Iterator[tuple[str, ...]]:
    """Return the fields that each part of a text names. Advice on what to compare names none."""
    if HEDGED in text:
        return
    if cause in OF_SETTINGS:
        yield from (fields for words, fields in SETTINGS.items() if re.search(words, text, re.IGNORECASE))
    elif cause in NAMES:
        yield NAMES[cause]


def judge(mistakes: Sequence[Mistake], named: Iterable[Sequence[str]], *, same: bool) -> str:
    """Return the verdict on a report that names the fields `named`, or calls the runs the same."""
    left = list(mistakes)
    for fields in named:
        meant = [mistake for mistake in mistakes if {*mistake.fields} & {*fields}]
        if not meant:
            return "WRONG"
        new = next((mistake for mistake in meant if mistake in left), None)
        if new:
            left.remove(new)
    if not left:
        return "right" if mistakes or same else "unknown"
    if len(left) < len(mistakes):
        return "partly"
    return "WRONG" if same else "unknown"


def score(pair: Pair, comparison: RecordingComparison) -> Score:
    report = model.build(comparison)
    findings = [
        (finding.mistake, finding.text)
        for divergence in report.divergences
        for finding in divergence.findings
        if finding.mistake not in ROUNDING
    ]
    named = [fields for cause, text in findings for fields in named_fields(cause, text)]
    texts = [f"{cause}: {text}" for cause, text in findings]
    return Score(judge(pair.mistakes, named, same=report.same), report.headline, named, texts)


def sums(scores: Mapping[str, Score], of: Mapping[str, Pair]) -> dict[str, dict[str, int]]:
    """Count the verdicts by the number of planted mistakes."""
    kinds = ("right ports", "one mistake", "several mistakes")
    counted = {
        kind: Counter(scores[title].verdict for title, pair in of.items() if min(len(pair.mistakes), 2) == number)
        for number, kind in enumerate(kinds)
    }
    counted["all"] = Counter(score.verdict for score in scores.values())
    return {kind: {verdict: count[verdict] for verdict in VERDICTS} for kind, count in counted.items()}


def as_data(scores: Mapping[str, Score], of: Mapping[str, Pair]) -> dict[str, object]:
    judged = {
        title: {"planted": [mistake._asdict() for mistake in of[title].mistakes], **score._asdict()}
        for title, score in scores.items()
    }
    return {"sums": sums(scores, of), "pairs": judged}


def write_verdicts(scores: Mapping[str, Score]) -> None:
    lines = ["# Written by tests/support/planted/scoreboard.py: the verdicts that are not right.\n\n"]
    lines += [f"{json.dumps(title)} = {json.dumps(s.verdict)}\n" for title, s in scores.items() if s.verdict != "right"]
    pairs.VERDICTS.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("titles", nargs="*", metavar="TITLE")
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--texts", action="store_true", help="also print the headline and the causes")
    options = parser.parse_args()
    every = pairs.read()
    if unknown := [title for title in options.titles if title not in every]:
        parser.error(
            f"tests/data/ports has no pair with the title {unknown[0]!r}. Run without titles to list them all."
        )
    if options.write and options.titles:
        parser.error("--write needs the verdicts of all pairs. Leave out the titles.")
    of = {title: every[title] for title in options.titles or every}
    with tempfile.TemporaryDirectory() as folder:
        recordings = Recordings(options.recordings or Path(folder), of.values())
        scores = {
            title: score(pair, compare(recordings.file(pair.old), recordings.file(pair.new)))
            for title, pair in of.items()
        }
    for title, judged in scores.items():
        print(f"{judged.verdict:8} {title}")
        if options.texts:
            print(*(f"         {text}" for text in (judged.headline, *judged.texts)), sep="\n")
    for kind, counts in sums(scores, of).items():
        print(f"{kind:16}", *(f"{count:4} {verdict}" for verdict, count in counts.items()))
    if options.json:
        options.json.write_text(json.dumps(as_data(scores, of), indent=1), encoding="utf-8")
    if options.write:
        write_verdicts(scores)


if __name__ == "__main__":
    main()
