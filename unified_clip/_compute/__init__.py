"""Compute norms, products and clamped values: on raw memory on the host, or by a framework's own operations."""
