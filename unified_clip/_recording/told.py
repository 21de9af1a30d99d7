"""What is recorded of one clip: what is known when the rule tells of it, and what arrives later."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._core.checks import COMPLEX, FLOATING
from .._core.containers import Leaf
from .._core.exact import nearest
from .._core.ops import Later, Ops, Path, Scalar
from .._core.watch import Clip

Namer = Callable[[Leaf], str]


def namer(names: Any) -> Namer:
    """What a gradient is called: by what the user gave, else by its own name, else by its position."""
    if names is None:
        return lambda leaf: leaf.name or str(leaf.position)
    if isinstance(names, list | tuple):
        _check_names(names)
        return lambda leaf: names[leaf.position] if leaf.position < len(names) else str(leaf.position)
    if callable(getattr(names, "named_parameters", None)):
        names = dict(names.named_parameters())
    if not isinstance(names, Mapping):
        raise TypeError(
            f"names is a {type(names).__name__}; pass a list of names, a dict of name to parameter, or a model that "
            "has named_parameters()"
        )
    _check_names(list(names))
    known = {id(parameter): (name, parameter) for name, parameter in names.items()}  # held, so that ids stay theirs

    def name_of(leaf: Leaf) -> str:
        return known[id(leaf.parameter)][0] if id(leaf.parameter) in known else leaf.name or str(leaf.position)

    return name_of


def _check_names(names: Sequence[Any]) -> None:
    for position, name in enumerate(names):
        if not isinstance(name, str):
            raise TypeError(f"position {position} of names is a {type(name).__name__}; pass strings")
        if name in names[:position]:
            raise ValueError(f"position {position} of names is {name!r}, which is there already; pass each name once")


def called(clip: Clip, name_of: Namer, taken: set[str]) -> dict[str, int]:
    """The names of a clip's gradients, and their places among the values; no name that the call has `taken` before."""
    found: dict[str, int] = {}
    for index in clip.group:
        name = name_of(clip.gradients.leaves[index])
        if name in taken:
            name = next(new for count in itertools.count(2) if (new := f"{name}#{count}") not in taken)
        taken.add(name)
        found[name] = index
    return found


def copies(clip: Clip, names: Mapping[str, int]) -> dict[str, tuple[str, Any]]:
    """The gradients as they are now. Complex ones as two real numbers along a last axis; sparse ones are left out."""
    ops, found = clip.gradients.ops, {}
    for name, index in names.items():
        value = clip.gradients.values[index]
        dtype, array = ops.dtype(value), ops.fetched(value)
        if dtype in COMPLEX:
            dtype = {"complex64": "float32", "complex128": "float64"}[dtype]
            array = array.copy()[..., None].view(dtype)
        if not clip.gradients.is_sparse(index):
            found[name] = (dtype, array.copy())
    return found


class Told:
    """The fields of a line, those of `scalars` missing until `take` is given their values."""

    def __init__(self, clip: Clip, names: Mapping[str, int] | None) -> None:
        """`names`: of the gradients whose norms are wanted too."""
        self.fields: dict[str, Any] = {
            "framework": clip.path.framework,
            "rule": clip.rule,
            "threshold": None,
            "norm_type": clip.p,
            "eps": clip.eps,
            "dtype": clip.path.norm_dtype,
            "norm": None,
            "coef": None if clip.rule == "value" else 1.0,
            "clipped": None,
            "nan": None,
            "inf": None,
        }
        self.scalars: list[Scalar] = []
        self.path: Path | None = clip.path
        self._places: list[tuple[str, ...]] = []
        self._measured = clip.measured and clip.rule != "value"
        self._greatest: float | None = None
        self._limit = math.inf
        known = [scalar for scalar in (clip.n, clip.coef) if scalar is not None]
        self.in_graph = clip.path.in_graph(known)
        if not (self.in_graph and clip.path.graph_teller() is None):  # then nothing would be told
            self._threshold(clip)
            self._put(clip.path, "norm", clip.n)
            self._put(clip.path, "coef", clip.coef)
            if names is not None:
                self._measure(clip, names)
        self.later = Later(list) if self.in_graph or not self.scalars else self.path.read_later(self.scalars)
        if clip.path.on_host:
            self._count(clip.path)

    def take(self, values: Sequence[Any]) -> dict[str, Any]:
        """The fields, with the scalars' values. A graph gives others each time it is run."""
        known = copy.deepcopy(self.fields) if self.in_graph else None
        try:
            return self._taken(values)
        finally:
            self.fields = known or self.fields

    def forget_graph(self) -> None:
        """Let go of what belongs to a graph, which may end before the recording does."""
        self.scalars, self.path = [], None

    def _taken(self, values: Sequence[Any]) -> dict[str, Any]:
        for place, value in zip(self._places, values, strict=True):
            self._set(place, value)
        fields = self.fields
        if fields["rule"] != "global":
            for key in ("norm", "coef"):
                fields[key] = None if fields[key] is None else _flat(fields[key])
        if fields["coef"] is not None:
            fields["clipped"] = any(coef != 1 for coef in _flat(fields["coef"]))
        elif self._greatest is not None:
            fields["clipped"] = self._greatest > self._limit
        if fields["nan"] is None and self._is_finite():
            fields["nan"] = fields["inf"] = 0
        return fields

    def _threshold(self, clip: Clip) -> None:
        if isinstance(clip.threshold, tuple):
            if all(isinstance(bound, int | float) for bound in clip.threshold):
                self.fields["threshold"] = list(map(float, clip.threshold))
        elif isinstance(clip.threshold, int | float):
            self.fields["threshold"] = float(clip.threshold)
        else:
            self._put(clip.path, "threshold", clip.path.constant(clip.threshold))

    def _measure(self, clip: Clip, names: Mapping[str, int]) -> None:
        """The norm of each gradient and of its weight, of the order that the call has."""
        ops, p = clip.gradients.ops, clip.p or 2.0
        self.fields["parameters"] = {}
        for name, index in names.items():
            value, leaf = clip.gradients.values[index], clip.gradients.leaves[index]
            self.fields["parameters"][name] = {"shape": list(ops.shape(value) or ())}
            self._norm(ops, value, p, "parameters", name, "norm")
            if leaf.parameter is not leaf.tensor and ops.is_tensor(leaf.parameter):
                weight = ops.adopt(leaf.parameter)
                if ops.dtype(weight) in (*FLOATING, *COMPLEX):
                    self._norm(ops, weight, p, "parameters", name, "weight")
        low, high = self.fields["threshold"] if clip.rule == "value" and self.fields["threshold"] else (0.0, 1.0)
        dtypes = {ops.dtype(value) for value in clip.gradients.values}
        if low == -high and len(dtypes) == 1:
            self._limit = nearest(high, dtypes.pop())
            self._put(clip.path, "greatest", clip.path.norm(math.inf))

    def _norm(self, ops: Ops, tensor: Any, p: float, *place: str) -> None:
        path = ops.path([tensor], differentiable=False)
        with path.scope():
            self._put(path, *place, path.norm(p))

    def _put(self, path: Path, *place_and_scalar: Any) -> None:
        """Set a field, now or later."""
        *place, scalar = place_and_scalar
        if scalar is None:
            return
        if path.on_host:
            self._set(tuple(place), path.read_later([scalar]).values()[0])
        else:
            self.path = path
            self._places.append(tuple(place))
            self.scalars.append(scalar)

    def _set(self, place: Sequence[str], value: Any) -> None:
        if place == ("greatest",):
            self._greatest = value
            return
        fields = self.fields
        for key in place[:-1]:
            fields = fields[key]
        fields[place[-1]] = value

    def _count(self, path: Path) -> None:
        """How many NaN and inf there are, where they are still to be seen: only if any show in a norm."""
        if self._is_finite() is False:
            counts = path.nonfinite_counts()
            self.fields["nan"], self.fields["inf"] = (sum(each) for each in zip(*counts, strict=True))

    def _is_finite(self) -> bool | None:
        """Whether every gradient shows to be finite in a norm; None where none was measured."""
        norms = _flat(self.fields["norm"]) if self._measured else []
        norms += [each["norm"] for each in self.fields.get("parameters", {}).values()]
        return all(map(math.isfinite, norms)) if norms else None


def _flat(value: Any) -> list[Any]:
    return [item for each in value for item in _flat(each)] if isinstance(value, list) else [value]


def merged(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fields of a call's lines: one for what has a norm in common, and one for all with norms of their own."""
    lines: list[dict[str, Any]] = []
    for fields in found:
        last = lines[-1] if lines else None
        same = ("rule", "threshold", "eps", "dtype")
        if last is None or fields["rule"] == "global" or any(last[key] != fields[key] for key in same):
            lines.append(dict(fields))
            continue
        for key in ("norm", "coef", "nan", "inf"):
            last[key] = None if last[key] is None or fields[key] is None else last[key] + fields[key]
        last["clipped"] = last["clipped"] or fields["clipped"]
        if "parameters" in fields:
            last["parameters"] = {**last["parameters"], **fields["parameters"]}
    return lines
