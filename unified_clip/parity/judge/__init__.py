"""Compare the result of a call with the exact result, and find the cause of a difference."""
