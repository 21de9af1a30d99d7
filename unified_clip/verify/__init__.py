"""`unified-clip verify`: run two training steps on the same weights and batches, and compare them."""
