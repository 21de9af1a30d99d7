"""PyTorch: without real ranks, norms come from PyTorch's own operations, as in `torch.nn.utils.clip_grad_norm_`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # FSDP under fake tensors needs them before PyTorch 2.10
from support import torch_fake_ranks
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import unified_clip.torch as uc
from unified_clip import ClipConfig
from unified_clip.errors import NonFiniteNormError

RANKS = 2
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "fake group": nullcontext,
    "fake tensors": FakeTensorMode,
    "local tensors": lambda: pytest.importorskip("torch.distributed._local_tensor").LocalTensorMode(RANKS),
}


@pytest.fixture(autouse=True)
def fake_group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


def parameter(mesh: DeviceMesh | None = None, placement: Any = None) -> nn.Parameter:
    mesh = mesh or init_device_mesh("cpu", (RANKS,))
    placement = Shard(0) if placement is None else placement
    rows = 4 // RANKS if isinstance(placement, Shard) else 4
    weight, gradient = (
        DTensor.from_local(torch.full((rows, 2), value), mesh, [placement], run_check=False) for value in (0.0, 3.0)
    )
    result = nn.Parameter(weight)
    result.grad = gradient
    return result


def values(tensor: Any) -> list[Any]:
    """Return the value on each rank that this process holds. Fake tensors have no values, but a shape."""
    local = getattr(tensor, "_local_tensor", tensor)
    ranks = getattr(local, "_local_tensors", None) or {0: local}
    if type(local).__name__ == "FakeTensor":
        return [torch.zeros(local.shape).tolist()]
    return [part.detach().tolist() for part in ranks.values()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("placement", [Shard(0), Replicate(), Partial()])
def test_a_dry_run_gives_the_norm_of_the_frameworks_function(mode: str, norm_type: float, placement: Any) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    with MODES[mode]():
        own, theirs = parameter(mesh, placement), parameter(mesh, placement)
        expected = nn.utils.clip_grad_norm_([theirs], 1.0, norm_type).full_tensor()
        norm = uc.clip_grad_norm_([own], 1.0, norm_type)
    assert values(norm) == pytest.approx(values(expected))
    (left, *_), (right, *_) = values(own.grad), values(theirs.grad)
    assert torch.allclose(torch.tensor(left), torch.tensor(right), rtol=1e-5)


def test_fsdp_under_fake_tensors() -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
        model(torch.ones(2, 8)).sum().backward()
        norm = uc.clip_grad_norm_(model.parameters(), 1.0)
        optimizer = torch.optim.SGD(model.parameters())
        ClipConfig(rule="norm", threshold=1.0).attach_to(optimizer)
        optimizer.step()
    assert norm.shape == ()


def test_plain_gradients_beside_distributed_ones() -> None:
    plain = nn.Parameter(torch.zeros(1))
    plain.grad = torch.full((1,), 4.0)
    clipper = ClipConfig(rule="global_norm", threshold=1.0).clipper(details=True)
    clipper.clip_({"plain": plain, "sharded": parameter()})
    assert clipper.last.parameters == pytest.approx({"sharded": 6.0, "plain": 4.0})


@pytest.mark.parametrize("function", [uc.get_total_norm, lambda grads: uc.clip_by_global_norm(grads, 1.0)[1]])
def test_functional_names(function: Callable[[Any], Any]) -> None:
    assert function([parameter().grad]) == pytest.approx(math.sqrt(4 * 9))


def test_error_if_nonfinite() -> None:
    broken = parameter()
    broken.grad.to_local()[0, 0] = math.nan  # type: ignore[union-attr]
    with pytest.raises(NonFiniteNormError):
        uc.clip_grad_norm_([broken], 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize("factor", [0, 1, RANKS + 1])
def test_an_exchange_with_data_that_no_rank_sent(monkeypatch: pytest.MonkeyPatch, factor: int) -> None:
    """The fake group returns the numbers of this rank as the sum over two ranks."""
    monkeypatch.setattr(torch_fake_ranks.TorchShards, "are_simulated", lambda shards: False)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, *args, **kwargs: tensor.mul_(factor))
    clipped = parameter()
    before = values(clipped.grad)
    with pytest.raises(RuntimeError, match="data that no rank sent"):
        uc.clip_grad_norm_([clipped], 1.0)
    assert values(clipped.grad) == before
