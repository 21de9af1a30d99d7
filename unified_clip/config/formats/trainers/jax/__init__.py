"""The formats of JAX."""
