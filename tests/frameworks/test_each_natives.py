"""The catalog of `unified-clip port` has the frameworks' own functions, and Paddle's checks of classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.kits import Kit
from support.port import natives
from support.tiers import where

from unified_clip.port.catalog import class_checks

FRAMEWORKS = {"torch": ["torch"], "jax": ["jax", "optax"], "tensorflow": ["tensorflow"], "paddle": ["paddle"]}
MISSING = {
    "torch": ("apex.", "autoclip.", "timm.", "zclip."),  # packages that the tests do not install
    "jax": ("jax.experimental.optimizers.clip_grads",),
    "tensorflow": (
        "keras.backend.clip", "keras.optimizers.clip_norm", "tf.clip_by_average_norm", "tf.contrib.", "tf.global_norm",
        "tf.python.", "tf_agents.", "tf_keras.", "tf_slim.",
    ),
    "paddle": (
        "paddle.fluid.", "paddle.nn.clip_by_norm", "paddle.nn.ClipGradBase",
        "paddle.nn.utils.clip_grad_norm_.clip_grad_norm_",  # functions of the same names hide these modules
        "paddle.nn.utils.clip_grad_value_.clip_grad_value_",
    ),
}  # fmt: skip
"""How the names of functions begin that old releases or other packages have."""

pytestmark = [
    pytest.mark.graphs,  # older releases lack some functions
    where(lambda kit: kit.name in FRAMEWORKS),
]


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known(kit: Kit) -> None:
    for framework in FRAMEWORKS[kit.name]:
        assert list(natives.changed_parameters(framework)) == []
        missing = natives.missing_functions(framework)
        assert [name for name in sorted(missing) if not name.startswith(MISSING[kit.name])] == []
        assert len(missing) < len(natives.functions_of(framework))


@where(lambda kit: kit.name != "jax")  # optax's functions have other arguments
def test_ours_take_the_same_arguments(kit: Kit) -> None:
    assert list(natives.without_replacement(kit.name)) == []


@where(lambda kit: kit.name == "tensorflow")
def test_those_of_tensorflow_1_are_there_too() -> None:
    import tensorflow as tf

    from unified_clip.port.catalog import clip_function

    for name in ("clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm", "clip_by_average_norm"):
        result = clip_function(f"tensorflow.compat.v1.{name}")
        assert result is not None
        assert natives.parameter_names(getattr(tf.compat.v1, name)) == list(result.parameters)


@where(lambda kit: kit.name == "tensorflow")
def test_the_arguments_of_keras_optimizers_are_there() -> None:
    import keras

    from unified_clip.port.catalog import KERAS_RULES

    assert all(getattr(keras.optimizers.SGD(0.1), name) is None for name in KERAS_RULES)


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


@where(lambda kit: kit.name == "paddle")
@pytest.mark.since("3.3", "other files have checks")
def test_every_check_of_paddle_belongs_to_an_engine_that_port_names() -> None:
    import paddle

    root = Path(paddle.__file__).parent
    checks = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if CHECK.search(path.read_text(encoding="utf-8", errors="replace"))
    }
    assert checks - set(HARMLESS) == set(ENGINES)
    assert [name for name in ENGINES.values() if not any(engine.has(name) for engine in class_checks())] == []
