"""Find training steps in source: the optimizer, its steps and its parameters."""
