"""Compare a result with the exact one, and find the cause of a difference."""
