"""`--to drop-in` keeps Paddle's own clip classes in a file whose optimizer or engine tests for them."""

from __future__ import annotations

import pytest
from support.port.snippets import ported

from unified_clip.port.catalog import class_checks

OTHER = "paddle.optimizer.SGD(0.1, parameters=net.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))"
MODEL = f"import paddle\nmodel = paddle.Model(net)\nmodel.prepare({OTHER}, loss, None{{}})\n"


@pytest.mark.parametrize(
    ("imports", "call", "clip", "reason"),
    [
        (
            "",
            "paddle.incubate.DistributedFusedLamb",
            "GlobalNorm",
            "accepts only paddle.nn.ClipGradByGlobalNorm as the clip",
        ),
        (
            "from paddle.incubate.optimizer import DistributedFusedLamb\n",
            "DistributedFusedLamb",
            "GlobalNorm",
            "accepts only paddle.nn.ClipGradByGlobalNorm as the clip",
        ),
        (
            "from paddle.incubate.optimizer.distributed_fused_lamb import DistributedFusedLamb as Lamb\n",
            "Lamb",
            "GlobalNorm",
            "accepts only paddle.nn.ClipGradByGlobalNorm as the clip",
        ),
        (
            "",
            "paddle.fluid.optimizer.DGCMomentumOptimizer",
            "Norm",
            "accepts only paddle.nn.ClipGradByNorm as the clip",
        ),
        (
            "from paddle.distributed.fleet.meta_optimizers import DGCMomentumOptimizer\n",
            "DGCMomentumOptimizer",
            "Norm",
            "distributed engines",
        ),
    ],
)
def test_an_optimizer_that_tests_for_paddles_class_keeps_it(imports: str, call: str, clip: str, reason: str) -> None:
    source = f"import paddle\n{imports}opt = {call}(0.1, grad_clip=paddle.nn.ClipGradBy{clip}(1.0))\n"
    text, (site,) = ported(source, "drop-in")
    assert (text, site.verdict) == (source, "flagged")
    assert reason in site.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("paddle.distributed.to_static(model, loader, loss, opt)", "distributed static programs"),
        ("paddle.distributed.sharding.group_sharded_parallel(model, opt, 'os')", "distributed engines"),
        ("paddle.distributed.parallelize(model, opt)", "distributed engines"),
    ],
)
def test_an_engine_that_tests_for_paddles_class_keeps_it(line: str, reason: str) -> None:
    source = f"import paddle\nopt = {OTHER}\n{line}\n"
    text, (site,) = ported(source, "drop-in")
    assert (text, site.verdict) == (source, "flagged")
    assert reason in site.reason


@pytest.mark.parametrize(
    ("argument", "verdict"),
    [
        ("", "rewritten"),
        (", None", "rewritten"),
        (", amp_configs=None", "rewritten"),
        (", amp_configs='O1'", "rewritten"),
        (", amp_configs={'level': 'O1', 'init_loss_scaling': 128}", "rewritten"),
        (", amp_configs={'init_loss_scaling': 128}", "rewritten"),
        (", 'O2'", "flagged"),
        (", amp_configs='O2'", "flagged"),
        (", amp_configs={'level': 'O2'}", "flagged"),
        (", amp_configs={**config}", "flagged"),
        (", amp_configs=config", "flagged"),
        (", **config", "flagged"),
    ],
)
def test_a_high_level_model_keeps_paddles_class_only_where_it_tests_for_it(argument: str, verdict: str) -> None:
    _, (site,) = ported(MODEL.format(argument), "drop-in")
    assert site.verdict == verdict
    assert ("level O2" in site.reason) == (verdict == "flagged")


def test_an_optimizer_that_accepts_any_clip_gets_the_class_of_unified_clip() -> None:
    text, (site,) = ported(f"import paddle\nopt = {OTHER}\n", "drop-in")
    assert site.verdict == "rewritten"
    assert "grad_clip=unified_clip.paddle.ClipGradByGlobalNorm(1.0)" in text


def test_an_engine_is_a_full_name_and_all_below_it() -> None:
    fleet = next(engine for engine in class_checks() if "paddle.distributed.fleet" in engine.names)
    assert fleet.has("paddle.distributed.fleet")
    assert fleet.has("paddle.distributed.fleet.init")
    assert not fleet.has("paddle.distributed.fleet_executor")
