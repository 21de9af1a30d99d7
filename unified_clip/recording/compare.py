"""Where two recorded runs part: the first step, the first parameter, and by how much."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import loops
from .rounding import GROWTH, ROUNDING, Distance, distance, same, single, ulps_at
from .runs import Line, Parameter, Recording, RunError, check_clipped, read, root_of_powers

Stage = Literal[
    "calls", "error", "rule", "norm type", "threshold", "weight", "gradient", "norms", "norm", "coefficient", "clipped"
]
"""What differs; "norms" is how many there are, "clipped" whether gradients were changed."""

NUMBERS: tuple[Stage, ...] = ("weight", "gradient", "norm", "coefficient")
"""The stages that are numbers, in the order in which one follows from another."""

Names = Mapping[str, str]
"""From a parameter's name in one run to its name in the other."""


@dataclass(frozen=True)
class Difference:
    """Two things that should be the same."""

    step: int
    stage: Stage
    a: object
    b: object
    parameter: str | None = None
    """Its name in the first run, or its position where names were not recorded."""

    distance: Distance | None = None
    """None for what is no number."""

    scaled: float | None = None
    """In ULP of the size at which the number was rounded: the total norm for gradients, the greatest norm so far for a
    weight. None for what is no number."""


@dataclass(frozen=True)
class Pair:
    """A line of each run, which belong together: the same step, and the same place in it."""

    a: Line
    b: Line
    names: Names
    """Of the parameters that both have."""

    index: int
    """The place of the lines in their runs."""


@dataclass(frozen=True)
class Agreement:
    """How far one stage is the same."""

    stage: Stage
    compared: int
    """How many numbers."""

    until: int | None
    """The first step at which they differ; None where they never do."""

    greatest: Distance


@dataclass(frozen=True)
class Finding:
    """What explains a difference, checked against the numbers."""

    mistake: str
    text: str


@dataclass(frozen=True)
class Comparison:
    """Two runs beside each other."""

    a: Recording
    b: Recording
    max_ulp: float
    pairs: list[Pair]
    partings: Mapping[Difference, list[Finding]]
    """With what explains each, if anything does: the first difference; the first that is more than rounding, and more
    than rounding that has grown; the first of each fact that has nothing to do with rounding, such as the threshold.
    Empty where the runs are the same."""

    agreements: list[Agreement]

    @property
    def first(self) -> Difference | None:
        """None where the runs do not part."""
        return next(iter(self.partings), None)

    @property
    def findings(self) -> list[Finding]:
        """All of them, each mistake once."""
        return list({each.mistake: each for found in self.partings.values() for each in found}.values())

    @property
    def exit_code(self) -> int:
        return 0 if self.first is None else 1


def compare(
    a: str | Path,
    b: str | Path,
    *,
    names: Names | None = None,
    max_ulp: float = 0,
    called: tuple[str | None, str | None] = (None, None),
) -> Comparison:
    """Line two recorded runs up by step and call, and find where they part.

    Args:
        a: The file of a run.
        b: Of another.
        names: From the name of a parameter in either run to its name in the other. For those that it has not, the same
            names belong together; where no name is in both, those of equal shape (an axis order apart) do, in their
            order. Positions are no names.
        max_ulp: Up to how many units in the last place numbers count as the same.
        called: What sentences call each run, in place of its file's name.

    Raises:
        RunError: A file is no recording or has no clip calls, the runs have no numbers to compare, or `names` has names
            that are in neither run.
    """
    from . import mistakes  # which builds on this module

    one, other = (read(path, name) for path, name in zip((a, b), called, strict=True))
    for run in (one, other):
        check_clipped(run)
    one, other = loops.fold(one, other)
    pairs = list(_pairs(one, other, _oriented(one, other, names or {})))
    agreements = [agreement for stage in NUMBERS if (agreement := _agreement(stage, pairs, max_ulp)).compared]
    found = {
        first: mistakes.explain(mistakes.Place(one, other, pairs, index, first))
        for first, index in _partings(one, other, pairs, max_ulp)
    }
    if not (found or agreements):
        raise RunError(
            f"{one.path} and {other.path}: No numbers were compared. Clips by value record none without norms=True. "
            "Record both runs with norms=True."
        )
    return Comparison(one, other, max_ulp, pairs, found, agreements)


def read_names(path: Path) -> Names:
    """A map of names: a TOML file of `"a name" = "its name in the other run"`."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise RunError(f"{path}: its lists or tables are nested too deep") from None
    except ValueError as error:
        raise RunError(f"{path}: {error}") from None
    for name, other in found.items():
        if not isinstance(other, str):
            raise RunError(f'{path}, {name}: write "name" = "its name in the other run", both in quotes')
    twice = [name for name, count in Counter(found.values()).items() if count > 1]
    if twice:
        raise RunError(f"{path}: {twice[0]!r} stands for two parameters")
    return found


# -- what belongs together


def _pairs(a: Recording, b: Recording, given: Names) -> Iterator[Pair]:
    """Up to the first line whose step is not that of its partner."""
    for index, (one, other) in enumerate(zip(a.lines, b.lines, strict=False)):
        if one.step != other.step:
            return
        yield Pair(one, other, matched(one.parameters, other.parameters, given), index)


def _partings(a: Recording, b: Recording, pairs: list[Pair], max_ulp: float) -> list[tuple[Difference, int]]:
    """Return the differences to report, with the places of their pairs."""
    numeric: dict[str, tuple[Difference, int]] = {}
    facts: dict[str, tuple[Difference, int]] = {}
    allowed, earlier = max(max_ulp, ROUNDING), 0.0
    for index, found in enumerate(differences(pairs, max_ulp)):
        for each in found:
            numeric.setdefault("first", (each, index))
            if each.scaled is None:
                facts.setdefault(each.stage, (each, index))
            if each.scaled is None or each.scaled > allowed:
                numeric.setdefault("beyond rounding", (each, index))
            if each.scaled is None or each.scaled > max(allowed, GROWTH * earlier):
                numeric.setdefault("beyond growth", (each, index))
        earlier = max([earlier, *(each.scaled for each in found if each.scaled is not None)])
    ends = _one_ends(a, b, pairs)
    if ends is not None and "beyond growth" not in numeric:  # else it may follow from that
        facts["calls"] = (ends, len(pairs))
    # One difference for each pair, the last of these: what explains it looks at the whole pair.
    chosen = {index: difference for difference, index in numeric.values()}
    for difference, index in facts.values():
        chosen.setdefault(index, difference)
    return [(chosen[index], index) for index in sorted(chosen)]


def _one_ends(a: Recording, b: Recording, pairs: list[Pair]) -> Difference | None:
    """The first step at which the runs have not the same number of calls."""
    rest = [line.step for run in (a, b) for line in run.lines[len(pairs) : len(pairs) + 1]]
    if not rest:
        return None
    counts = [sum(line.step == min(rest) for line in run.lines) for run in (a, b)]
    return Difference(min(rest), "calls", counts[0], counts[1])


def matched(ours: Mapping[str, Parameter], theirs: Mapping[str, Parameter], given: Names) -> Names:
    """The parameters that belong together."""
    mapped = {name: other for name, other in given.items() if name in ours and other in theirs}
    taken = {*given, *given.values()}
    common = {name: name for name in ours if name in theirs and name not in taken and not name.isdecimal()}
    if common:  # positions are no names: frameworks list parameters in orders of their own
        return common | mapped
    waiting: dict[tuple[str, ...], list[str]] = {}
    for name, parameter in theirs.items():
        if name not in given.values():
            waiting.setdefault(_form(parameter), []).append(name)
    rest = {name: each for name, each in ours.items() if name not in given}
    return mapped | {name: waiting[form].pop(0) for name, each in rest.items() if waiting.get(form := _form(each))}


def _form(parameter: Parameter) -> tuple[str, ...]:
    """The shape, whatever the order of its axes: frameworks store the weights of a layer transposed."""
    return tuple(sorted(map(str, parameter.shape)))


def _oriented(a: Recording, b: Recording, names: Names) -> Names:
    """A map of names from the first run to the second; it may be given the other way round."""
    ours, theirs = ({name for line in run.lines for name in line.parameters} for run in (a, b))
    unknown = [
        [name for name in keys if name not in known] for keys, known in ((names, ours), (names.values(), theirs))
    ]
    reverse = {other: name for name, other in names.items()}
    if not any(unknown):
        return names
    if not (set(reverse) - ours or set(names) - theirs):
        return reverse
    run, name, known = (a, unknown[0][0], ours) if unknown[0] else (b, unknown[1][0], theirs)
    has = f"it has {', '.join(sorted(known))}" if known else "it was recorded without norms=True"
    raise RunError(f"the map of names has {name!r}, which is no parameter of {run.path}: {has}")


# -- what differs


def differences(pairs: Iterable[Pair], max_ulp: float) -> Iterator[list[Difference]]:
    """The differences of each pair, in the order in which one follows from another."""
    weights: dict[str | None, float] = {}
    for pair in pairs:
        for name, ours, theirs in numbers(pair, "weight"):
            weights[name] = max(weights.get(name, 0.0), ours, theirs)
        found = list(_of_settings(pair))
        total = max(map(_total, (pair.a, pair.b)))
        for stage in NUMBERS:
            if stage == "norm":
                found += _of_counts(pair)
            if stage == "coefficient":
                found += _of_effects(pair)
            for name, ours, theirs in numbers(pair, stage):
                far = distance(ours, theirs)
                if far.ulps > max_ulp:
                    scale = {"weight": weights.get(name, 0.0), "coefficient": 0.0}.get(stage, total)
                    scaled = ulps_at(scale, ours, theirs)
                    found.append(Difference(pair.a.step, stage, ours, theirs, name, far, scaled))
            if stage == "gradient":
                found += _of_parameters(pair)
        yield found


def _total(line: Line) -> float:
    """The norm over all gradients, as far as it was recorded; 0 where it is not known."""
    if line.rule == "global":
        return line.norms()[0]
    norms = line.norms() or [each.norm for each in line.parameters.values()]
    return root_of_powers(norms, line.order)


def _of_settings(pair: Pair) -> Iterator[Difference]:
    a, b = pair.a, pair.b
    if bool(a.error) != bool(b.error):
        yield Difference(a.step, "error", a.error, b.error)
    if a.error or b.error:
        return
    if a.rule != b.rule:
        yield Difference(a.step, "rule", a.rule, b.rule)
    if not same(a.norm_type, b.norm_type):
        yield Difference(a.step, "norm type", a.norm_type, b.norm_type)
    if None not in (a.threshold, b.threshold) and not same(threshold(a), threshold(b)):
        yield Difference(a.step, "threshold", a.threshold, b.threshold)


def _of_counts(pair: Pair) -> Iterator[Difference]:
    counts = [len(line.norms()) for line in (pair.a, pair.b)]
    if pair.a.rule == pair.b.rule and counts[0] != counts[1]:
        yield Difference(pair.a.step, "norms", counts[0], counts[1])


def _of_parameters(pair: Pair) -> Iterator[Difference]:
    alone = [set(pair.a.parameters) - set(pair.names), set(pair.b.parameters) - set(pair.names.values())]
    if pair.a.parameters and pair.b.parameters and any(alone):
        yield Difference(pair.a.step, "gradient", tuple(sorted(alone[0])), tuple(sorted(alone[1])))


def _of_effects(pair: Pair) -> Iterator[Difference]:
    """Whether gradients were changed, where norms on the same side of one threshold say that both runs do the same."""
    above = [_is_above(line) for line in (pair.a, pair.b)]
    changed = [_is_changed(line) for line in (pair.a, pair.b)]
    if pair.a.rule != pair.b.rule or not same(threshold(pair.a), threshold(pair.b)) or None in (*above, *changed):
        return
    if above[0] == above[1] and changed[0] != changed[1]:
        yield Difference(pair.a.step, "clipped", changed[0], changed[1])


def _is_above(line: Line) -> bool | None:
    """Whether a norm is above the threshold; None where that is not known, or a matter of rounding."""
    if not isinstance(line.threshold, float) or not line.norms():
        return None
    if any(map(math.isnan, (line.threshold, *line.norms()))):
        return None
    greatest = max(line.norms())
    return None if distance(single(greatest), single(line.threshold)).ulps <= ROUNDING else greatest > line.threshold


def _is_changed(line: Line) -> bool | None:
    """Whether the coefficients change gradients; None where that is not known, or a matter of rounding."""
    if not line.coefs() or any(map(math.isnan, line.coefs())):
        return None
    least = min(line.coefs())
    return False if least == 1 else None if distance(single(least), 1.0).ulps <= ROUNDING else True


def numbers(pair: Pair, stage: Stage) -> Iterator[tuple[str | None, float, float]]:
    """What both lines have at a stage, and whose it is; where only one is in float64, as float32."""
    for name, a, b in _numbers(pair, stage):
        yield (name, a, b) if pair.a.dtype == pair.b.dtype else (name, single(a), single(b))


def _numbers(pair: Pair, stage: Stage) -> Iterator[tuple[str | None, float, float]]:
    a, b = pair.a, pair.b
    if stage in ("weight", "gradient"):
        for name, other in pair.names.items() if a.order == b.order else ():
            if name in a.parameters and other in b.parameters:
                ours, theirs = a.parameters[name], b.parameters[other]
                if stage == "gradient":
                    yield name, ours.norm, theirs.norm
                elif ours.weight is not None and theirs.weight is not None:
                    yield name, ours.weight, theirs.weight
        return
    if a.rule != b.rule or not same(a.norm_type, b.norm_type):
        return
    ours_all, theirs_all = (a.norms(), b.norms()) if stage == "norm" else (a.coefs(), b.coefs())
    if len(ours_all) != len(theirs_all):
        return
    labels: list[str | None] = [None] if len(ours_all) == 1 else [f"position {each}" for each in range(len(ours_all))]
    if a.rule == "each" and len(a.parameters) == len(b.parameters) == len(pair.names) == len(ours_all):
        labels = list(a.parameters)  # frameworks list parameters in orders of their own
        places = {name: place for place, name in enumerate(b.parameters)}
        theirs_all = [theirs_all[places[pair.names[name]]] for name in a.parameters]
    if stage == "coefficient" and "float64" not in (a.dtype, b.dtype):  # as gradients are multiplied by it
        ours_all, theirs_all = ([single(coef) for coef in coefs] for coefs in (ours_all, theirs_all))
    yield from zip(labels, ours_all, theirs_all, strict=True)


def threshold(line: Line) -> float | tuple[float, ...] | None:
    """As float32 gradients see it: one that was given as such a tensor is no other than the number it stands for."""
    if line.threshold is None or line.dtype == "float64":
        return line.threshold
    return tuple(map(single, line.threshold)) if isinstance(line.threshold, tuple) else single(line.threshold)


def _agreement(stage: Stage, pairs: list[Pair], max_ulp: float) -> Agreement:
    compared, until, greatest = 0, None, Distance(0.0, 0.0)
    for pair in pairs:
        for _, ours, theirs in numbers(pair, stage):
            found = distance(ours, theirs)
            compared += 1
            greatest = max(greatest, found)
            if found.ulps > max_ulp and until is None:
                until = pair.a.step
    return Agreement(stage, compared, until, greatest)
