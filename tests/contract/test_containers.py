"""The containers that functional names accept, and the containers that they return."""

from __future__ import annotations

from collections import Counter, OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
from support.kits import Kit

import unified_clip

Pair = namedtuple("Pair", ["weight", "bias"])


class Around(UserDict[str, object]):
    """A mapping whose shallow copy shares its items."""

    def __copy__(self) -> Around:
        made = type(self)()
        made.data = self.data
        return made


def clip(kit: Kit, container: object) -> object:
    clipped, norm = kit.namespace.clip_by_global_norm(container, 1.0)
    assert float(kit.array(norm)) == 5.0
    return clipped


def check(kit: Kit, tensor: object, value: float) -> None:
    np.testing.assert_array_equal(kit.array(tensor), np.array([value], np.float32))


def test_none_alone_stays_none(kit: Kit) -> None:
    clipped, norm = kit.namespace.clip_by_global_norm(None, 1.0)
    assert clipped is None
    assert float(kit.array(norm)) == 0.0
    assert kit.namespace.clip_by_norm(None, 1.0) is None
    assert kit.namespace.clip_by_value(None, -1.0, 1.0) is None


@pytest.mark.parametrize("kind", [dict, OrderedDict, Counter, UserDict, Around])
def test_the_given_mapping_is_not_changed(kit: Kit, kind: type) -> None:
    w, b = kit.tensor([3.0]), kit.tensor([4.0])
    inner = kind({"b": b})
    given = kind({"w": w, "inner": inner})
    clipped = clip(kit, given)
    assert type(clipped) is type(clipped["inner"]) is kind
    check(kit, clipped["w"], 0.6)
    check(kit, clipped["inner"]["b"], 0.8)
    assert given["w"] is w
    assert given["inner"] is inner
    assert inner["b"] is b


def test_an_empty_generator_warns_and_an_empty_list_does_not(kit: Kit) -> None:
    for function in (kit.namespace.get_total_norm, kit.namespace.global_norm):
        with pytest.warns(unified_clip.ClipWarning, match="empty or used up") as caught:
            assert float(kit.array(function(iter([])))) == 0.0
        assert caught[0].filename == __file__
        assert float(kit.array(function([]))) == 0.0
    with pytest.warns(unified_clip.ClipWarning, match="empty or used up"):
        kit.namespace.clip_grad_norm_((t for t in ()), 1.0)
    clipped, _ = kit.namespace.clip_by_global_norm([], 1.0)
    assert clipped == []


def test_numpy_arrays_are_accepted_and_come_back_as_the_frameworks_tensors(kit: Kit) -> None:
    array = np.array([3.0, 4.0], np.float32)
    clipped, norm = kit.namespace.clip_by_global_norm([array], 1.0)
    assert type(clipped[0]) is type(kit.tensor([0.0]))
    assert float(kit.array(norm)) == 5.0
    assert array.tolist() == [3.0, 4.0]
    for result in (kit.namespace.clip_by_norm(array, 1.0), kit.namespace.clip_by_value(array, -1.0, 1.0)):
        assert type(result) is type(kit.tensor([0.0]))
    assert float(kit.array(kit.namespace.get_total_norm([array, kit.tensor([12.0])]))) == 13.0


def test_the_package_itself_finds_the_framework(kit: Kit) -> None:
    tensors = [None, kit.tensor([3.0]), kit.tensor([4.0])]
    clipped, norm = unified_clip.clip_by_global_norm(iter(tensors), 1.0)
    assert type(clipped[1]) is type(tensors[1])
    assert type(norm) is type(kit.namespace.global_norm(tensors))
    holders = kit.in_place([None, kit.tensor([3.0]), kit.tensor([4.0])])
    assert type(unified_clip.clip_grad_norm_(holders, 1.0)) is type(norm)
    np.testing.assert_allclose(kit.array(kit.kept(holders)[2]), [0.8], rtol=1e-6)
    assert type(unified_clip.clip_by_norm(tensors[1], 1.0)) is type(tensors[1])
    clip_ = unified_clip.GradientClipByGlobalNorm(1.0)
    check(kit, clip_([(kit.parameter(), t) for t in tensors])[2][1], 0.8)
    nested = {"a": (np.zeros(1, np.float32), [kit.tensor([1.0])])}
    assert type(unified_clip.global_norm(nested)) is type(norm)


def test_the_package_itself_takes_an_iterator_only_as_the_whole_argument(kit: Kit) -> None:
    tensors = [kit.tensor([3.0]), kit.tensor([4.0])]
    if kit.writable:
        assert float(kit.array(unified_clip.clip_grad_norm_(iter(kit.in_place(tensors)), 9.0))) == 5.0
    else:
        with pytest.raises(TypeError, match="received an iterator, but updates only a list or a dict"):
            unified_clip.clip_grad_norm_(iter(tensors), 9.0)
    for container in ([iter(tensors)], {"a": iter(tensors)}, iter([iter(tensors)])):
        with pytest.raises(TypeError, match=r"an iterator is inside another container\. Pass a list"):
            unified_clip.clip_by_global_norm(container, 1.0)
    check(kit, kit.namespace.clip_by_global_norm([iter(tensors)], 1.0)[0][0][1], 0.8)
