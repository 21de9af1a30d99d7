"""Gradients on several ranks, as plain data: what each rank has in a layout, and what all ranks have together.

The tests and the processes of a `World` both read this module. It does not use the sharding of any framework.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from support import reference
from support.calls import CALLS

LAYOUTS = {
    "FSDP": ("row", "S0"),
    "tensor parallel": ("row", "S-1"),
    "copies": ("row", "R"),
    "terms of a sum": ("row", "P"),
    "terms of a mean": ("row", "M"),
    "HSDP": ("rows", "R S0"),
    "sharded, with copies": ("rows", "S0 R"),
    "two dimensions": ("rows", "S0 S-1"),
    "one axis twice": ("rows", "S0 S0"),
    "all copies": ("rows", "R R"),
    "sum of shards": ("rows", "P S0"),
    "copies of a sum": ("rows", "R P"),
    "sum over both": ("rows", "P P"),
    "shards of a stage": ("tp", "S0"),
    "copies of a stage": ("tp", "R"),
    "shards across stages": ("dp", "S0"),
    "copies in halves": ("halves", "R S0"),
    "shards of a half": ("own", "S0"),
    "copies of a half": ("own", "R"),
    "plain": ("", ""),
}
"""A mesh, and a placement for each of its dimensions: R copies, Sn shards of axis n, P terms of a sum, M of a mean.

"row" has all ranks. "rows" has rows ("dp") of two ranks ("tp"). "dp" and "tp" are meshes of one dimension of "rows".
"halves" has two halves ("half") of ranks ("own").
"""

FULL = [name for name, (mesh, _) in LAYOUTS.items() if mesh.startswith("row")]
HALVES = ["copies in halves", "shards of a half", "copies of a half"]
"""Layouts of gradients that each half of the ranks has completely."""

IN_HALVES = ("half", "mesh of a half")
"""Keywords for a process group, or a mesh in its place, of the half of a rank."""

OWNERSHIP = ("replicated", "distinct", "mesh", "stages", "function")
"""Keywords of a call, beside "" for none, and "WORLD" for the process group alone. "mesh" and "function" declare copies
on ranks outside the mesh of a gradient, and "stages" declares that each row has its own gradients."""

FRAMEWORKS = ("torch", "paddle")


def dimensions(layout: str) -> dict[str, str]:
    """Return the placement along each dimension of the mesh."""
    mesh, placements = LAYOUTS[layout]
    names = {"row": ["all"], "rows": ["dp", "tp"], "halves": ["half", "own"], "": []}.get(mesh, [mesh])
    return dict(zip(names, placements.split(), strict=True))


def is_sum(layout: str) -> bool:
    return bool({"P", "M"} & set(dimensions(layout).values()))


def lengths(size: int) -> dict[str, int]:
    return {"all": size, "dp": max(size // 2, 1), "tp": min(size, 2), "half": 2, "own": size // 2}


def place(rank: int, size: int) -> dict[str, int]:
    half, own = divmod(rank, max(size // 2, 1))
    return {"all": rank, "dp": rank // min(size, 2), "tp": rank % min(size, 2), "half": half, "own": own}


def block(layout: str, declared: str, rank: int, size: int) -> int:
    """Return which gradient a rank has, where the ranks outside of its mesh have other gradients."""
    outside = {"dp": ["tp"], "tp": ["dp"], "own": ["half"], "": ["dp", "tp"]}.get(LAYOUTS[layout][0], [])
    along = {"distinct": outside, "stages": ["dp"]}.get(declared, ["half"] if declared in IN_HALVES else [])
    return sum(place(rank, size)[name] * {"dp": 2}.get(name, 1) for name in outside if name in along)


def copies(layout: str, declared: str, rank: int, size: int) -> list[int]:
    """Return the ranks that have the same numbers, in their order."""

    def key(rank: int) -> object:
        apart = [name for name, placement in dimensions(layout).items() if placement != "R"]
        return block(layout, declared, rank, size), [place(rank, size)[name] for name in apart]

    return [other for other in range(size) if key(other) == key(rank)]


class Gradient(NamedTuple):
    array: np.ndarray
    """The complete gradient. If ranks have other gradients, theirs are a half, a quarter and an eighth of it."""

    layout: str
    is_absent: bool = False

    def of_block(self, number: int) -> np.ndarray:
        if not number:
            return self.array
        with np.errstate(all="ignore"):
            return reference.array(self.array * 0.5**number, self.array.dtype.name)

    def on(self, rank: int, size: int, declared: str = "") -> np.ndarray:
        """Return what a rank has. Shards have the lengths that the frameworks give them, and can be empty."""
        part = self.of_block(block(self.layout, declared, rank, size))
        for name, placement in dimensions(self.layout).items():
            index, number = place(rank, size)[name], lengths(size)[name]
            if placement[0] == "S":
                axis = int(placement[1:]) % part.ndim
                length = -(-part.shape[axis] // number)
                part = part.take(range(*slice(index * length, (index + 1) * length).indices(part.shape[axis])), axis)
            elif placement in "PM":
                others = [np.random.default_rng(each).integers(-4, 5, part.shape) for each in range(1, number)]
                whole = part * (number if placement == "M" else 1) - sum(others, np.zeros(part.shape, int))
                part = (others[index - 1] if index else whole).astype(part.dtype)
        return np.array(part, order="C")  # a copy, which a call may write to


class Situation(NamedTuple):
    gradients: Sequence[Gradient]
    call: str
    limit: float
    declared: str = ""
    checks: dict[str, Any] = {}  # noqa: RUF012
    drifted: tuple[int, int] | None = None
    """The last bit of this gradient is another one on this rank."""

    lacking: tuple[int, Sequence[int]] = (0, ())
    """This gradient is None on these ranks."""


def complete(situation: Situation, size: int, rank: int = 0) -> list[np.ndarray]:
    """Return the gradients that the process group of a rank has together, each of them once."""
    is_half = situation.declared in IN_HALVES
    group = [other for other in range(size) if not is_half or 2 * other // size == 2 * rank // size]
    return [
        gradient.of_block(number)
        for gradient in situation.gradients
        if not gradient.is_absent
        for number in sorted({block(gradient.layout, situation.declared, other, size) for other in group})
    ]


class Outcome(NamedTuple):
    error: str
    norm: np.ndarray | None
    before: list[np.ndarray | None]
    """What this process has of each gradient."""

    after: list[np.ndarray | None]
    collectives: int

    @property
    def is_unchanged(self) -> bool:
        before, after = ([part is None or part.tobytes() for part in each] for each in (self.before, self.after))
        return before == after


OVER_RANKS = ("clip_grad_norm_", "clip_by_global_norm", "global_norm", "get_total_norm", "GradientClipByGlobalNorm")


class Declaring:
    """The functions of a namespace, with keywords that declare the ranks."""

    def __init__(self, namespace: Any, keywords: dict[str, Any]) -> None:
        self._namespace, self._keywords = namespace, keywords

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._namespace, name)
        return functools.partial(function, **self._keywords) if name in OVER_RANKS else function


def adapter_of(framework: str) -> Any:
    return importlib.import_module(f"support.processes.{framework}_sharded")


def message(error: Exception) -> str:
    return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def run(framework: str, situation: Situation) -> Outcome:
    """Make a call in a process of a `World`, whose `adapter` has functions for tensors of the framework."""
    from unified_clip.errors import ClipWarning

    adapter = adapter_of(framework)
    kit, call, tensors, rank = adapter.KIT, CALLS[situation.call], [], adapter.process()
    index, lacking = situation.lacking
    for number, gradient in enumerate(situation.gradients):
        part = gradient.on(rank, adapter.size(), situation.declared)
        if situation.drifted == (number, rank):
            last = part.reshape(-1)[-1:]
            last[:] = np.nextafter(last, np.float32(99))
        tensors.append(None if gradient.is_absent else adapter.tensor(part, gradient))
    argument = call.prepare(kit, tensors)
    if rank in lacking:
        adapter.remove_gradient(argument[index])
    returned, error, norm = None, "", None
    before = [_part(adapter, tensor) for tensor in tensors]
    keywords = adapter.keywords(situation.declared) | situation.checks
    declaring: Any = SimpleNamespace(namespace=Declaring(kit.namespace, keywords))
    with adapter.record_collectives() as collectives, warnings.catch_warnings():
        warnings.simplefilter("ignore", ClipWarning)  # ranks may have equal sums
        try:
            returned = call.run(declaring, argument, situation.limit)
        except Exception as raised:
            error = message(raised)
    if not error:
        tensors, norm = call.read(kit, argument, returned)
        assert norm is None or adapter.is_plain(norm)
        norm = None if norm is None else kit.array(norm)
    return Outcome(error, norm, before, [_part(adapter, tensor) for tensor in tensors], len(collectives))


def run_all(framework: str, situations: Sequence[Situation]) -> list[Outcome]:
    return [run(framework, situation) for situation in situations]


def _part(adapter: Any, tensor: Any) -> np.ndarray | None:
    return None if tensor is None else adapter.part(tensor)
