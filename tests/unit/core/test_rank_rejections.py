"""A rank that rejects a call sends its error to the ranks that wait."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.rank_tables import rows_of
from support.rank_threads import (
    BrokenGroup,
    Meeting,
    Member,
    RankShards,
    Sums,
    leaf,
    norm_of,
    norm_of_ones,
    run_ranks,
)

from unified_clip._api import tensorflow_functions, torch_functions
from unified_clip._api.framework import Framework, to_backend
from unified_clip._backends import numpy
from unified_clip._compute.host import HOST
from unified_clip._core import entry
from unified_clip._core.backend import Backend, Distributed
from unified_clip._core.distributed import AWAITED
from unified_clip._distributed import consensus, owners
from unified_clip._distributed.groups import NormGroup, SingleProcess


def framework(backend: Backend) -> Framework[Any, Any]:
    return Framework(__name__, to_backend(backend))


def rejection_error(find_groups: Callable[[], Any], body: Callable[[], Any]) -> Exception:
    def call() -> None:
        AWAITED.send_rejection = partial(consensus.send_rejection, find_groups=find_groups)
        body()

    with pytest.raises(Exception) as caught:
        entry.run_eagerly(call)
    assert AWAITED.send_rejection is None
    return caught.value


def rejection_notes(group: Any, error: Exception) -> list[str]:
    def body() -> None:
        raise error

    assert rejection_error(group if callable(group) else lambda: [group], body) is error
    return list(getattr(error, "__notes__", []))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_a_rejection_on_one_rank_raises_on_all_ranks(p: float) -> None:
    def run(group: Member) -> str:
        if group.rank == 1:
            assert rejection_notes(group, TypeError("no gradient")) == []
        else:
            with pytest.raises(ValueError) as caught:
                norm_of_ones(group, p=p)
            assert "rank 1 rejected this call: TypeError: no gradient. Correct the call on rank 1." in str(caught.value)
        return str(norm_of_ones(group, p=p)[0])

    assert len(set(run_ranks(3, run)[0])) == 1, "the ranks are at the same call again"


def test_all_ranks_may_reject_a_call() -> None:
    assert run_ranks(3, lambda group: rejection_notes(group, TypeError(f"{group.rank}")))[0] == [[]] * 3


def test_a_rank_rejects_alone_if_no_other_rank_waits() -> None:
    assert rejection_notes(SingleProcess(), TypeError()) == []
    assert rejection_notes(BrokenGroup(Member(Meeting(2), 0)), owners.undeclared("nothing declares it")) == []


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_a_rank_that_cannot_measure_can_still_reject(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(method: str) -> Callable[..., Any]:
        own = getattr(Sums, method)

        def call(sums: Sums, *args: Any, **kwargs: Any) -> Any:
            if any(array.size == 7 for array, _ in sums._parts):
                raise MemoryError("7 numbers are too many")
            return own(sums, *args, **kwargs)

        return call

    for method in ("power_sum", "max_abs", "relative_sum"):
        monkeypatch.setattr(Sums, method, failing(method))

    def run(group: Member) -> float:
        if group.rank == 1:
            error = rejection_error(lambda: [group], lambda: norm_of(group, [np.ones(7, np.float32)], p))
            assert isinstance(error, MemoryError)
        else:
            with pytest.raises(ValueError, match="rank 1 rejected this call: MemoryError: 7 numbers"):
                norm_of_ones(group, p=p)
        return norm_of_ones(group, p=p)[0]

    assert len(set(run_ranks(2, run)[0])) == 1


def test_a_rejection_that_cannot_be_sent_is_a_note() -> None:
    (note,) = rejection_notes(BrokenGroup(Member(Meeting(2), 0)), TypeError())
    assert note == "Sending this error to the other ranks failed: ConnectionError: the network is down"


def test_an_error_without_a_group_has_no_note_about_the_group() -> None:
    """For example, the error about FSDP1's flat parameters has its own advice."""

    def find() -> Any:
        raise ValueError("no tensor shows which ranks have the gradients")

    assert rejection_notes(find, RuntimeError("these are FSDP1 flat parameters")) == []


def test_a_rank_logs_its_error_before_it_waits(caplog: Any) -> None:
    """Otherwise, nobody would see why the rank waits."""
    before: list[list[tuple[str, str]]] = []

    def all_reduce_sum(numbers: Sequence[int]) -> list[int]:
        before.append([(record.name, record.levelname) for record in caplog.records])
        return list(numbers)

    rejection_notes(SingleProcess(), TypeError("no rank waits"))
    assert caplog.records == []
    group = SimpleNamespace(rank=0, size=2, ranks=range(2), key=threading.Event(), all_reduce_sum=all_reduce_sum)
    rejection_notes(group, TypeError("no gradient"))
    assert before[0] == [("unified_clip", "ERROR")]
    assert "to raise this error on all ranks: TypeError('no gradient')" in caplog.text


def test_an_error_before_a_later_norm_of_a_call_reaches_the_ranks_that_wait() -> None:
    """Before the first norm, the call sends its errors itself."""

    def run(group: Member) -> str:
        shards = RankShards(group, [np.ones(2)])
        shards.awaits_sums = lambda measures: False  # type: ignore[method-assign]
        if group.rank == 1:
            shards.owned = lambda indices: 1 / 0  # type: ignore[assignment, method-assign, return-value]
        with pytest.raises((ValueError, ZeroDivisionError)) as caught:
            shards.norm(SimpleNamespace(xp=HOST), range(1), 2.0, {}, Sums, function="", is_first=False)
        return str(caught.value)

    first, second = run_ranks(2, run)[0]
    assert first.startswith("rank 1 rejected this call: ZeroDivisionError: division by zero")
    assert second == "division by zero"


def test_a_difference_in_per_tensor_norms_leaves_no_rank_waiting() -> None:
    rows, columns = [Meeting(2) for _ in range(2)], [Meeting(2) for _ in range(2)]

    def run(group: Member) -> str:
        row, column = divmod(group.rank, 2)
        shards = RankShards(None, [np.ones(2)])
        groups = [Member(rows[row], column), Member(columns[column], row)]
        shards.norm_groups = lambda known_only=False: [NormGroup(0, groups, leaf(0), "[2]")]  # type: ignore[method-assign]
        with pytest.raises(ValueError) as caught:
            shards.tensor_norms(2, {"threshold": float(group.rank == 0)}, Sums)
        return str(caught.value)

    first, second, third, fourth = run_ranks(4, run)[0]
    for message in (first, second):
        assert rows_of(message) == {"threshold": {0: "1.0", 1: "0.0"}}
    for message in (third, fourth):
        assert message.startswith("rank 0 rejected this call: ValueError: the ranks disagree about threshold")


class BackendWithRanks(type(numpy.BACKEND), Distributed):  # type: ignore[misc]
    def __init__(self, fails: bool = False) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self._fails = fails

    parameters = SimpleNamespace(
        gradient_of=lambda array: array if array.size else None,
        main_gradient_of=lambda array: None,
        can_have_gradient=lambda array: True,
        identity=id,
    )

    def has_ranks(self) -> bool:
        return True

    def shards(self, gradients: Any, parameters: Any, spec: Any, *, differentiable: bool) -> Any:
        if self._fails:
            raise ConnectionError("the process group is gone")
        counts = len(gradients), len(parameters), spec.ownership

        def send_rejection(measures: str, error: Exception) -> None:
            self.sent.append((measures, *counts, differentiable, str(error)))

        return SimpleNamespace(send_rejection=send_rejection, values=[leaf.tensor for leaf in gradients])


@pytest.mark.parametrize(
    ("function", "arguments", "message", "sent"),
    [
        (torch_functions.clip_grad_norm_, (-1.0,), "max_norm is -1.0", (1, 2, "distinct", False)),
        (torch_functions.clip_grad_norm_, (1.0, 0.0), "norm_type", (1, 2, "distinct", False)),
        (torch_functions.get_total_norm, (math.nan,), "norm_type", (2, 2, "distinct", True)),
        (tensorflow_functions.clip_by_global_norm, (math.nan,), "clip_norm is nan", (2, 2, "distinct", True)),
    ],
)  # fmt: skip
def test_the_error_of_an_argument_reaches_the_ranks_that_wait(
    function: Any, arguments: tuple[Any, ...], message: str, sent: tuple[Any, ...]
) -> None:
    backend = BackendWithRanks()
    with pytest.raises(ValueError, match=message) as caught:
        entry.run_eagerly(function, framework(backend), [np.ones(2), np.zeros(0)], *arguments, ownership="distinct")
    assert backend.sent == [("total", *sent, str(caught.value))]
    assert AWAITED.send_rejection is None


@pytest.mark.parametrize("fails", [False, True])
def test_the_error_of_an_entry_reaches_the_ranks_that_wait(fails: bool) -> None:
    backend, arrays = BackendWithRanks(fails), [np.ones(2), np.zeros(0), "no tensor"]
    with pytest.raises(TypeError, match="position 2 is a str") as caught:
        entry.run_eagerly(torch_functions.clip_grad_norm_, framework(backend), arrays, 1.0, ownership="distinct")
    assert backend.sent == ([] if fails else [("total", 1, 2, "distinct", False, str(caught.value))])
    assert AWAITED.send_rejection is None


def test_a_norm_that_the_caller_passes_compares_no_replicas() -> None:
    with pytest.raises(
        ValueError, match="check_replicas is not supported with use_norm: only a call that measures the norm compares"
    ):
        tensorflow_functions.clip_by_global_norm(
            framework(BackendWithRanks()), [np.ones(2)], 1.0, use_norm=2.0, check_replicas=True
        )


def test_a_norm_that_the_caller_passes_needs_no_other_rank() -> None:
    backend = BackendWithRanks()
    with pytest.raises(ValueError, match="clip_norm is -1"):
        entry.run_eagerly(
            tensorflow_functions.clip_by_global_norm, framework(backend), [np.ones(2)], -1.0, use_norm=2.0
        )
    assert backend.sent == []
