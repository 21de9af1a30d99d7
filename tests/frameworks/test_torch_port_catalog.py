"""The catalog of `port` and PyTorch's own functions."""

from __future__ import annotations

from support.port import catalog_signatures


def test_parameters_in_the_catalog_are_those_of_the_functions() -> None:
    catalog_signatures.compare("torch")
