"""What `unified-clip port` takes Paddle's functions for is what they are; those of Paddle 1.x are gone."""

from __future__ import annotations

from support.port import natives as port_natives

GONE = {"paddle.nn.clip_by_norm", "paddle.nn.ClipGradBase"}
MODULES = {"paddle.nn.utils.clip_grad_norm_.clip_grad_norm_", "paddle.nn.utils.clip_grad_value_.clip_grad_value_"}
"""Hidden by the functions of their names."""


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known() -> None:
    assert list(port_natives.differing("paddle")) == []
    old = {name for name, _ in port_natives.of("paddle") if name.startswith("paddle.fluid.")}
    assert port_natives.missing("paddle") == old | GONE | MODULES


def test_ours_take_the_same_arguments() -> None:
    assert list(port_natives.without_equal("paddle")) == []
