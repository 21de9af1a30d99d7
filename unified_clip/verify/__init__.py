"""Run an old and a new training step on the same weights and batches, and compare results: `unified-clip verify`."""
