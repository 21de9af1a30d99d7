"""Compare an outcome with the exact result, and find the cause of a difference."""
