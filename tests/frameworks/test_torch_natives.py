"""The catalog of `unified-clip port` has the parameters that the functions of PyTorch have."""

from __future__ import annotations

from support.port import natives as port_natives

NOT_INSTALLED = {"apex", "autoclip", "timm", "zclip"}
"""Packages that the tests do not install. Nothing compares the catalog with their functions."""


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known() -> None:
    assert list(port_natives.changed_parameters("torch")) == []
    assert {name.partition(".")[0] for name in port_natives.missing_functions("torch")} == NOT_INSTALLED


def test_ours_take_the_same_arguments() -> None:
    assert list(port_natives.without_replacement("torch")) == []
