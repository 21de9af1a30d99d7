"""In-place names: the memory that they write, gradients that share memory, and rejected arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from support.kits import Kit
from support.tiers import where

import unified_clip


def names(kit: Kit) -> list[object]:
    namespace = kit.namespace
    return [
        lambda holders: namespace.clip_grad_norm_(holders, 1.0),
        lambda holders: namespace.clip_grads_with_norm_(holders, 1.0, 5.0),
        namespace.GradientClipByGlobalNorm(1.0).clip_,
    ]


def values(kit: Kit, holders: list[object]) -> list[list[float] | None]:
    return [None if g is None else [round(x, 6) for x in kit.array(g).tolist()] for g in kit.kept(holders)]


@where(lambda kit: kit.writable)
def test_one_tensor_is_written_where_it_is(kit: Kit) -> None:
    """Any container is a case of test_property.py."""
    for function in names(kit):
        gradient = kit.tensor([3.0, 4.0])
        (holder,) = kit.in_place([gradient])
        function(holder)
        np.testing.assert_allclose(kit.array(gradient), [0.6, 0.8], rtol=1e-6)


@where(lambda kit: not kit.writable)
def test_where_tensors_cannot_be_written_only_lists_and_dicts_can_be_updated(kit: Kit) -> None:
    tensors = [kit.tensor([3.0]), kit.tensor([4.0])]
    for container in (tuple(tensors), iter(tensors), tensors[0], {"a": tensors[0]}.values(), [iter(tensors)]):
        with pytest.raises(TypeError, match="clip_by_global_norm"):
            kit.namespace.clip_grad_norm_(container, 1.0)
    assert values(kit, tensors) == [[3.0], [4.0]]


@where(lambda kit: kit.writable)
def test_the_same_memory_listed_twice_counts_and_is_scaled_once(kit: Kit) -> None:
    for function in names(kit):
        gradient = kit.tensor([3.0, 4.0])
        (holder,) = kit.in_place([gradient])
        function([holder, holder])
        assert values(kit, [holder]) == [[0.6, 0.8]]
        first, second = kit.in_place([gradient, gradient])
        kit.namespace.clip_grad_value_([first, second], 0.5)
        assert values(kit, [first, second]) == [[0.5, 0.5]] * 2
        gradient = kit.tensor([3.0, 4.0])
        norm = kit.namespace.clip_grad_norm_(kit.in_place([gradient, gradient]), 1.0)
        assert float(kit.array(norm)) == 5.0


@where(lambda kit: not kit.writable)
def test_every_entry_counts_where_tensors_cannot_be_written(kit: Kit) -> None:
    """In these frameworks, the gradients of `a` and `b` in `a + b` are one tensor."""
    tensor = kit.tensor([3.0, 4.0])
    gradients = [tensor, tensor]
    assert kit.array(kit.namespace.clip_grad_norm_(gradients, 1.0)) == np.float32(50**0.5)


@where(lambda kit: kit.on_parameters)
def test_gradients_in_place_of_parameters_warn(kit: Kit) -> None:
    for function in [*names(kit), lambda given: kit.namespace.clip_grad_value_(given, 1.0)]:
        tensors = [kit.tensor([3.0]), kit.tensor([4.0])]
        with pytest.warns(unified_clip.ClipWarning, match="takes parameters") as caught:
            function(tensors)
        assert caught[0].filename == __file__
        assert kit.array(tensors[0]).tolist() == [3.0]


@where(lambda kit: kit.on_parameters)
def test_a_gradient_beside_parameters_warns(kit: Kit) -> None:
    for function in [*names(kit), lambda given: kit.namespace.clip_grad_value_(given, 1.0)]:
        holders = [*kit.in_place([kit.tensor([3.0])]), kit.tensor([4.0])]
        with pytest.warns(unified_clip.ClipWarning, match="the tensor at position 1 cannot have a gradient"):
            function(holders)


def test_parameters_without_gradients_do_not_warn(kit: Kit) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kit.namespace.clip_grad_norm_([kit.parameter()] if kit.on_parameters else [], 1.0)


def every_name(kit: Kit) -> list[Callable[[object], object]]:
    namespace = kit.namespace
    config = unified_clip.ClipConfig(rule="global_norm", threshold=1.0)
    return [
        *names(kit),
        lambda holders: namespace.clip_grad_value_(holders, 1.0),
        namespace.GradientClipByValue(1.0).clip_,
        namespace.GradientClipByNorm(1.0).clip_,
        lambda holders: config.clip_(holders),
        lambda holders: config.clipper(details=True).clip_(holders),
    ]


@where(lambda kit: kit.on_parameters)
@pytest.mark.parametrize("with_others", [False, True])
def test_a_gradient_in_main_grad_only_is_an_error(kit: Kit, with_others: bool) -> None:
    """Megatron's wrapper and other libraries accumulate gradients in `main_grad`."""
    for function in every_name(kit):
        (first,), second = kit.in_place([kit.tensor([3.0])]), kit.parameter()
        second.main_grad = kit.tensor([4.0])
        with pytest.raises(ValueError, match=r"position \d .*has a gradient in main_grad, and \.grad is None"):
            function([first, second] if with_others else [second])
        assert values(kit, [first]) == [[3.0]]


@where(lambda kit: kit.on_parameters)
def test_main_grad_of_a_parameter_that_takes_no_part_is_ignored(kit: Kit) -> None:
    for function in names(kit):
        (first,), left_out, frozen = kit.in_place([kit.tensor([3.0, 4.0])]), kit.parameter(), kit.parameter()
        left_out.need_clip = False
        frozen.stop_gradient, frozen.requires_grad = True, False
        for each in (left_out, frozen):
            each.main_grad = kit.tensor([100.0])
        first.main_grad = kit.tensor([100.0])  # beside `.grad`
        function([first, left_out, frozen])
        assert values(kit, [first]) == [[0.6, 0.8]]
    (first,), excluded = kit.in_place([kit.tensor([3.0, 4.0])]), kit.parameter()
    excluded.main_grad = kit.tensor([100.0])
    config = unified_clip.ClipConfig(rule="global_norm", threshold=1.0, exclude=["b"], family="tensorflow")
    for clip in (config.clip_, config.clipper(details=True).clip_):
        first.grad = kit.tensor([3.0, 4.0])
        clip({"a": first, "b": excluded})
        assert values(kit, [first]) == [[0.6, 0.8]]
    with pytest.raises(ValueError, match=r"position 1 \(parameter 'a'\) has a gradient in main_grad"):
        config.clip_({"b": first, "a": excluded})


def test_need_clip_leaves_a_gradient_out_of_the_norm_and_of_the_scaling(kit: Kit) -> None:
    for value in (False, 0, np.False_):
        holders = kit.in_place([kit.tensor([3.0, 4.0]), kit.tensor([12.0])])
        left_out = holders[1]
        clip = kit.namespace.GradientClipByGlobalNorm(1.0, need_clip=lambda p: value if p is left_out else True)  # noqa: B023
        assert float(kit.array(clip.clip_(holders))) == 5.0
        assert values(kit, holders) == [[0.6, 0.8], [12.0]]


@where(lambda kit: kit.name == "numpy")
def test_memory_that_cannot_be_written_is_refused_before_any_write(kit: Kit) -> None:
    good = np.array([30.0])
    read_only = np.array([40.0])
    read_only.flags.writeable = False
    expanded = np.broadcast_to(np.array([1.0]), (4,))
    overlapping = np.lib.stride_tricks.as_strided(np.arange(4.0), (3, 2), (8, 8))
    for bad, message in (
        (read_only, "read-only"),
        (expanded, "read-only"),
        (overlapping, "elements that overlap in memory"),
        (np.float32(3), "read-only"),
    ):
        with pytest.raises(ValueError, match=f"position 1.*{message}"):
            kit.namespace.clip_grad_norm_([good, bad], 1.0)
        assert good.tolist() == [30.0]


@where(lambda kit: kit.name == "numpy")
def test_overlapping_gradients_are_refused_and_disjoint_views_are_not(kit: Kit) -> None:
    base = np.arange(12, dtype=np.float64)
    before = base.tolist()
    for a, b in ((base[:7], base[6:]), (base[::2], base[::3]), (base.reshape(3, 4)[:2], base[4:])):
        with pytest.raises(ValueError, match="overlap in memory"):
            kit.namespace.clip_grad_norm_([a, b], 1.0)
        assert base.tolist() == before
    square = np.arange(9.0).reshape(3, 3)
    assert float(
        kit.namespace.clip_grad_norm_([square, square.T, square.reshape(-1), square[::-1]], 1e9)
    ) == np.float64(204**0.5)
    columns = np.array([[3.0, 4.0], [0.0, 0.0]])
    kit.namespace.clip_grad_norm_([columns[:, 0], columns[:, 1]], 1.0)
    np.testing.assert_allclose(columns, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)
    kit.namespace.clip_grad_norm_([base[:0], base[3:3], base], 1e9)


def test_pairs_of_a_name_and_a_gradient_may_be_lists(kit: Kit) -> None:
    holders = kit.in_place([kit.tensor([3.0]), kit.tensor([4.0])])
    pairs = [["w", holders[0]], ["b", holders[1]]]
    assert float(kit.array(kit.namespace.clip_grad_norm_(pairs, 1.0))) == 5.0
    np.testing.assert_allclose([kit.array(kept).item() for kept in kit.kept([p[1] for p in pairs])], [0.6, 0.8], 1e-6)


def test_functional_names_and_norms_count_every_position(kit: Kit) -> None:
    tensor = kit.tensor([3.0, 4.0])
    expected = np.float32(50**0.5)
    clipped, norm = kit.namespace.clip_by_global_norm([tensor, tensor], 1.0)
    norms = [norm, kit.namespace.global_norm([tensor, tensor]), kit.namespace.get_total_norm([tensor, tensor])]
    assert [kit.array(each) for each in norms] == [expected] * 3
    np.testing.assert_allclose([kit.array(each) for each in clipped], [[3 / expected, 4 / expected]] * 2, rtol=1e-6)


@where(lambda kit: not kit.on_parameters)
def test_numpy_arrays_are_clipped_where_gradients_are_given(kit: Kit) -> None:
    grads = [np.array([3.0], np.float32), np.array([4.0], np.float32)]
    kit.namespace.clip_grad_norm_(grads, 1.0)
    np.testing.assert_allclose([np.asarray(grad).item() for grad in grads], [0.6, 0.8], rtol=1e-6)


@where(lambda kit: kit.name == "numpy")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_arrays_in_the_other_byte_order_have_the_results_of_the_machines_order(kit: Kit, dtype: str) -> None:
    own = [np.arange(1, 9).astype(dtype), np.full((2, 3), -0.5, dtype)]
    swapped = [array.astype(array.dtype.newbyteorder()) for array in own]
    norms = [kit.namespace.clip_grad_norm_(arrays, 1.0) for arrays in (own, swapped)]
    assert norms[0] == norms[1]
    for _ in range(2):
        for array, other in zip(own, swapped, strict=True):
            np.testing.assert_array_equal(array, other)
            assert not other.dtype.isnative
        own, swapped = (kit.namespace.clip_by_global_norm(arrays, 0.5)[0] for arrays in (own, swapped))
