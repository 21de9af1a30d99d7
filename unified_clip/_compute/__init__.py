"""Computations of the host path, on raw memory, and of the device path, by a framework's own operations."""
