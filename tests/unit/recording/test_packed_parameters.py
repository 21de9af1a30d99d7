"""`unified-clip compare`: one run packs query, key and value into one weight and one bias."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.recordings import cause_kinds

from unified_clip.recording.report import sentences

Lines = list[dict[str, Any]]
Norms = Mapping[str, tuple[list[int], float]]

OUT: Norms = {"out.weight": ([8, 8], 5.0), "out.bias": ([8], 6.0)}
THREE: Norms = {
    f"{part}.{kind}": (shape, norm)
    for part, norms in (("q", (1.25, 2.25)), ("k", (1.5, 3.0)), ("v", (2.5, 6.25)))
    for (kind, shape), norm in zip((("weight", [8, 8]), ("bias", [2, 4])), norms, strict=True)
}
FUSED: Norms = {
    f"qkv.{name}": (shape, float(np.float32(math.hypot(*(THREE[f"{part}.{kind}"][1] for part in "qkv")))))
    for name, kind, shape in (("weight", "weight", [24, 8]), ("b", "bias", [24]))
}
OTHER_FUSED: Norms = {**FUSED, "qkv.weight": ([24, 8], 4.0)}


def clips(gradients: Norms, rule: str, steps: int = 3) -> Lines:
    """Return lines about clips at 4: by the total norm, by each norm, or by each norm in a loop of calls."""
    if rule == "loop":
        return [
            line for step in range(1, steps + 1) for each in gradients.items() for line in _clip(dict([each]), step)
        ]
    return [line for step in range(1, steps + 1) for line in _clip(gradients, step, rule)]


def _clip(gradients: Norms, step: int, rule: str = "global") -> Lines:
    norms = [norm for _, norm in gradients.values()]
    norms = [float(np.float32(math.hypot(*norms)))] if rule == "global" else norms
    coefs = [min(1.0, 4.0 / norm) for norm in norms]
    is_list = rule == "each"
    line = {
        "step": step, "call": "clip", "framework": "torch", "rule": rule, "threshold": 4.0, "norm_type": 2.0,
        "eps": 0.0, "dtype": "float32", "clipped": min(coefs) < 1, "seconds": 0.001, "count": len(gradients),
        "norm": norms if is_list else norms[0], "coef": coefs if is_list else coefs[0],
        "parameters": {name: {"shape": shape, "norm": n, "weight": 1.0} for name, (shape, n) in gradients.items()},
    }  # fmt: skip
    return [line]


def without_norms(lines: Lines) -> Lines:
    return [{**line, "parameters": {}} for line in lines]


def with_weights(three: Lines, fused: Lines) -> tuple[Lines, Lines]:
    for line in fused:
        for name in ("qkv.weight", "qkv.b"):
            line["parameters"].get(name, {})["weight"] = float(np.float32(math.sqrt(3)))
    return three, fused


def test_weights_and_biases_are_packed_separately_in_a_clip_by_the_total_norm(compare_runs: Any) -> None:
    three, fused = with_weights(clips(THREE | OUT, "global"), clips(FUSED | OUT, "global"))
    comparison = compare_runs(three, fused, max_ulp=4)
    assert comparison.first is None
    assert dict(comparison.pairs[0].names) == {
        "out.weight": "out.weight", "out.bias": "out.bias",
        "q.weight + k.weight + v.weight": "qkv.weight", "q.bias + k.bias + v.bias": "qkv.b",
    }  # fmt: skip
    other = compare_runs(three, clips(OTHER_FUSED | OUT, "global"), max_ulp=4)
    assert other.first.parameter == "q.weight + k.weight + v.weight"


@pytest.mark.parametrize("rule", ["each", "loop"])
def test_a_packed_parameter_has_one_norm_in_a_clip_per_tensor(compare_runs: Any, rule: str) -> None:
    comparison = compare_runs(*with_weights(clips(THREE | OUT, rule), clips(FUSED | OUT, rule)))
    assert cause_kinds(comparison) == ["another rule"]
    sentence = comparison.findings[0].sentence
    parts = "'q.weight', 'k.weight' and 'v.weight'"
    assert sentence.startswith(f"b.jsonl clips 'qkv.weight' as one tensor. a.jsonl splits this tensor into {parts}")
    assert sentence.endswith("Clip each of the remaining tensors by its own norm. Do the same for the parts of 'qkv.b'")
    assert not any("Clipping is the same" in line for line in sentences.report_lines(comparison))


def test_other_gradients_beside_a_packed_parameter_are_named(compare_runs: Any) -> None:
    other = {**FUSED, "out.weight": ([8, 8], 2.0), "out.bias": ([8], 6.0)}
    comparison = compare_runs(*with_weights(clips(THREE | OUT, "each"), clips(other, "each")))
    assert comparison.findings[0].sentence.endswith(
        "The gradient of 'out.weight' differs, too: compare data, forward pass and loss"
    )


def by_position(gradients: Norms) -> Norms:
    return {str(n): (shape if shape != [2, 4] else [8], norm) for n, (shape, norm) in enumerate(gradients.values())}


OTHER_OUT: Norms = {**OUT, "out.weight": ([8, 8], 2.0)}


def test_other_gradients_with_equal_weights_can_have_parts_in_another_order(compare_runs: Any) -> None:
    three, fused = with_weights(clips(THREE | OUT, "global"), clips(FUSED | OTHER_OUT, "global"))
    (second,) = _clip({"critic.weight": ([4, 2], 5.0)}, 1)
    second["parameters"]["critic.weight"]["weight"] = 0.0
    with_second = (
        [each for line in run for each in (line, {**second, "step": line["step"]})] for run in (three, fused)
    )
    for runs in ((three, fused), with_second):
        (cause,) = compare_runs(*runs).findings
        assert cause.kind == "other data or loss"
        assert cause.sentence.endswith("the order of the parameters that are packed into 'qkv.weight' and 'qkv.b'")


def test_parts_without_names_are_not_taken_for_another_call(compare_runs: Any) -> None:
    three, fused = (clips(by_position(each), "global") for each in (THREE | OUT, FUSED | OTHER_OUT))
    for line in fused:
        for name in ("0", "1"):
            line["parameters"][name]["weight"] = float(np.float32(math.sqrt(3)))
    assert cause_kinds(compare_runs(three, fused)) == ["other data or loss"]


def test_without_names_fewer_gradients_can_be_packed(compare_runs: Any) -> None:
    three, fused = (without_norms(clips(each | OUT, "each")) for each in (THREE, FUSED))
    comparison = compare_runs(three, fused)
    assert cause_kinds(comparison) == []
    three, fused = (without_norms(clips(each | OUT, "global")) for each in (THREE, OTHER_FUSED))
    (cause,) = compare_runs(three, fused).findings
    assert "b.jsonl clips 4 gradients instead of 8, or packs several weights into one" in cause.sentence
    three, fused = (without_norms(clips(each | OUT, "loop")) for each in (THREE, FUSED))
    (cause,) = compare_runs(three, fused).findings
    assert cause.sentence.endswith(
        "If b.jsonl packs several weights into one, record both runs with norms=True, or --norms"
    )


def test_different_parameters_are_not_called_different_gradients(compare_runs: Any) -> None:
    norm = FUSED["qkv.weight"][1]
    other = {"x.weight": ([12, 8], 0.6 * norm), "y.weight": ([12, 8], 0.8 * norm), "xy.bias": FUSED["qkv.b"]}
    lines = sentences.report_lines(compare_runs(clips(THREE | OUT, "global"), clips(other | OUT, "global")))
    assert any(line.startswith("Parameters that only one run has were not compared") for line in lines)
    assert not any("The gradients differ" in line for line in lines)
