"""Judge `unified-clip compare` by the planted mistakes of `tests/data/ports`.

    python tests/support/planted/scoreboard.py [TITLE ...] [--recordings FOLDER] [--json FILE] [--write] [--texts]

    right    the report names all mistakes, or calls a right port equal
    partly   it names one of several mistakes
    unknown  it reports a difference without a cause, or refuses to compare
    WRONG    it names a cause that is not planted, or calls a wrong port equal

`--recordings` keeps the recordings for the next call: delete the folder when the recorder changes. `--write` writes the
verdicts that are not right to `tests/data/ports/verdicts.toml`, which the test expects.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))  # to run this file alone

from support.planted import pairs
from support.planted.pairs import Mistake, Pair
from support.planted.recordings import Recordings

from unified_clip.compare.recordings import compare
from unified_clip.compare.report import model
from unified_clip.recording.runs import RunError

VERDICTS = ("right", "partly", "unknown", "WRONG")
ROUNDING = {"rounding", "rounding noise", "rounding that has grown"}

FIELDS: Mapping[str, tuple[str, ...]] = {
    "initial weights": ("weights",),
    "order of the elements": ("weights",),
    "order of the gates": ("weights",),
    "tied weights": ("parameters",),
    "weight decay before the clip": ("coupling of the decay", "weight decay"),
    "scale of the gradients": ("gradients", "accumulation"),
    "scale of the clipped gradients": ("loss scale",),
    "backward passes of a step": ("accumulation", "steps of the optimizer"),
    "gradients before the step": ("clearing",),
    "place of the clip": ("place of the clip",),
    "clip": ("clipped parameters", "place of the clip", "number of clips"),
    "clipped parameters": ("clipped parameters", "frozen parameters"),
    "trained parameters": ("updated parameters", "frozen parameters", "parameters"),
    "order of the networks": ("steps of the optimizer",),
    "initial_accumulator_value": ("accumulator",),
    "clips of a step": ("number of clips", "accumulation"),
    "gradients that share a norm": ("clip rule",),
    "clip rule": ("clip rule",),
    "norm type": ("clip rule",),
    "norm of the clip": ("clip rule", "coefficient"),
    "threshold": ("threshold",),
    "eps of the clip": ("eps of the clip",),
    "coefficient of the clip": ("coefficient", "clip rule"),
    "gradients of the step": ("place of the clip", "clip rule"),
    "optimizer": ("optimizer", "coupling of the decay"),
    "centered": ("optimizer",),
    "learning rate": ("learning rate", "schedule"),
    "learning rate schedule": ("schedule",),
    "momentum": ("momentum",),
    "nesterov": ("Nesterov",),
    "dampening": ("dampening",),
    "betas": ("betas",),
    "alpha": ("betas",),
    "eps": ("eps of the optimizer",),
    "eps is added": ("place of the optimizer's eps",),
    "initial squares": ("accumulator",),
    "bias correction": ("bias correction",),
    "weight decay": ("weight decay", "decayed parameters", "coupling of the decay"),
    "weight_decay": ("weight decay", "decayed parameters", "coupling of the decay"),
    "undecayed tensors": ("decayed parameters", "weight decay"),
    "decay added to": ("coupling of the decay", "optimizer"),
    "learning rates in the momentum": ("momentum", "optimizer"),
    "squares of": ("optimizer",),
    "weights after the step": ("updated parameters", "frozen parameters"),
    "step": ("steps of the optimizer",),
    "number of steps": ("steps of the optimizer",),
}
"""The words of `fields.toml` for the fields of `compare`. A field that is missing here names nothing. "Updates"
says that no rule explains them."""

DATA = {"other data or loss": ("data or loss",), "clip by hand": ()}
"""These kinds decide, not their fields. "Clip by hand" says that a clip was not compared."""


HEDGED = "This is only a possible cause"


class Score(NamedTuple):
    verdict: str
    headline: str
    named: Sequence[Sequence[str]]
    """For each named cause, the fields that it can mean."""

    texts: Sequence[str]


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


def score(pair: Pair, old: Path, new: Path) -> Score:
    try:
        report = model.build(compare(old, new))
    except RunError as error:  # the command refuses to compare the recordings
        return Score("unknown", str(error), [], [])
    findings = [each for each in report.findings if each.mistake not in ROUNDING]
    possible = [DATA.get(each.mistake, FIELDS.get(each.field, ())) for each in findings if HEDGED not in each.text]
    named = [fields for fields in possible if fields]
    texts = [f"{each.mistake}: {each.field}: {each.a} / {each.b}: {each.text}" for each in findings]
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
            title: score(pair, recordings.file(pair.old), recordings.file(pair.new)) for title, pair in of.items()
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
