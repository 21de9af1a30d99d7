"""Find the cause of a difference between the result of a clip call and the correct result.

`parity` takes the exact result as the correct one. `compare` and `verify` take the result of the other recording. The
package `recording/causes` finds the causes of differences between whole runs.
"""
