"""Calls that differ between two ranks, or that rank 1 rejects, and what all ranks then report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from support.ranks import Gradient, adapter_of, message

from unified_clip import ClipConfig

ARRAYS = [np.arange(1, 17, dtype=np.float32).reshape(4, 4), np.full((8, 4), 2, np.float32), np.full(8, 3, np.float32)]

Call = Callable[[Any, list[Any], bool], Any]
"""Gets the namespace, the holders of the gradients, and whether this rank is to differ."""


def by_config(settings: dict[str, Any], others: dict[str, Any], **options: Any) -> Call:
    def call(_: Any, held: list[Any], differs: bool) -> Any:
        config = ClipConfig(**{"rule": "global_norm", "threshold": 1.0, **(others if differs else settings)})
        return config.clipper(**{name: value and differs for name, value in options.items()}).clip_(named(held))

    return call


def named(held: Sequence[Any]) -> dict[str, Any]:
    return dict(zip("abc", held, strict=True))


DIFFERENCES: dict[str, tuple[Any, ...]] = {
    "threshold": (lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0 + differs), "threshold", "1.0", "2.0"),
    "threshold, p = inf": (
        lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0 + differs, math.inf), "threshold", "1.0", "2.0"
    ),
    "threshold of each": (
        lambda ns, held, differs: ns.GradientClipByNorm(1.0 + differs).clip_(held), "threshold", "1.0", "2.0"
    ),
    "orders 1 and 2": (lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0, 1 + differs), "norm_type", "1", "2"),
    "orders 2 and inf": (
        lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0, math.inf if differs else 2), "norm_type", "2.0", "inf"
    ),
    "orders 2 and 3": (lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0, 2 + differs), "norm_type", "2", "3"),
    "error_if_nonfinite": (
        lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0, error_if_nonfinite=differs),
        "error_if_nonfinite", "False", "True",
    ),
    "check_numel": (
        lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0, check_numel=differs or None),
        "the number of gradient elements", "None", "56",
    ),
    "ownership": (
        lambda ns, held, differs: ns.clip_grad_norm_(held, 1.0, ownership="distinct" if differs else None),
        "the number of parameters", "3", "None",
    ),
    "fewer parameters": (
        lambda ns, held, differs: ns.clip_grad_norm_(held[differs:], 1.0), "the number of parameters", "3", "2"
    ),
    "another order": (
        lambda ns, held, differs: ns.clip_grad_norm_(held[:: -1 if differs else 1], 1.0),
        "the parameter at position 0", r"\[4, 4\]", r"\[8\]",
    ),
    "another order, norms of each": (
        lambda ns, held, differs: ns.GradientClipByNorm(1.0).clip_(held[:: -1 if differs else 1]),
        "the parameter at position 0", r"\[4, 4\]", r"\[8\]",
    ),
    "function": (
        lambda ns, held, differs: (
            ns.GradientClipByGlobalNorm(1.0).clip_(held) if differs else ns.clip_grad_norm_(held, 1.0)
        ),
        "function", "clip_g", "Grad",
    ),
    "norms of each": (
        lambda ns, held, differs: (ns.GradientClipByNorm if differs else ns.GradientClipByGlobalNorm)(1.0).clip_(held),
        "norm_type", "2.0", "2 of each gradient",
    ),
    "rule": (by_config({}, {"rule": "norm"}), "rules", "global_norm with ", "norm with "),
    "family": (by_config({"family": "paddle"}, {"family": "pytorch"}), "rules", "eps 0.0", "eps 1e-06"),
    "nonfinite": (by_config({}, {"nonfinite": "zero"}), "nonfinite", "family", "zero"),
    "include": (by_config({"include": ["a"]}, {"include": ["b"]}), ".*names", "'a'", "'b'"),
    "details": (by_config({}, {}, details=True), "details", "False", "True"),
    "step": (
        lambda ns, held, differs: (
            ClipConfig(rule="global_norm", threshold=1.0).clipper().clip_(named(held), step=3 + differs)
        ),
        "step", "3", "4",
    ),
}  # fmt: skip
"""A call, the name of a value in the table of the error, and this value on rank 0 and on rank 1."""


def raising(parameter: Any) -> bool:
    raise LookupError("this parameter is not in the table")


REJECTIONS: dict[str, tuple[Any, str]] = {
    "max_norm": (
        lambda ns, held, wrong: ns.clip_grad_norm_(held, -1.0 if wrong else 1.0), "ValueError: max_norm is -1.0"
    ),
    "norm_type": (
        lambda ns, held, wrong: ns.clip_grad_norm_(held, 1.0, 0.0 if wrong else 2.0), "ValueError: norm_type"
    ),
    "check_numel": (
        lambda ns, held, wrong: ns.clip_grad_norm_(held, 1.0, check_numel="4" if wrong else None),
        "TypeError: check_numel is '4'",
    ),
    "ownership": (
        lambda ns, held, wrong: ns.clip_grad_norm_(held, 1.0, ownership="shared" if wrong else "replicated"),
        "ValueError: ownership is 'shared'",
    ),
    "an entry": (
        lambda ns, held, wrong: ns.clip_grad_norm_([*held, *["x"] * wrong], 1.0), "TypeError: position 3 is a str"
    ),
    "the first entry": (
        lambda ns, held, wrong: ns.clip_grad_norm_([*["x"] * wrong, *held], 1.0), "TypeError: position 0 is a str"
    ),
    "an entry, norms of each": (
        lambda ns, held, wrong: ns.GradientClipByNorm(1.0).clip_([*held, *["x"] * wrong]),
        "TypeError: position 3 is a str",
    ),
    "need_clip": (
        lambda ns, held, wrong: ns.GradientClipByGlobalNorm(1.0, need_clip=raising if wrong else None).clip_(held),
        "LookupError: this parameter is not in the table",
    ),
}  # fmt: skip
"""A call, and the start of the error on rank 1, which rejects the call."""


class Reported(NamedTuple):
    error: str
    is_unchanged: bool
    next_norm: float
    """The norm of a valid call after the error. It needs ranks that are at the same call."""


def held_by(framework: str, arrays: Sequence[np.ndarray] = ARRAYS) -> list[Any]:
    adapter = adapter_of(framework)
    gradients = [Gradient(array, "FSDP") for array in arrays]
    return list(
        adapter.KIT.in_place([adapter.tensor(each.on(adapter.process(), adapter.size()), each) for each in gradients])
    )


def report(framework: str, call: Call, held: list[Any]) -> Reported:
    adapter, error = adapter_of(framework), ""
    before = [adapter.part(tensor).tobytes() for tensor in adapter.KIT.kept(held)]
    try:
        call(adapter.KIT.namespace, held, adapter.process() == 1)
    except Exception as raised:
        error = message(raised)
    after = [adapter.part(tensor).tobytes() for tensor in adapter.KIT.kept(held)]
    return Reported(error, before == after, float(adapter.KIT.namespace.clip_grad_norm_(held_by(framework), math.inf)))


def differ(framework: str, name: str) -> Reported:
    return report(framework, DIFFERENCES[name][0], held_by(framework))


def reject(framework: str, name: str) -> Reported:
    return report(framework, REJECTIONS[name][0], held_by(framework))


def reject_integers(framework: str, p: float) -> Reported:
    """Measure gradients, one of which has integers on rank 1."""
    adapter = adapter_of(framework)

    def measure(namespace: Any, held: list[Any], wrong: bool) -> Any:
        plain = adapter.KIT.tensor([1, 1], "int32" if wrong else "float32")
        return namespace.get_total_norm([*adapter.KIT.kept(held), plain], p)

    return report(framework, measure, held_by(framework))


def clip_with_nan(framework: str, p: float) -> Reported:
    """Clip gradients, one of which has a NaN on rank 1."""
    spoiled = ARRAYS[1].copy()
    spoiled[-1, -1] = np.nan
    held = held_by(framework, [ARRAYS[0], spoiled, ARRAYS[2]])
    return report(framework, lambda ns, held, _: ns.clip_grad_norm_(held, 1.0, p, error_if_nonfinite=True), held)


def reject_in_a_half(framework: str) -> tuple[str, float]:
    """Clip in the process group of half of the ranks. Rank 0 rejects the call. Return the error, and the next norm."""
    adapter, error = adapter_of(framework), ""
    keywords = adapter.keywords("half")

    def clip(threshold: float) -> Any:
        gradients = [Gradient(array, "shards of a half") for array in ARRAYS]
        parts = [each.on(adapter.process(), adapter.size(), "half") for each in gradients]
        held = adapter.KIT.in_place(list(map(adapter.tensor, parts, gradients)))
        return adapter.KIT.namespace.clip_grad_norm_(held, threshold, **keywords)

    try:
        clip(math.nan if adapter.process() == 0 else 1.0)
    except Exception as raised:
        error = message(raised)
    return error, float(clip(math.inf))
