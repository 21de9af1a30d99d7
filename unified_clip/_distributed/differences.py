from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

MAX_TEXTS = 4

ELEMENTS = "the number of gradient elements"

PARAMETERS = "the number of parameters"

CALL = "the number of calls that use this process group"

REMEDY = (
    "Pass ownership='replicated' if every rank has a copy of all parameters, or 'distinct' if ranks have different "
    "parameters or shards. Or pass a function that gets a parameter and returns whether this rank owns the parameter "
    "(see unified_clip.ownership)"
)


def describe(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> str:
    """For each different call, `texts` has (ranks that made the call, description of the call)."""
    rejected = [(ranks, text["remarks"]["rejected"]) for ranks, text in texts if "rejected" in text["remarks"]]
    if rejected:
        reasons = "; ".join(f"{format_ranks(ranks)} rejected this call: {reason}" for ranks, reason in rejected)
        places = " and ".join(format_ranks(ranks) for ranks, _ in rejected)
        return f"{reasons}. Correct the call on {places}. No gradient was changed on any rank."
    differing = [*_differing_arguments(texts), *_differing_layouts(texts)]
    if not differing:
        return _differing_copies(texts)
    sentences = [f"the ranks disagree about {'. The ranks also disagree about '.join(differing)}"]
    names = [(ranks, text["remarks"].get("function")) for ranks, text in texts]
    if len({name for _, name in names}) > 1:
        sentences.append(f"The called functions are {_by_value((ranks, name) for ranks, name in names if name)}")
    if any(text["arguments"].get(ELEMENTS) != texts[0][1]["arguments"].get(ELEMENTS) for _, text in texts):
        sentences += [
            f"There is {text['remarks']['missing']} on {format_ranks(ranks)}. Set gradients of zeros for these "
            "parameters, or leave check_numel out"
            for ranks, text in texts
            if "missing" in text["remarks"]
        ]
    calls = {text["arguments"].get(CALL) for _, text in texts}
    if len(calls) > 1:
        sentences.append(
            "A rank skipped a call, or went on after an error, so ranks are not at the same step. Every later call of "
            "this process group raises an error, too. Restart all ranks from the same checkpoint. Or load the same "
            "checkpoint on all ranks, and pass a new process group, whose calls are counted from 1"
        )
    else:
        sentences.append("Make the same call on every rank, and list all parameters, also those without a gradient")
    return f"{'. '.join(sentences)}. No gradient was changed."


def _differing_arguments(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> list[str]:
    names = dict.fromkeys(name for _, text in texts for name in text["arguments"])
    values = {name: [(ranks, text["arguments"].get(name, "None")) for ranks, text in texts] for name in names}
    return [f"{name}: {_by_value(sent)}" for name, sent in values.items() if len({value for _, value in sent}) > 1]


def _differing_layouts(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> list[str]:
    layouts = [(ranks, text["layout"]) for ranks, text in texts if text["layout"] is not None]
    for parameters in zip(*(layout for _, layout in layouts), strict=False):
        if len({label for _, label in parameters}) > 1:
            labels = [(ranks, label) for (ranks, _), (_, label) in zip(layouts, parameters, strict=True)]
            return [f"the parameter at {parameters[0][0]}: {_by_value(labels)}"]
    return []


def _differing_copies(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> str:
    places = {key: place for _, text in reversed(texts) for key, (place, _) in text["copies"].items()}
    keys = dict.fromkeys(key for _, text in texts for key in text["copies"])
    values = {places[key]: [(ranks, text["copies"].get(key, (None, None))[1]) for ranks, text in texts] for key in keys}
    differing = {place: sent for place, sent in values.items() if len({value for _, value in sent}) > 1}
    more = f" and {len(differing) - MAX_TEXTS} more" if len(differing) > MAX_TEXTS else ""
    named = ", ".join(list(differing)[:MAX_TEXTS]) + more
    missing = next(
        (
            f"The gradient at {place} is missing on {format_ranks(ranks)}. "
            for place, sent in differing.items()
            for ranks, value in sent
            if value is None
        ),
        "",
    )
    return (
        f"the gradients at {named} differ between ranks. {missing}These gradients are plain tensors. "
        "Other gradients of the call are distributed over all ranks, so plain tensors must be equal on all ranks. "
        f"{REMEDY}. No gradient was changed."
    )


def format_ranks(ranks: Sequence[int]) -> str:
    plural, more = "s" * (len(ranks) > 1), " and others" * (len(ranks) > 4)
    return f"rank{plural} {', '.join(map(str, ranks[:4]))}{more}"


def _by_value(values: Iterable[tuple[Sequence[int], str]]) -> str:
    ranks: dict[str, list[int]] = {}
    for members, value in values:
        ranks.setdefault(value, []).extend(members)
    return "; ".join(f"{value} on {format_ranks(sorted(members))}" for value, members in ranks.items())


def format_value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
