"""The message of an error that every rank raises because their calls differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

SPEAKERS = 4
"""Most ranks whose texts an error is made from. Ranks with equal texts count as one."""

ELEMENTS = "the number of gradient elements"

CALL = "the number of this call in its process group"

REMEDY = (
    "pass ownership: 'replicated' if every rank has a copy, 'distinct' if ranks have different parameters or parts, or "
    "a function of a parameter that returns whether this rank counts it (see unified_clip.ownership)"
)


def describe(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> str:
    """Return the message of an error from what ranks sent about a call that is not the same everywhere."""
    rejected = [(ranks, text["remarks"]["rejected"]) for ranks, text in texts if "rejected" in text["remarks"]]
    if rejected:
        reasons = "; ".join(f"{_named(ranks)} rejected this call: {reason}" for ranks, reason in rejected)
        return f"{reasons}. Correct it there. No gradient was changed on any rank."
    found = [*_differing_arguments(texts), *_differing_layouts(texts)]
    if not found:
        return _differing_copies(texts)
    names = [(ranks, text["remarks"].get("function")) for ranks, text in texts]
    if len({name for _, name in names}) > 1:
        found.append(", ".join(f"{_named(ranks)} called {name}" for ranks, name in names if name))
    if any(text["arguments"].get(ELEMENTS) != texts[0][1]["arguments"].get(ELEMENTS) for _, text in texts):
        found += [
            f"{_named(ranks)} has {text['remarks']['missing']}: set gradients of zeros there, or leave check_numel out"
            for ranks, text in texts
            if "missing" in text["remarks"]
        ]
    calls = {text["arguments"].get(CALL) for _, text in texts}
    if len(calls) > 1:
        found.append(
            "A rank skipped a call, or went on after an error, so ranks are not at the same step. Every later call of "
            "this process group raises too. Restart all ranks from the same checkpoint; in a running job, also pass a "
            "new process group as process_group, whose calls are counted from 1"
        )
    else:
        found.append("Make the same call on every rank, and list every parameter, with a gradient or without")
    return f"the ranks disagree about {'. '.join(found)}. No gradient was changed."


def _differing_arguments(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> list[str]:
    names = dict.fromkeys(name for _, text in texts for name in text["arguments"])
    values = {name: [(ranks, text["arguments"].get(name, "None")) for ranks, text in texts] for name in names}
    return [f"{name}: {_by_value(each)}" for name, each in values.items() if len({value for _, value in each}) > 1]


def _differing_layouts(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> list[str]:
    """Return the first parameter that is another one."""
    layouts = [(ranks, text["layout"]) for ranks, text in texts if text["layout"] is not None]
    for each in zip(*(layout for _, layout in layouts), strict=False):
        if len({label for _, label in each}) > 1:
            labels = [(ranks, label) for (ranks, _), (_, label) in zip(layouts, each, strict=True)]
            return [f"the parameter at {each[0][0]}: {_by_value(labels)}"]
    return []


def _differing_copies(texts: Sequence[tuple[list[int], dict[str, Any]]]) -> str:
    places = dict.fromkeys(place for _, text in texts for place in text["copies"])
    values = {place: [(ranks, text["copies"].get(place)) for ranks, text in texts] for place in places}
    differing = {place: each for place, each in values.items() if len({value for _, value in each}) > 1}
    more = f" and {len(differing) - SPEAKERS} more" if len(differing) > SPEAKERS else ""
    named = ", ".join(list(differing)[:SPEAKERS]) + more
    missing = next(
        (
            f"{_named(ranks)} has none at {place}. "
            for place, each in differing.items()
            for ranks, value in each
            if value is None
        ),
        "",
    )
    return (
        f"the gradients at {named} differ between ranks. {missing}They were taken for copies, since they are plain "
        f"tensors beside gradients that are distributed over all ranks. To declare what they are, {REMEDY}. No "
        "gradient was changed."
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks[:4]))}{' and others' * (len(ranks) > 4)}"


def _by_value(values: Iterable[tuple[Sequence[int], str]]) -> str:
    """Which ranks have which value."""
    ranks: dict[str, list[int]] = {}
    for members, value in values:
        ranks.setdefault(value, []).extend(members)
    return "; ".join(f"{value} on {_named(sorted(members))}" for value, members in ranks.items())


def shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
