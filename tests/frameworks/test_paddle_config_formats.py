"""Clips of real Paddle optimizers are imported, and exported clips work in Paddle."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from packaging.version import Version

import unified_clip.paddle as uc
from unified_clip import ClipConfig
from unified_clip.config.formats import FORMATS
from unified_clip.errors import ConfigError

GRADS = [np.array([3.0, -4.0], np.float32), np.array([[0.5, 12.0], [0.25, -0.125]], np.float32)]
CLIPS = {
    "global norm": lambda nn: nn.ClipGradByGlobalNorm(1.5),
    "norm": lambda nn: nn.ClipGradByNorm(1.5),
    "value": lambda nn: nn.ClipGradByValue(0.75),
    "bounds": lambda nn: nn.ClipGradByValue(max=0.75, min=-0.5),
    "zeros": lambda nn: nn.ClipGradByGlobalNorm(0.0),
}


def pairs() -> list[Any]:
    tensors = [paddle.to_tensor(grad) for grad in GRADS]
    return [(paddle.create_parameter(each.shape, "float32"), each) for each in tensors]


def optimizer(clip: Any, parameters: Any = None) -> Any:
    return paddle.optimizer.SGD(0.1, parameters=parameters or [pairs()[0][0]], grad_clip=clip)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("nn", [paddle.nn, uc], ids=["paddle's", "ours"])
def test_what_an_optimizer_holds_clips_the_same_here(clip: str, nn: Any) -> None:
    native = CLIPS[clip](paddle.nn)(pairs())
    config = ClipConfig.of(optimizer(CLIPS[clip](nn)))
    for (_, expected), (_, result) in zip(native, config.pairs(pairs()), strict=True):
        np.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("clip", CLIPS)
def test_what_is_exported_is_the_class_that_it_came_from(clip: str) -> None:
    before = CLIPS[clip](paddle.nn)
    config = ClipConfig.of(optimizer(before))
    names: dict[str, Any] = {}
    exec(FORMATS["paddle"].dump(FORMATS["paddle"].write(config, Version(paddle.__version__))), names)
    assert type(names["grad_clip"]) is type(before)
    assert str(names["grad_clip"]) == str(before)


def test_an_optimizer_without_a_clip_only_measures() -> None:
    assert ClipConfig.of(optimizer(None)).rule == "none"


def test_the_clip_of_a_wrapped_optimizer_is_read() -> None:
    inner = optimizer(paddle.nn.ClipGradByGlobalNorm(1.5))
    config = ClipConfig.of(paddle.incubate.optimizer.LookAhead(paddle.incubate.optimizer.LookAhead(inner)))
    assert (config.rule, config.threshold) == ("global_norm", 1.5)


def test_it_is_said_that_paddle_clips_each_group_by_itself() -> None:
    groups = [{"params": [parameter]} for parameter, _ in pairs()]
    config = ClipConfig.of(optimizer(paddle.nn.ClipGradByGlobalNorm(1.0), groups))
    assert config.provenance is not None
    assert config.provenance.notes == [
        "Paddle clips each group of parameters separately, so a total norm includes only one group."
    ]
    assert (config.provenance.format, config.provenance.version) == ("paddle", paddle.__version__)


@pytest.mark.parametrize("grouped", [False, True])
def test_it_is_said_that_parameters_are_left_out(grouped: bool) -> None:
    (first, _), (second, _) = pairs()
    second.need_clip = False
    parameters = [{"params": [first, second]}] if grouped else [first, second]
    config = ClipConfig.of(optimizer(paddle.nn.ClipGradByGlobalNorm(1.0), parameters))
    assert config.provenance is not None
    assert config.provenance.notes == [
        "Some parameters have need_clip=False, so Paddle does not clip them. Name them in `exclude`."
    ]


class OwnClip(paddle.nn.ClipGradByGlobalNorm):
    pass


class ShardedClip(paddle.nn.ClipGradByGlobalNorm):
    """A clip like Paddle's clips of sharded models, which are not supported."""

    __module__ = "paddle.distributed.fleet"


@pytest.mark.parametrize(
    ("clip", "reason"),
    [
        (OwnClip(1.0), "OwnClip, which unified_clip cannot import"),
        (ShardedClip(1.0), "ShardedClip, which unified_clip cannot import"),
        (
            uc.ClipGradByNorm(1.0, need_clip=lambda parameter: True),
            "the grad_clip of SGD selects parameters by its argument need_clip",
        ),
        (paddle.nn.ClipGradByNorm(0.0), "SGD, ClipGradByNorm, clip_norm: training fails with 0"),
        (paddle.nn.ClipGradByGlobalNorm(1.0, group_name="encoder"), "group_name: this argument makes static programs"),
        (paddle.nn.ClipGradByGlobalNorm(float("inf")), "inf makes gradients NaN in training"),
    ],
)
def test_a_clip_that_cannot_be_said_is_refused(clip: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ClipConfig.of(optimizer(clip))


def test_what_is_refused_fails_in_paddle() -> None:
    with pytest.raises(ValueError, match="max_norm"):
        paddle.nn.ClipGradByNorm(0.0)(pairs())
    with pytest.raises(AssertionError):
        paddle.nn.ClipGradByValue(0.0)
    for clip in (paddle.nn.ClipGradByGlobalNorm(float("inf")), paddle.nn.ClipGradByNorm(float("inf"))):
        assert np.isnan(clip(pairs())[0][1].numpy()).all()
    (_, flipped), *_ = paddle.nn.ClipGradByGlobalNorm(-1.0)(pairs())
    assert (np.sign(flipped.numpy()) == -np.sign(GRADS[0])).all()


def test_groups_with_a_clip_each_are_refused() -> None:
    (first, _), (second, _) = pairs()
    groups = [{"params": [first]}, {"params": [second], "grad_clip": paddle.nn.ClipGradByNorm(1.0)}]
    with pytest.raises(ConfigError, match="the parameter groups of SGD have different grad_clip values"):
        ClipConfig.of(optimizer(paddle.nn.ClipGradByGlobalNorm(1.0), groups))


def test_what_is_no_optimizer_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"^paddle\.nn\.layer\.common\.Linear is not a paddle\.optimizer\.Optimizer"):
        ClipConfig.of(paddle.nn.Linear(2, 2))
