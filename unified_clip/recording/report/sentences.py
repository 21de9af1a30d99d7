"""Write the sentences of the report that compares two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ..._kit.display import counted, enumeration
from ...causes.cause import Cause, CauseKind, names_text
from ..causes.before_clips import OUTSIDE_THE_CLIP
from ..causes.order_of_calls import count_of
from ..compare import RecordingComparison
from ..divergence import Divergence, noise
from ..lines import failure
from ..pairs.calls import orders_of
from ..recorded_run import RecordedCall, RecordedRun
from ..rounding import ROUNDING
from .largest_differences import agreements, allowed, format_distance, largest_differences
from .losses import loss_advice, loss_sentences
from .remedies import remedies
from .unexplained import other_parameters, where_to_look, without_cause

FIRST, LATER, SAME = "The runs first differ", "The runs also differ", "The runs are the same"
RULES = {"global": "total norm", "each": "per tensor", "groups": "per group", "slices": "per slice"}

COUNTS = {
    "calls": "clip calls",
    "clips": "clip calls before the step of the optimizer",
    "norms": "norms",
    "steps": "steps of optimizers",
    "backward passes": "backward passes before this step",
}


INTERRUPTED = (-2, 130)
"""The exit statuses after Ctrl-C, which may end a recording on purpose."""


class DivergenceText(NamedTuple):
    divergence: Divergence
    what: str
    why: list[str]


def report_lines(comparison: RecordingComparison) -> list[str]:
    described = list(with_remedies(describe(comparison), remedies(comparison)))
    return [
        headline(comparison),
        *map(describe_run, comparison.runs),
        *described[comparison.first is None :],
        *largest_differences(comparison),
        *loss_sentences(comparison),
        *loss_advice(comparison),
        *where_to_look(comparison),
        *fields_not_compared(comparison),
    ]


def headline(comparison: RecordingComparison) -> str:
    if comparison.first is None:
        return f"{SAME}: {counted(len(comparison.pairs), 'call')}{allowed(comparison)}."
    causes = enumeration([cause.kind for cause in comparison.divergences[comparison.first]])
    return f"The runs differ from step {comparison.first.step} on: {causes or 'the cause is unknown'}."


def fields_not_compared(comparison: RecordingComparison) -> list[str]:
    names = ", ".join(comparison.not_compared)
    return [f"Not compared, although these recorded fields differ: {names}."] if names else []


def with_remedies(described: Sequence[str], remedies: Mapping[CauseKind, Sequence[str]]) -> Iterator[str]:
    """Put advice about a cause directly after the first sentence about it."""
    rest = {kind.lower(): advice for kind, advice in remedies.items()}
    for sentence in described:
        yield sentence
        yield from rest.pop(sentence.partition(":")[0].lower(), ())
    for advice in rest.values():
        yield from advice


def describe_run(run: RecordedRun) -> str:
    text = f"{run.path}: {counted(run.recorded, 'call')}."
    if run.header.exit_status not in INTERRUPTED and (failed := failure(run.header.exit_status)):
        text += f" {failed}"
    if run.incomplete_line:
        text += " The last line is incomplete."
    if run.recorded > len(run.lines):
        text += f" Compared: {counted(len(run.lines), 'call')}. The calls in a loop over parameters count as one. "
        text += "Calls without gradients, and steps that one run skips, are left out."
    return f"{text} {_about_ranks(run)}" if run.others else text


def _about_ranks(run: RecordedRun) -> str:
    count = len(run.others) + 1
    for other in run.others:
        for own, line in zip(run.lines, other, strict=False):
            if (own.call, own.threshold, own.norm, own.coef) != (line.call, line.threshold, line.norm, line.coef):
                what = "norm" if own.norm != line.norm else "clip"
                return (
                    f"The run has {count} processes. Only the first process is compared. At step {own.step}, the "
                    f"{what} is {_clip_text(own, what)} in the first process, and {_clip_text(line, what)} in process "
                    f"{line.process}."
                )
        if len(run.lines) != len(other):
            calls = counted(len(other), "call")
            return f"The run has {count} processes. Only the first process is compared. Another process has {calls}."
    return f"The run has {count} processes, with the same norms and coefficients. Only the first process is compared."


def _clip_text(line: RecordedCall, what: str) -> str:
    return f"{line.norm}" if what == "norm" else f"{line.call} with threshold {line.threshold}"


def describe(comparison: RecordingComparison) -> list[str]:
    explained = [sentence for each in explanations(comparison) for sentence in (each.what, *each.why)]
    return [*explained, *notes(comparison)]


def explanations(comparison: RecordingComparison) -> Iterator[DivergenceText]:
    """Explain each cause once."""
    steps: dict[Cause, int] = {}
    earlier: list[str] = []
    for number, (divergence, findings) in enumerate(comparison.divergences.items()):
        what = f"{LATER if number else FIRST} at step {divergence.step}: {_format_divergence(divergence, comparison)}."
        why = [
            f"Same cause as at step {steps[each]}: {each.title}." if each in steps else str(each) for each in findings
        ]
        why = why or [without_cause(comparison, divergence)]
        yield DivergenceText(divergence, what, [sentence for sentence in why if sentence not in earlier])
        steps |= {each: divergence.step for each in findings if each not in steps}
        earlier += why


def notes(comparison: RecordingComparison) -> list[str]:
    if comparison.first is None:
        unknown = [*_other_counts(comparison), *_uncompared_noise(comparison), *_unknown_coefficients(comparison)]
        unknown += [*_unknown_thresholds(comparison), *_warnings(comparison)]
        return [headline(comparison), *_unreported_eps(comparison), *unknown]
    notes = [*_rearranged(comparison), *_uncompared_noise(comparison), *_unknown_coefficients(comparison)]
    notes += _warnings(comparison)
    without_causes = [without_cause(comparison, each) for each, causes in comparison.divergences.items() if not causes]
    other = other_parameters(comparison)
    parameters = [other] if other and other not in without_causes else []
    sentences = [*parameters, *_unreported_eps(comparison), *agreements(comparison), *notes]
    if not all(comparison.divergences.values()) and not (comparison.a.header.norms and comparison.b.header.norms):
        hint = "To see which parameters differ, record both runs with norms=True, or --norms."
        return [hint, *sentences]
    return sentences


def _uncompared_noise(comparison: RecordingComparison) -> list[str]:
    is_ignored = comparison.max_ulp is None or comparison.max_ulp >= ROUNDING
    names = noise(comparison.pairs, 0.0) if is_ignored else []
    if not names:
        return []
    has_adam = any("adam" in step.optimizer.lower() for run in comparison.runs for step in run.optimizer_steps)
    is_possible = has_adam or not all(run.optimizer_steps for run in comparison.runs)
    text = (
        f"Not compared: the gradients of {names_text(names)}. These gradients, or parts of them, are only rounding "
        f"noise: their norms are at most {ROUNDING} ULP of the total norm."
    )
    effect = " This noise changes the weights, with Adam by up to the learning rate."
    return [f"{text}{effect}" if is_possible else text]


def _warnings(comparison: RecordingComparison) -> list[str]:
    return [f"ClipWarning in {run.name}: {text.removesuffix('.')}." for run in comparison.runs for text in run.warnings]


def _unreported_eps(comparison: RecordingComparison) -> list[str]:
    if comparison.unreported_eps is None:
        return []
    divergence, cause = comparison.unreported_eps
    max_ulp = comparison.max_ulp or 0.0
    allowed = f", which --max-ulp {max_ulp:g} allows" if (divergence.ulps or 0.0) <= max_ulp else ""
    difference = _format_divergence(divergence, comparison)
    return [f"{cause} This difference first appears at step {divergence.step}: {difference}{allowed}."]


def _unknown_thresholds(comparison: RecordingComparison) -> list[str]:
    pairs = comparison.pairs
    count = sum(pair.a.rule is not None and None in (pair.a.threshold, pair.b.threshold) for pair in pairs)
    where = f"{count} of {counted(len(pairs), 'call')}"
    reason = "at least one run recorded no number for the threshold"
    return [f"Thresholds were not compared in {where}: {reason}."] if count else []


def _other_counts(comparison: RecordingComparison) -> list[str]:
    for pair in comparison.pairs:
        old, new = count_of(pair.a), count_of(pair.b)
        if not pair.names and old and new and old != new:
            place = f"At step {pair.a.step}, the runs clip {old} and {new} gradients with the same total norm"
            advice = "To compare each gradient, record both runs with norms=True, or --norms"
            return [f"Not compared: individual gradients. {place}. {advice}."]
    return []


def _rearranged(comparison: RecordingComparison) -> list[str]:
    orders = orders_of(comparison.pairs[0]) if comparison.pairs else {}
    names = [name for name, order in orders.items() if order == "rearranged"]
    kinds = {each.kind for each in comparison.findings}
    if not names or "other initial weights" in kinds or not kinds <= OUTSIDE_THE_CLIP:
        return []
    return [
        f"Not compared: the order of the elements of {names_text(names)}. Both runs have the same elements in "
        "different orders. In a GRU, the order of the gates differs between Keras and PyTorch: see "
        "docs/my-loss-curve-differs.md."
    ]


def _unknown_coefficients(comparison: RecordingComparison) -> list[str]:
    pairs = comparison.pairs
    count = sum(any(None in line.coefs() for line in (pair.a, pair.b)) for pair in pairs)
    where = f"{count} of {counted(len(pairs), 'call')}"
    reason = "in one run, the clipped gradients are not a multiple of the gradients, or the threshold is an array"
    return [f"Not all coefficients were compared in {where}: {reason}."] if count else []


def _format_divergence(divergence: Divergence, comparison: RecordingComparison) -> str:
    names = {"weight": "the norm of the weight", "gradient": "the norm of the gradient"}
    if divergence.stage == "gradient" and divergence.parameter is None:
        sides = (divergence.a, divergence.b)
        unmatched = [", ".join(map(repr, side)) or "none" for side in sides if isinstance(side, tuple)]
        return f"parameters only in the first run: {', and only in the second run: '.join(unmatched)}"
    if divergence.stage == "loss":
        return f"{divergence.parameter} is {divergence.a} and {divergence.b}"
    if divergence.stage in COUNTS:
        return f"{divergence.a} and {divergence.b} {COUNTS[divergence.stage]}"
    if divergence.stage == "gradients cleared":
        return f"only the {'first' if divergence.a else 'second'} run clears its gradients before this step"
    if divergence.stage == "optimizer" and divergence.parameter:
        of_optimizer = f"{divergence.parameter} of the optimizer"
        return f"{of_optimizer} is {divergence.a} in the first run, and {divergence.b} in the second run"
    if divergence.stage == "rule":
        a, b = (RULES.get(str(side), side) for side in (divergence.a, divergence.b))
        return f"the rules are {a} and {b}"
    whose = ""
    if name := divergence.parameter:
        other = next((pair.names[name] for pair in comparison.pairs if name in pair.names), name)
        whose = f" of {name!r}" + f" ({other!r} in {comparison.b.name})" * (other != name and not other.isdecimal())
    if divergence.stage == "coefficient" and divergence.ulps is None:
        side, known = ("first", divergence.b) if divergence.a is None else ("second", divergence.a)
        other = "second" if side == "first" else "first"
        return (
            f"in the {side} run, the clipped gradients{whose} are not a multiple of the gradients. The coefficient of "
            f"the {other} run is {known}"
        )
    text = f"{names.get(divergence.stage, divergence.stage)}{whose} is {divergence.a} and {divergence.b}"
    return text if divergence.ulps is None else f"{text}, {format_distance(divergence.ulps, divergence.relative)}"
