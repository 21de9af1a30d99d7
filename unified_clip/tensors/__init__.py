"""Tensors without a framework: exact arithmetic, ULP distances, files, and conversion from and to every framework."""
