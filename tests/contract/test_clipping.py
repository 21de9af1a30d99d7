"""Clipping from the norm to the gradient: the coefficient, the product, and gradients that stay unchanged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.kits import Kit


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_given_norm_takes_the_place_of_the_measured_one(kit: Kit, as_tensor: bool) -> None:
    given = kit.tensor(10.0) if as_tensor else 10.0
    (clipped,), norm = kit.namespace.clip_by_global_norm([kit.tensor([3.0, 4.0])], 5.0, use_norm=given)
    np.testing.assert_array_equal(kit.array(clipped), np.array([1.5, 2.0], np.float32))
    assert float(kit.array(norm)) == 10.0
    holders = kit.in_place([kit.tensor([3.0, 4.0])])
    kit.namespace.clip_grads_with_norm_(holders, 5.0, given)
    np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [1.5, 2.0], rtol=1e-6)


def test_foreach_name_and_auto_skip_clip_change_nothing(kit: Kit) -> None:
    tensors = [kit.tensor([3.0, 4.0])]
    plain, _ = kit.namespace.clip_by_global_norm(tensors, 1.0)
    assert kit.bits(kit.namespace.clip_by_global_norm(tensors, 1.0, name="scope")[0][0]) == kit.bits(plain[0])
    for foreach in (None, True, False):
        holders = kit.in_place([kit.tensor([3.0, 4.0])])
        kit.namespace.clip_grad_norm_(holders, 1.0, foreach=foreach)
        np.testing.assert_allclose(kit.array(kit.kept(holders)[0]), [0.6, 0.8], rtol=1e-6)
    for skip in (False, True):
        clip = kit.namespace.GradientClipByGlobalNorm(1.0, auto_skip_clip=skip)
        assert kit.bits(clip([(kit.parameter(), tensors[0])])[0][1]) == kit.bits(plain[0])


def test_results_do_not_share_memory_with_the_input(kit: Kit) -> None:
    if not kit.writable:
        return
    tensor = kit.tensor([0.3, 0.4])
    results = [kit.namespace.clip_by_global_norm([tensor], limit)[0][0] for limit in (1.0, math.inf, 0.1)]
    results += [kit.namespace.clip_by_norm(tensor, limit) for limit in (1.0, math.inf, 0.1)]
    results += [kit.namespace.clip_by_value(tensor, -limit, limit) for limit in (1.0, math.inf, 0.1)]
    before = [kit.bits(result) for result in results]
    kit.namespace.clip_grad_value_(kit.in_place([tensor]), 0.0)
    assert [kit.bits(result) for result in results] == before


def test_a_limit_of_zero_gives_zeros_whatever_the_norm_that_is_given(kit: Kit) -> None:
    for limit in (0.0, -0.0):
        (clipped,), norm = kit.namespace.clip_by_global_norm([kit.tensor([3.0, -4.0])], limit, use_norm=0.0)
        assert kit.array(clipped).tobytes() == np.array([0.0, -0.0], np.float32).tobytes()
        assert float(kit.array(norm)) == 0.0
    holders = kit.in_place([kit.tensor([3.0, -4.0])])
    kit.namespace.clip_grad_norm_(holders, -0.0)
    assert kit.bits(kit.kept(holders)[0]) == np.array([0.0, -0.0], np.float32).tobytes()
