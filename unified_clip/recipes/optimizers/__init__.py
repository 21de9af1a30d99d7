"""Compare the optimizers of two runs."""
