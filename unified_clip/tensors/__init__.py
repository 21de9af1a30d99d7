"""Tensors as plain NumPy data, exact arithmetic, ULP distances, and conversion to and from each framework."""
