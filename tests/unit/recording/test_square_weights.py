"""`unified-clip compare` reports an untransposed square weight only if the numbers of the first step allow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.recordings import cause_kinds, clip_line, with_steps

from unified_clip.tensors.arrangement import fingerprints_of

SQUARE, WIDE = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((5, 5), (5, 6)))


def run_of(name: str, norms: dict[str, float], loss: float | None, is_torch: bool) -> list[dict[str, Any]]:
    """Return a run of one step that clips a square weight, which has the same elements in all runs, and two others."""
    line = clip_line(1, {name: norms["square"], "wide": norms["wide"], "c": 12.0})
    for own, array in ((name, SQUARE), ("wide", WIDE.T.copy() if is_torch else WIDE)):
        size = {"shape": list(array.shape), "weight": float(np.linalg.norm(array))}
        line["parameters"][own] |= {**size, "fingerprints": fingerprints_of(array, "float32")}
    line["framework"] = "torch" if is_torch else "paddle"
    return with_steps([line], **({"losses": [loss]} if loss is not None else {}))


def kinds(
    compare_runs: Any,
    names: tuple[str, str] = ("hidden", "hidden"),
    norms: tuple[float, float] = (3.0, 3.5),
    wide: tuple[float, float] = (4.0, 4.5),
    losses: tuple[float | None, float | None] = (1.0, 1.5),
) -> list[str]:
    both = zip(names, norms, wide, losses, strict=True)
    runs = [
        run_of(name, {"square": norm, "wide": other}, loss, is_torch)
        for is_torch, (name, norm, other, loss) in enumerate(both)
    ]
    return cause_kinds(compare_runs(*runs))


def test_a_square_weight_is_a_possible_cause_if_losses_and_gradients_differ(compare_runs: Any) -> None:
    for losses in ((1.0, 1.5), (None, None), (1.0, None)):
        assert kinds(compare_runs, losses=losses) == ["untransposed weight"]
    runs = [run_of("hidden", {"square": 3.0 + side, "wide": 4.0}, 1.0 + side, bool(side)) for side in (0, 1)]
    (cause,) = compare_runs(*runs).findings
    assert "one run transposes the weights of 'wide', but not the square weights of 'hidden'" in (cause.sentence)
    assert "a possible cause" in cause.sentence
    assert "If the square weights are correct, compare data, forward pass and loss" in cause.sentence


def test_a_square_weight_is_right_if_the_losses_agree(compare_runs: Any) -> None:
    assert kinds(compare_runs, losses=(1.0, 1.0 + 2**-22)) == ["other data or loss"]
    assert kinds(compare_runs, losses=(1.0, 1.0 + 2**-14)) == ["untransposed weight"]


@pytest.mark.parametrize("norms", [(0.0, 0.0), (1e-9, 2e-9)])
def test_losses_show_nothing_about_a_weight_without_a_gradient(compare_runs: Any, norms: tuple[float, float]) -> None:
    """Before the first step, a loss does not depend on the weights below a layer whose weights are 0."""
    assert kinds(compare_runs, norms=norms, losses=(1.0, 1.0)) == ["untransposed weight"]


def test_a_square_weight_is_right_if_all_gradients_agree(compare_runs: Any) -> None:
    near = 3.0 + 3 * 2**-21
    assert kinds(compare_runs, norms=(3.0, near), wide=(4.0, 4.0), losses=(None, None)) == ["rounding"]


@pytest.mark.parametrize(
    ("names", "is_embedding"),
    [
        (("embedding_0.w_0", "0"), True), (("0", "tok_emb.weight"), True), (("h.wte", "h.wte"), True),
        (("ensemble", "ensemble"), False), (("member.w", "member.w"), False),
    ],
)  # fmt: skip
def test_a_square_embedding_is_no_cause(compare_runs: Any, names: tuple[str, str], is_embedding: bool) -> None:
    expected = "other data or loss" if is_embedding else "untransposed weight"
    assert kinds(compare_runs, names=names) == [expected]


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_norms_of_square_weights_do_not_show_that_they_agree(compare_runs: Any, is_alone: bool) -> None:
    """Without a weight that one run transposes, an untransposed square weight has no other sign."""
    for framework in ("paddle", "torch"):
        lines = [clip_line(1, {"hidden": norm, "wide": 4.0, "c": 12.0}) for norm in (3.0, 3.5)]
        for line in lines:
            for name, array in (("hidden", SQUARE), ("wide", WIDE)):
                size = {"shape": list(array.shape), "weight": float(np.linalg.norm(array))}
                line["parameters"][name] |= {**size, "fingerprints": fingerprints_of(array, "float32")}
            if is_alone:
                del line["parameters"]["wide"]
        lines[0]["framework"], lines[1]["framework"] = framework, "torch"
        (cause,) = compare_runs([lines[0]], [lines[1]]).findings
        assert cause.kind == "other data or loss"
        assert ("the square weights 'hidden': check this first" in cause.sentence) == (framework == "paddle")


@pytest.mark.parametrize("is_first", [True, False])
def test_weights_that_only_one_run_ties_are_named(compare_runs: Any, is_first: bool) -> None:
    size = {"shape": [5, 5], "weight": 2.5}
    separate, tied = (
        clip_line(1, {**norms, "c": 12.0}, weights={"c": 1.0}) for norms in ({"a": 3.0, "b": 4.0}, {"a": 6.0})
    )
    for line in (separate, tied):
        line["parameters"] = {name: each | size if name != "c" else each for name, each in line["parameters"].items()}
    (cause,) = compare_runs(*([[tied], [separate]] if is_first else [[separate], [tied]])).findings
    assert cause.kind == "tied weights"
    assert cause.sentence.startswith(f"'a' and 'b' of {'b' if is_first else 'a'}.jsonl have equal norms")
    separate["parameters"]["b"]["weight"] = 2.0  # another weight
    assert compare_runs([tied], [separate]).findings[0].kind == "left out"
