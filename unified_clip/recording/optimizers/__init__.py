"""Compare the optimizers of two recordings."""
