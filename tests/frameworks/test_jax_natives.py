"""The catalog of `unified-clip port` has the parameters that the functions of JAX and optax have."""

from __future__ import annotations

from support.port import natives as port_natives


def test_the_functions_that_are_found_are_there_with_the_parameters_that_are_known() -> None:
    missing = {"jax": {"jax.experimental.optimizers.clip_grads"}, "optax": set()}
    for framework, names in missing.items():
        assert list(port_natives.changed_parameters(framework)) == []
        assert port_natives.missing_functions(framework) == names
