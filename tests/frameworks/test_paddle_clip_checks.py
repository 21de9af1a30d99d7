"""`unified-clip port --to drop-in` has to name all code of Paddle that tests the class of a clip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import paddle
import pytest
from paddle.incubate.optimizer import DistributedFusedLamb

import unified_clip.paddle
from unified_clip.port.catalog import class_checks

CHECK = re.compile(r"isinstance\(\s*[\w.]*grad_clip,\s*\(?\s*(?:[\w.]+\.)?ClipGradBy")

ENGINES = {
    "distributed/auto_parallel/static/utils.py": "paddle.distributed.auto_parallel",
    "distributed/fleet/meta_optimizers/dgc_optimizer.py": "paddle.distributed.fleet",
    "distributed/fleet/meta_optimizers/dygraph_optimizer/hybrid_parallel_optimizer.py": "paddle.distributed.fleet",
    "distributed/fleet/meta_parallel/sharding/group_sharded_fully_shard.py": "paddle.distributed.fleet",
    "distributed/fleet/meta_parallel/sharding/group_sharded_optimizer_stage2.py": "paddle.distributed.fleet",
    "distributed/fleet/meta_parallel/sharding/group_sharded_stage3.py": "paddle.distributed.fleet",
    "hapi/model.py": "paddle.Model",
    "incubate/optimizer/distributed_fused_lamb.py": "paddle.incubate.DistributedFusedLamb",
}
"""Files of Paddle that test the class of a clip, and the engine that reaches them."""

HARMLESS = {
    "distributed/auto_parallel/api.py": "it sets _shard_clip, which nothing reads",
    "optimizer/optimizer.py": "it only chooses whether gradients are flattened before the clip",
}


@pytest.mark.since("3.3", "other files have checks")
def test_every_check_of_paddle_belongs_to_an_engine_that_port_names() -> None:
    root = Path(paddle.__file__).parent
    checks = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if CHECK.search(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert checks - set(HARMLESS) == set(ENGINES)
    assert [name for name in ENGINES.values() if not any(engine.has(name) for engine in class_checks())] == []


@pytest.fixture
def static_mode() -> Iterator[None]:
    paddle.enable_static()
    yield
    paddle.disable_static()


@pytest.mark.usefixtures("static_mode")
def test_distributed_fused_lamb_rejects_another_class() -> None:
    with pytest.raises(AssertionError, match="Only ClipGradByGlobalNorm"):
        DistributedFusedLamb(0.1, grad_clip=unified_clip.paddle.ClipGradByGlobalNorm(1.0))
    assert DistributedFusedLamb(0.1, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))._max_global_grad_norm == 1.0
