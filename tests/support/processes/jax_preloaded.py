"""The modules that all processes of JAX's worlds import once, before they are forked. No module may start JAX's
backend."""

# ruff: noqa: F401

import jax.experimental.multihost_utils
import jax.experimental.sparse

import unified_clip.jax
