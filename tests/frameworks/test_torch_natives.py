"""What `unified-clip port` takes PyTorch's functions for is what they are."""

from __future__ import annotations

from support.port import natives as port_natives

APEX = {"apex.contrib.clip_grad.clip_grad_norm_", "apex.contrib.clip_grad.clip_grad.clip_grad_norm_"}
"""Functions of a package that is not installed."""


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known() -> None:
    assert list(port_natives.differing("torch")) == []
    assert port_natives.missing("torch") == APEX


def test_ours_take_the_same_arguments() -> None:
    assert list(port_natives.without_equal("torch")) == []
