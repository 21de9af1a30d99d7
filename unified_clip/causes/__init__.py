"""Find why the result of a clip call differs from the correct result.

For `parity`, the correct result is the exact result. For `compare` and `verify`, the correct result is the result of
the call in the other run. The package `recording/causes` finds the causes of differences between whole runs.
"""
