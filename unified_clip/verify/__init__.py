"""Run two training steps on the same weights and batches, and compare them: `unified-clip verify`."""
