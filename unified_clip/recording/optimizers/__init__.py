"""Compare the optimizers of two recordings: their steps, settings and rules."""
