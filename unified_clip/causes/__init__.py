"""Find why the result of a clip call differs from the correct result.

For `parity`, the correct result is the exact one. For `compare` and `verify`, it is the result of the call in the other
run. The package `recording/causes` finds the causes of differences between whole runs.
"""
