"""Pair a parameter of one run with several parameters of the other run, such as packed query, key and value weights."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ...causes.scaling import combined_norm
from ..clip_event import any_clipped
from ..recorded_run import Parameter, RecordedCall
from ..rounding import is_near, single


class JoinedParameter(Parameter):
    """Several parameters of one run that correspond to one parameter of the other run."""

    parts: tuple[Parameter, ...]


JOINT = " + "


def packed(
    a: RecordedCall, b: RecordedCall, names: Mapping[str, str]
) -> tuple[RecordedCall, RecordedCall, Mapping[str, str]]:
    """Join consecutive parameters that correspond to a single parameter of the other call."""
    blocks = unpaired_blocks(a, b, names)
    is_one_norm = all(call.rule in ("global", "value") for call in (a, b))
    if not is_one_norm and not all(_is_joined(a, left) or _is_joined(b, right) for left, right in blocks):
        return a, b, names
    joined = {JOINT.join(left): JOINT.join(right) for left, right in blocks}
    return _joined(a, [left for left, _ in blocks]), _joined(b, [right for _, right in blocks]), {**names, **joined}


def unpaired_blocks(a: RecordedCall, b: RecordedCall, names: Mapping[str, str]) -> list[tuple[list[str], list[str]]]:
    """Pair the parameters that `names` does not pair. One parameter can match several parameters of the other call."""
    rest_a = [name for name in a.parameters if name not in names]
    rest_b = [name for name in b.parameters if name not in {*names.values()}]
    if not (rest_a and rest_b):
        return []
    if blocks := _single_to_many(a, rest_a, b, rest_b):
        return blocks
    biases = [[name for name in rest if _is_bias(call, name)] for call, rest in ((a, rest_a), (b, rest_b))]
    kernels = [[name for name in rest if not _is_bias(call, name)] for call, rest in ((a, rest_a), (b, rest_b))]
    kinds = [_single_to_many(a, left, b, right) for left, right in (kernels, biases) if left or right]
    return list(itertools.chain(*kinds)) if all(kinds) else []


def _is_bias(call: RecordedCall, name: str) -> bool:
    return len(call.parameters[name].shape) < 2 or "bias" in name.lower()


def _single_to_many(
    a: RecordedCall, names_a: Sequence[str], b: RecordedCall, names_b: Sequence[str]
) -> list[tuple[list[str], list[str]]]:
    """Split both lists into blocks. Both sides of a block have the same number of elements."""
    sizes = [[call.parameters[name].elements for name in names] for call, names in ((a, names_a), (b, names_b))]
    blocks = [([names_a[i] for i in left], [names_b[i] for i in right]) for left, right in _blocks(*sizes)]
    return blocks if all(min(map(len, block)) == 1 for block in blocks) else []


def elements(call: RecordedCall) -> float:
    sizes = [each.elements for each in call.parameters.values()]
    return math.nan if None in sizes or not sizes else float(sum(size or 0 for size in sizes))


def _blocks(a: Sequence[int | None], b: Sequence[int | None]) -> Iterator[tuple[list[int], list[int]]]:
    if None in (*a, *b) or sum(map(int, filter(None, a))) != sum(map(int, filter(None, b))):
        return
    ends = [list(itertools.accumulate(int(size or 0) for size in sizes)) for sizes in (a, b)]
    starts = [0, 0]
    for end in sorted({*ends[0]} & {*ends[1]}):
        stops = [max(index for index, each in enumerate(side) if each == end) + 1 for side in ends]
        yield list(range(starts[0], stops[0])), list(range(starts[1], stops[1]))
        starts = stops


def _is_joined(call: RecordedCall, names: Sequence[str]) -> bool:
    return len(names) == 1 and isinstance(call.parameters[names[0]], JoinedParameter)


def join_clips(calls: list[RecordedCall], others: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Join calls that clip parts of the gradients of one other call.

    For example, PyTorch's GRU has two biases, and Keras' GRU has one.
    """
    if len(others) != 1 or others[0].rule != "each" or len(calls) < 2:
        return calls
    whole, sizes = others[0], [each.elements for each in others[0].parameters.values()]
    settings = {(call.threshold, call.norm_type, call.eps, call.dtype) for call in calls}
    is_part = [call.rule == "global" and len(call.parameters) > 1 for call in calls]
    fits = all(not part or elements(call) in sizes for call, part in zip(calls, is_part, strict=True))
    are_parts = any(is_part) and fits and all(call.rule in ("global", "each") for call in calls)
    if not are_parts or len(settings) > 1 or sum(map(elements, calls)) != elements(whole):
        return calls
    parameters: dict[str, Parameter] = {}
    for call, part in zip(calls, is_part, strict=True):
        named = {JOINT.join(call.parameters): _sum(call, [*call.parameters])} if part else call.parameters
        parameters |= {str(len(parameters) + n) if x.isdecimal() else x: y for n, (x, y) in enumerate(named.items())}
    changes = {
        "rule": "each",
        "norm": [norm for call in calls for norm in call.norms()],
        "coef": [coef for call in calls for coef in call.coefs()],
        "parameters": parameters,
        "count": len(parameters),
        "clipped": any_clipped([call.clipped for call in calls]),
    }
    return [calls[0].model_copy(update=changes)] if len(parameters) == len(sizes) else calls


def _joined(call: RecordedCall, parts: Sequence[Sequence[str]]) -> RecordedCall:
    first_of = {names[0]: names for names in parts if len(names) > 1}
    inner = {name for names in first_of.values() for name in names[1:]}
    if not first_of:
        return call
    parameters: dict[str, Parameter] = {}
    for name, parameter in call.parameters.items():
        if name in first_of:
            parameters[JOINT.join(first_of[name])] = _sum(call, first_of[name])
        elif name not in inner:
            parameters[name] = parameter
    return call.model_copy(update={"parameters": parameters})


def separate(call: RecordedCall) -> Iterator[tuple[str, Parameter]]:
    for name, parameter in call.parameters.items():
        if isinstance(parameter, JoinedParameter):
            yield from zip(name.split(JOINT), parameter.parts, strict=False)
        else:
            yield name, parameter


def packed_names(a: RecordedCall, b: RecordedCall, names: Mapping[str, str]) -> list[str]:
    joined = [
        (isinstance(a.parameters[name], JoinedParameter), isinstance(b.parameters[other], JoinedParameter), name, other)
        for name, other in names.items()
    ]
    return [other if left else name for left, right, name, other in joined if left != right]


def _sum(call: RecordedCall, names: Sequence[str]) -> Parameter:
    parts = [call.parameters[name] for name in names]
    weights = [part.weight for part in parts if part.weight is not None]
    rounded = float if call.dtype == "float64" else single
    return JoinedParameter(
        shape=(sum(part.elements or 0 for part in parts),),
        norm=rounded(combined_norm([part.norm for part in parts], call.order)),
        weight=rounded(combined_norm(weights, call.order)) if len(weights) == len(parts) else None,
        parts=tuple(parts),
    )


def by_stored_rows(
    a: RecordedCall, b: RecordedCall, names: Mapping[str, str]
) -> tuple[RecordedCall, RecordedCall, Mapping[str, str]]:
    """Where TensorFlow clips a sparse gradient by the norm over its stored rows, use this norm."""
    names = _with_rows(a, b, names)
    return _of_rows(a, b, names), _of_rows(b, a, {other: name for name, other in names.items()}), names


def _with_rows(a: RecordedCall, b: RecordedCall, names: Mapping[str, str]) -> Mapping[str, str]:
    """Pair sparse gradients with equal row lengths, even if their numbers of rows differ."""
    if not (a.sparse or b.sparse):
        return names
    rest = [name for name in a.parameters if name not in names]
    others = [name for name in b.parameters if name not in {*names.values()}]
    pairs = [(name, other) for name in rest for other in others if _have_same_columns(a, name, b, other)]
    return {**names, **unambiguous(pairs)}


def unambiguous(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    left, right = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    return {name: other for name, other in pairs if left[name] == right[other] == 1}


def _have_same_columns(a: RecordedCall, name: str, b: RecordedCall, other: str) -> bool:
    shapes = a.parameters[name].shape, b.parameters[other].shape
    return len(shapes[0]) == len(shapes[1]) > 1 and shapes[0][1:] == shapes[1][1:]


def _of_rows(call: RecordedCall, other: RecordedCall, names: Mapping[str, str]) -> RecordedCall:
    if call.stored_norm is None or other.stored_norm is not None or other.sparse or call.passed_norm is not None:
        return call
    if isinstance(call.stored_norm, float):
        return _with_total(call, other, names)
    norms, parameters = [*call.norms()], {**call.parameters}
    if len(call.stored_norm) != len(norms) or (parameters and len(parameters) != len(norms)):
        return call
    if not parameters:
        is_stored = len(other.norms()) == len(norms) and all(map(is_near, call.stored_norm, other.norms()))
        return call.model_copy(update={"norm": [*call.stored_norm]}) if is_stored else call
    for index, (name, stored) in enumerate(zip(call.parameters, call.stored_norm, strict=True)):
        if name in names and _gets_rows(call, name, other.parameters[names[name]], stored):
            norms[index] = stored
            parameters[name] = parameters[name].model_copy(update={"norm": stored})
    return call.model_copy(update={"norm": norms, "parameters": parameters})


def _gets_rows(call: RecordedCall, name: str, other: Parameter, stored: float) -> bool:
    own = call.parameters[name]
    return own.shape != other.shape or (is_near(other.norm, stored) and not is_near(other.norm, own.norm))


def _with_total(call: RecordedCall, other: RecordedCall, names: Mapping[str, str]) -> RecordedCall:
    total = float(str(call.stored_norm))
    if not other.norms() or not is_near(total, other.norms()[0]):
        return call
    changed = [name for name in names if not is_near(call.parameters[name].norm, other.parameters[names[name]].norm)]
    parameters = {**call.parameters}
    if len(changed) == 1:
        norm = other.parameters[names[changed[0]]].norm
        parameters[changed[0]] = parameters[changed[0]].model_copy(update={"norm": norm})
    return call.model_copy(update={"norm": total, "parameters": parameters})
