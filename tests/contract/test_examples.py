"""Worked examples, which can be checked by hand, on every framework."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from support import reference
from support.kits import Kit


def test_two_parameters_of_two_elements(kit: Kit) -> None:
    holders = kit.in_place([kit.tensor([3.0, 4.0]), kit.tensor([1.0, 2.0])])
    norm = kit.namespace.clip_grad_norm_(holders, 5.0)
    assert round(float(kit.array(norm)), 4) == 5.4772
    clipped = [kit.array(g) for g in kit.kept(holders)]
    assert clipped[0].round(4).tolist() == np.array([2.7386, 3.6515], np.float32).tolist()
    assert clipped[1].round(4).tolist() == np.array([0.9129, 1.8257], np.float32).tolist()
    by_hand = 5.0 / (math.sqrt(30) + 1e-6)
    np.testing.assert_allclose(clipped[0], [3 * by_hand, 4 * by_hand], rtol=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("p", [2, math.inf])
def test_mean_squared_error_of_random_tensors(kit: Kit, reduction: str, p: float) -> None:
    random = np.random.default_rng(0)
    logit, label = random.standard_normal((2, 4, 32)).astype(np.float32)
    gradient = (2 * (logit - label) / (logit.size if reduction == "mean" else 1)).astype(np.float32)
    holders = kit.in_place([kit.tensor(gradient)])
    norm = float(kit.array(kit.namespace.clip_grad_norm_(holders, 0.5, p)))
    clipped = kit.array(kit.kept(holders)[0])
    if reduction == "mean":
        assert norm < 0.5
        assert clipped.tobytes() == gradient.tobytes()
    else:
        assert norm > 0.5
        after = (
            math.sqrt(math.fsum(x * x for x in clipped.ravel().tolist())) if p == 2 else float(np.abs(clipped).max())
        )
        assert after <= 0.5 * (1 + 2.0**-22)
        assert after == pytest.approx(0.5, rel=1e-5)


def test_one_exploding_gradient_beside_parameters_without_any(kit: Kit) -> None:
    # Linear(1, 1) twice, the second unused: weight and bias have gradients 120 and 1, the others None.
    def make() -> list[object]:
        return kit.in_place([kit.tensor([[120.0]]), kit.tensor([1.0]), None, None])

    names = ["linear.weight", "linear.bias", "linear2.weight", "linear2.bias"]
    holders = make()
    norm = kit.namespace.clip_grad_norm_(holders, 1.0)
    assert float(kit.array(norm)) == float(np.float32(math.sqrt(120**2 + 1)))
    pairs = list(zip(names, make(), strict=True))
    kit.namespace.clip_grad_norm_(pairs, 1.0)
    named = [holder for _, holder in pairs]
    assert [g is None or kit.bits(g) for g in kit.kept(named)] == [g is None or kit.bits(g) for g in kit.kept(holders)]
    one = make()[:1]
    kit.namespace.clip_grad_value_(one[0] if kit.writable else one, 1.1)
    assert kit.array(kit.kept(one)[0]).tolist() == np.array([[1.1]], np.float32).tolist()


def test_clip_by_norm_of_one_to_five(kit: Kit) -> None:
    got = kit.array(kit.namespace.clip_by_norm(kit.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), 2.0))
    np.testing.assert_allclose(got, [0.26968, 0.53936, 0.80904, 1.07872, 1.3484], atol=5e-6)


def test_paddles_formula_for_one_gradient(kit: Kit) -> None:
    clip = kit.namespace.GradientClipByNorm(clip_norm=2.0)
    below, above = kit.tensor([1.0, 1.0]), kit.tensor([3.0, 4.0])
    clipped = clip([(kit.parameter(), below), (kit.parameter(), above)])
    assert kit.bits(clipped[0][1]) == kit.bits(below)
    np.testing.assert_allclose(kit.array(clipped[1][1]), [2.0 * 3 / 5, 2.0 * 4 / 5], rtol=1e-6)


def test_the_same_numbers_give_the_same_bits_everywhere(kit: Kit) -> None:
    if not kit.exact:
        return
    integers = np.arange(1, 20001, dtype=np.int64) * 48271 % 65537 - 32768  # the same on every machine
    arrays = [
        (integers[:12000].reshape(30, 400) / 1024).astype(np.float32),
        (integers[12000:19999] / 65536).astype(np.float32),
        np.float32(integers[-1]).reshape(()),
    ]
    clipped, norm = kit.namespace.clip_by_global_norm([kit.tensor(a) for a in arrays], 1.0)
    holders = kit.in_place([kit.tensor(a) for a in arrays])
    same_norm = kit.namespace.clip_grad_norm_(holders, 1.0)
    coef = reference.coefficient(reference.norm(arrays), 1.0)
    expected = [*(reference.scaled(array, coef) for array in arrays), np.float32(reference.norm(arrays))]
    digest = hashlib.sha256(b"".join(array.tobytes() for array in expected)).hexdigest()
    for results in ([*clipped, norm], [*kit.kept(holders), same_norm]):  # a norm of this size does not show eps
        assert hashlib.sha256(b"".join(kit.bits(tensor) for tensor in results)).hexdigest() == digest
