"""The formats of trainers on JAX."""
