"""What `unified-clip port` takes optax's functions for is what they are."""

from __future__ import annotations

from support.port import natives as port_natives


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known() -> None:
    assert list(port_natives.changed_parameters("optax")) == []
    assert port_natives.missing_functions("optax") == set()
