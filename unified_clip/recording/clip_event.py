"""Collect the recorded fields of a call and of each of its clips."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any

from .._core.backend import Backend
from .._core.exact import nearest
from .._core.names import ByParameter, Namer
from .._core.observer import Clip
from .._core.path import Path
from .._core.types import Deferred, Leaf, Scalar
from .._core.validation import COMPLEX, FLOATING
from ..recorder.guard import describe_error
from ..recorder.hooks import OUTPUT
from ..recorder.lines import unique_name


def _shape_of(gradients: Any, index: int) -> list[int | None]:
    shape = gradients.backend.shape
    known = shape(gradients.leaves[index].tensor) if gradients.is_sparse(index) else None
    return list(known or shape(gradients.values[index]) or ())


def name_gradients(
    leaves: Sequence[Leaf], group: Sequence[int], shape: Callable[[Any], Any], name_of: Namer, taken: set[str]
) -> dict[str, int]:
    """Name the leaves of a group. If a gradient has no name, name it by its position. Add all names to `taken`."""
    indices: dict[str, int] = {}
    ordered = _in_order(leaves, shape, name_of) if isinstance(name_of, ByParameter) else []
    for index in group:
        name = name_of(leaves[index]) or (ordered[leaves[index].position] if ordered else None)
        name = unique_name(leaves[index]._replace(name=name).title, taken)
        taken.add(name)
        indices[name] = index
    return indices


def _in_order(leaves: Sequence[Leaf], shape: Callable[[Any], Any], namer: ByParameter) -> Sequence[str]:
    """Return the names of all parameters if the call clips one gradient for each parameter, and [] otherwise."""
    if len(leaves) != len(namer.names) or any(namer(leaf) is not None for leaf in leaves):
        return []
    shapes = [tuple(getattr(parameter, "shape", ())) for parameter in namer.names.values()]
    same = all(tuple(shape(leaf.tensor) or ()) == shapes[leaf.position] for leaf in leaves if leaf.tensor is not None)
    return list(namer.names) if same else []


def copy_gradients(clip: Clip, names: Mapping[str, int]) -> dict[str, tuple[str, Any]]:
    """Return {name: (dtype, array)}, without sparse gradients."""
    results = import_module("unified_clip.recording.results")  # this imports NumPy, which `import unified_clip` skips
    dense = {name: index for name, index in names.items() if not clip.gradients.is_sparse(index)}
    copies: dict[str, tuple[str, Any]] = results.stored(
        list(dense), [results.copy_of(clip.gradients.values[index]) for index in dense.values()]
    )
    return copies


class ClipEvent:
    """Every recorded clip runs this code, so it has to be fast."""

    def __init__(self, clip: Clip, names: Mapping[str, int] | None, new: Collection[str] = ()) -> None:
        """If `names` is None, record no norms of single gradients."""
        path, threshold = clip.path, clip.threshold
        self.path: Path | None = path
        self.scalars: list[Scalar] = []
        self.deferred: Deferred | None = None
        self._places: list[tuple[dict[str, Any], str]] = []
        self._measured = clip.measured and clip.n is not None
        self._greatest: dict[str, float] = {}
        self._bound = math.inf
        self._counts: tuple[int, int] | None = None
        self.fields: dict[str, Any] = {
            "framework": path.framework,
            "rule": clip.rule,
            "threshold": threshold if type(threshold) is float else None,
            "norm_type": clip.p,
            "eps": clip.eps,
            "dtype": path.norm_dtype,
            "count": len(clip.group),
            "norm": None,
            "coef": None if clip.rule == "value" else 1.0,
            "clipped": None,
            "nan": None,
            "inf": None,
        }
        self.in_graph = not path.on_host and path.in_graph([each for each in (clip.n, clip.coef) if each is not None])
        if clip.gradients.shards is not None:
            self.fields |= clip.gradients.shards.metadata()
        if self.in_graph and path.graph_callback() is None:
            return  # this graph cannot report values
        if clip.measured or clip.n is None:
            self._put(path, self.fields, "norm", clip.n)
        else:
            self._put_passed(clip, is_measured=names is not None and clip.gradients.shards is None)
        self._put(path, self.fields, "coef", clip.coef)
        if isinstance(threshold, tuple) and all(isinstance(bound, int | float) for bound in threshold):
            self.fields["threshold"] = list(map(float, threshold))
        elif type(threshold) is not float and not isinstance(threshold, tuple) and not getattr(threshold, "ndim", 0):
            self._put(path, self.fields, "threshold", path.xp.asarray(threshold))
        if names is not None and clip.gradients.shards is not None:
            self._measure_shared(clip, names)
        elif names is not None:
            self._measure(clip, names, new)
        if self.scalars and not self.in_graph:
            self.deferred = self.path.read_later(self.scalars)
        if path.on_host and self._is_finite() is False:
            nan, inf = zip(*path.nonfinite_counts(), strict=True)
            self._counts = sum(nan), sum(inf)

    def complete_fields(self, values: Sequence[Any]) -> dict[str, Any]:
        for (fields, key), value in zip(self._places, values, strict=True):
            fields[key] = value
        fields = self.fields
        if fields["rule"] == "global":
            fields["clipped"] = fields["coef"] != 1
        elif fields["coef"] is not None:
            fields["norm"], fields["coef"] = _flat(fields["norm"]), _flat(fields["coef"])
            fields["clipped"] = any(coef != 1 for coef in fields["coef"])
        elif self._greatest:
            fields["clipped"] = self._greatest["norm"] > self._bound
        fields["nan"], fields["inf"] = self._counts or ((0, 0) if self._is_finite() else (None, None))
        return fields

    def _measure(self, clip: Clip, names: Mapping[str, int], new: Collection[str]) -> None:
        """Record norms, and for a clip by value also the largest elements, which show whether it clips."""
        backend, p = clip.gradients.backend, clip.p or 2.0
        gradients = {name: clip.gradients.values[index] for name, index in names.items()}
        fields: dict[str, dict[str, Any]] = {
            name: {"shape": _shape_of(clip.gradients, index)} for name, index in names.items()
        }
        self.fields["parameters"] = fields
        leaves = {name: clip.gradients.leaves[index] for name, index in names.items()}
        weights = {
            name: backend.as_tensor(leaf.parameter) if self.in_graph else backend.detached(leaf.parameter)
            for name, leaf in leaves.items()
            if leaf.parameter is not leaf.tensor and backend.is_tensor(leaf.parameter)
        }
        weights = {name: each for name, each in weights.items() if backend.dtype(each) in (*FLOATING, *COMPLEX)}
        is_shared = clip.n is None and len(names) == len(clip.group)  # the total norm is measured next
        self._put_norms(backend, gradients, p, fields, "norm", clip.path if is_shared else None)
        self._put_norms(backend, weights, p, fields, "weight")
        dense = {name: gradients[name] for name, index in names.items() if not clip.gradients.is_sparse(index)}
        self._put_samples(clip.path, backend, dense, fields, "sample")
        self._put_samples(clip.path, backend, weights, fields, "weight_sample")
        for name in weights.keys() & new if not self.in_graph else ():
            self._put_sums(backend, weights[name], fields[name])
        low, high = self.fields["threshold"] if clip.rule == "value" and self.fields["threshold"] else (0.0, 1.0)
        dtypes = {backend.dtype(value) for value in clip.gradients.values}
        if low == -high and len(dtypes) == 1:
            self._bound = nearest(high, dtypes.pop())
            self._put(clip.path, self._greatest, "norm", clip.path.norm(math.inf))

    def _put_passed(self, clip: Clip, *, is_measured: bool) -> None:
        self._put(clip.path, self.fields, "passed_norm", clip.n)
        if not is_measured or clip.p is None:
            self._put(clip.path, self.fields, "norm", clip.n)
            return
        with clip.path.scope():
            self._put(clip.path, self.fields, "norm", clip.path.norm(clip.p))

    def _put_samples(
        self, path: Path, backend: Backend, tensors: Mapping[str, Any], fields: Mapping[str, dict[str, Any]], key: str
    ) -> None:
        # this imports NumPy, which `import unified_clip` does not need
        from ..recorder.samples import positions
        from ..tensors.types import Dense

        for name, tensor in tensors.items():
            shape, dtype = fields[name]["shape"], backend.dtype(tensor)
            is_whole = None not in shape and list(backend.shape(tensor) or ()) == list(shape)
            if not is_whole or dtype in COMPLEX:
                continue
            places = positions(tuple(shape))
            if path.on_host:
                fields[name][key] = Dense(dtype, backend.to_numpy(tensor).reshape(-1)[places]).values().tolist()
            else:
                self._put(path, fields[name], key, backend.elements(tensor, places))

    @staticmethod
    def _put_sums(backend: Backend, weight: Any, fields: dict[str, Any]) -> None:
        from ..tensors.samples import sums_of

        if (sums := sums_of(backend.to_numpy(weight), backend.dtype(weight))) is not None:
            fields["sums"] = sums

    def _measure_shared(self, clip: Clip, names: Mapping[str, int]) -> None:
        if not clip.measured or clip.p is None or clip.p not in (1, 2):
            return
        norms = clip.gradients.tensor_norms(clip.p, known_only=True) or {}
        if norms or not names:
            backend, leaves = clip.gradients.backend, clip.gradients.leaves
            self.fields["parameters"] = {
                name: {"shape": list(backend.shape(leaves[index].tensor) or ()), "norm": norms[index]}
                for name, index in names.items()
                if index in norms
            }

    def _put_norms(
        self,
        backend: Backend,
        tensors: Mapping[str, Any],
        p: float,
        fields: Mapping[str, dict[str, Any]],
        key: str,
        path_over_all: Path | None = None,
    ) -> None:
        if not tensors:
            return
        together = None
        if p == 2 and not self.in_graph:
            together = path_over_all and path_over_all.per_tensor()
            if together is None:
                path = backend.collect_tensors(list(tensors.values()), differentiable=False, in_place=False)
                together = path and path.per_tensor()
        if together is not None and together.on_host:
            with together.scope():
                for name, norm in zip(tensors, together.norm(p).tolist(), strict=True):
                    fields[name][key] = norm
            return
        for name, tensor in tensors.items():
            own = backend.path([tensor], differentiable=False)
            with own.scope():
                self._put(own, fields[name], key, own.norm(p))

    def _put(self, path: Path, fields: dict[str, Any], key: str, scalar: Scalar | None) -> None:
        if type(scalar) is float:
            fields[key] = scalar
        elif scalar is not None and path.on_host:
            (fields[key],) = path.read_later([scalar]).values()
        elif scalar is not None:
            self.path = path
            self._places.append((fields, key))
            self.scalars.append(scalar)

    def _is_finite(self) -> bool | None:
        norm, parameters = self.fields["norm"], self.fields.get("parameters")
        if self._measured and type(norm) is float and not parameters:
            return math.isfinite(norm)
        norms = _flat(norm) if self._measured else []
        if parameters:
            norms += [each["norm"] for each in parameters.values()]
        return all(map(math.isfinite, norms)) if norms else None


def _flat(value: Any) -> list[Any]:
    return [item for each in value for item in _flat(each)] if isinstance(value, list) else [value]


def any_clipped(clipped: Sequence[bool | None]) -> bool | None:
    return None if None in clipped and True not in clipped else any(clipped)


def merge_groups(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge consecutive groups with equal settings into one line. Groups with the rule "global" are not merged."""
    lines: list[dict[str, Any]] = []
    for fields in groups:
        last = lines[-1] if lines else None
        same = ("rule", "threshold", "eps", "dtype")
        if last is None or fields["rule"] == "global" or any(last[key] != fields[key] for key in same):
            lines.append(dict(fields))
            continue
        for key in ("norm", "coef", "nan", "inf", "count"):
            last[key] = None if last[key] is None or fields[key] is None else last[key] + fields[key]
        last["clipped"] = any_clipped((last["clipped"], fields["clipped"]))
        if "parameters" in fields:
            last["parameters"] = {**last.get("parameters", {}), **fields["parameters"]}
    return lines


class CallRecorder:
    """Collect the lines of one call."""

    def __init__(self, recording: Any, call: str, place: str | None) -> None:
        self.recording, self._call = recording, call
        self._step: int | None = None
        self.events: list[Any] = []
        self._names: set[str] = set()
        self._gradients: dict[str, Any] = {}
        self._tail: dict[str, Any] = {"place": place}
        self._tail |= OUTPUT.scale_fields()

    @property
    def step(self) -> int:
        if self._step is None:
            self._step = self.recording._take_step()
        return self._step

    def on_clip(self, clip: Clip) -> None:
        recording = self.recording
        gradients, names = clip.gradients, dict[str, int]()
        if recording.needs_leaves:
            names = recording.name_gradients(
                self._call, gradients.leaves, clip.group, gradients.backend.shape, self._names
            )
        new = names.keys() - recording._arranged
        recording._arranged |= new
        event = ClipEvent(clip, names if recording.norms else None, new)
        self.events.append(event)
        if recording.gradients_every is None:
            return
        if not event.in_graph and self.step % recording.gradients_every == 0:
            self._gradients.update(copy_gradients(clip, names))
        elif event.in_graph and not recording.stores_results:
            recording.warn("gradients inside a graph are not stored. To store them, clip outside the graph.")

    def count_lines(self, framework: str) -> int:
        return len(merge_groups([each.fields for each in self.events if each.fields["framework"] == framework]))

    def end(self, seconds: float | None, error: BaseException | None) -> None:
        self._tail["seconds"] = seconds
        if error is not None:
            self.events, self._tail["error"] = [], describe_error(error)
        elif any(each.in_graph for each in self.events):  # the graph writes the lines
            self.recording._report_from_graph(self._call, self.events, self._tail["place"])
            return
        if self._gradients:
            self._tail["gradients"] = self.recording._store(self.step, self._gradients)
        _ = self.step  # a call without clips takes its step here
        self.recording._add(self._lines, [each.deferred for each in self.events if each.deferred])

    def _lines(self) -> list[dict[str, Any]]:
        groups = [each.complete_fields(each.deferred.values() if each.deferred else []) for each in self.events]
        return lines_of({"step": self.step, "call": self._call}, groups, self._tail)


def lines_of(
    head: Mapping[str, Any], groups: Sequence[dict[str, Any]], tail: Mapping[str, Any]
) -> list[dict[str, Any]]:
    return [{**head, **fields, **tail} for fields in merge_groups(groups) or [{}]]
