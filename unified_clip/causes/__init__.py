"""Find the cause of a difference between the result of a clip call and the correct result.

For `parity`, the correct result is the exact one. For `compare` and `verify`, it is the result of the call in the other
run. The package `recording/causes` finds the causes of differences between whole runs.
"""
