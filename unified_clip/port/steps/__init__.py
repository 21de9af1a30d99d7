"""Find the training steps in source code."""
