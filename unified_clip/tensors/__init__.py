"""Tensors without a framework: exact arithmetic, ULP distances, files, and conversion to and from each framework."""
