"""Tools for tensors: NumPy copies, exact arithmetic, distances in ULP, and conversion between frameworks."""
