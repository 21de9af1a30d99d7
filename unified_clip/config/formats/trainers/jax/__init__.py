"""The configuration formats of JAX trainers."""
