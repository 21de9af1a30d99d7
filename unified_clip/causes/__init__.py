"""Find why the result of a clip call differs from the exact result (`parity`) or from the other run (`compare`,
`verify`).

The package `recording/causes` finds the causes of differences between whole runs.
"""
